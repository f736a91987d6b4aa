//! Devices, contexts, streams and events.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::graphs::{CAPTURING, STREAM_CAPTURES};
use crate::world::{Handle, INVALID_CONTEXT, INVALID_VALUE, Kind, Out, World, functions};

/// The primary context of the one device.
pub(crate) const CONTEXT: Handle = 0x5a00_0000_0001;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;
/// `CUDA_ERROR_INVALID_DEVICE`.
const INVALID_DEVICE: c_int = 101;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub(crate) const CAPTURE_UNSUPPORTED: c_int = 900;

#[derive(Default)]
pub(crate) struct StreamData {
    id: u64,
    pub(crate) capture: Option<u64>,
}

thread_local! {
    static CONTEXTS: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
    static MODE: Cell<c_int> = const { Cell::new(0) };
}

/// Contexts this thread has pushed and not popped, and its capture mode.
pub(crate) fn thread() -> (usize, c_int) {
    (CONTEXTS.with_borrow(Vec::len), MODE.get())
}

/// Refuses a call without a context.
pub(crate) fn current() -> Result<(), c_int> {
    match CONTEXTS.with_borrow(|contexts| contexts.last().copied()) {
        Some(CONTEXT) => Ok(()),
        _ => Err(INVALID_CONTEXT),
    }
}

impl World {
    /// Refuses what no thread may call while another captures globally, unless in relaxed mode.
    pub(crate) fn unsafe_in_capture(&mut self) -> Result<(), c_int> {
        if MODE.get() != RELAXED && self.graphs.has_global_capture() {
            self.wrong.push("a global capture was disturbed".to_owned());
            return Err(CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    /// What a stream may not be asked while it captures.
    fn not_capturing(&mut self, stream: Handle) -> Result<(), c_int> {
        self.check(stream, Kind::Stream)?;
        if self.capture_of(stream).is_some() {
            self.wrong.push(format!(
                "a stream that captures was waited for: {stream:#x}"
            ));
            return Err(CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    pub(crate) fn capture_of(&self, stream: Handle) -> Option<u64> {
        self.streams.get(&stream).and_then(|stream| stream.capture)
    }
}

functions! {
    fn cuInit(flags: c_uint) |_world| {
        if flags == 0 { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cuDeviceGetCount(count: Out<c_int>) |_world| {
        count.put(1);
        Ok(())
    }
    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) |_world| {
        if ordinal != 0 {
            return Err(INVALID_DEVICE);
        }
        device.put(0);
        Ok(())
    }
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, _device: c_int) |_world| {
        uuid.put(*b"there is no GPU.");
        Ok(())
    }
    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, _device: c_int) |_world| {
        value.put(match attribute {
            // Compute capability 9.0.
            75 => 9,
            // Virtual memory management.
            102 => 1,
            _ => 0,
        });
        Ok(())
    }
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, _device: c_int) |_world| {
        context.put(CONTEXT);
        Ok(())
    }
    fn cuCtxGetCurrent(context: Out<Handle>) |_world| {
        context.put(CONTEXTS.with_borrow(|contexts| contexts.last().copied().unwrap_or(0)));
        Ok(())
    }
    fn cuCtxPushCurrent_v2(context: Handle) |_world| {
        CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
        Ok(())
    }
    fn cuCtxPopCurrent_v2(context: Out<Handle>) |_world| {
        context.put(CONTEXTS.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?);
        Ok(())
    }
    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) |_world| {
        let asked = mode.get();
        mode.put(MODE.replace(asked));
        Ok(())
    }
    fn cuStreamCreate(stream: Out<Handle>, _flags: c_uint) |world| {
        current()?;
        let handle = world.make(Kind::Stream);
        let id = handle as u64;
        world.streams.insert(handle, StreamData { id, capture: None });
        stream.put(handle);
        Ok(())
    }
    fn cuStreamDestroy_v2(stream: Handle) |world| {
        world.end(stream, Kind::Stream)?;
        world.streams.remove(&stream);
        Ok(())
    }
    fn cuStreamGetId(stream: Handle, id: Out<u64>) |world| {
        world.check(stream, Kind::Stream)?;
        id.put(world.streams.get(&stream).map_or(0, |stream| stream.id));
        Ok(())
    }
    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) |world| {
        world.check(stream, Kind::Stream)?;
        context.put(CONTEXT);
        Ok(())
    }
    fn cuStreamQuery(stream: Handle) |world| {
        world.not_capturing(stream)
    }
    fn cuStreamSynchronize(stream: Handle) |world| {
        world.not_capturing(stream)?;
        world.unsafe_in_capture()
    }
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) |world| {
        world.check(stream, Kind::Stream)?;
        world.check(event, Kind::Event)
    }
    fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) |world| {
        world.check(stream, Kind::Stream)?;
        status.put(if world.capture_of(stream).is_some() { CAPTURING } else { 0 });
        Ok(())
    }
    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<c_int>,
        id: Out<u64>,
        graph: Out<Handle>,
        _dependencies: Out<Handle>,
        _count: Out<usize>,
    ) |world| {
        world.check(stream, Kind::Stream)?;
        let capture = world.capture_of(stream);
        status.put(if capture.is_some() { CAPTURING } else { 0 });
        if let Some(capture) = capture {
            id.put(capture);
            graph.put(world.graphs.capturing(capture).ok_or(INVALID_VALUE)?);
        }
        Ok(())
    }
    fn cuEventCreate(event: Out<Handle>, _flags: c_uint) |world| {
        current()?;
        event.put(world.make(Kind::Event));
        Ok(())
    }
    fn cuEventDestroy_v2(event: Handle) |world| {
        world.end(event, Kind::Event)
    }
    fn cuEventRecord(event: Handle, stream: Handle) |world| {
        world.check(event, Kind::Event)?;
        world.check(stream, Kind::Stream)
    }
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: c_uint) |world| {
        world.check(event, Kind::Event)?;
        world.check(stream, Kind::Stream)?;
        world.add_node(stream, STREAM_CAPTURES)
    }
    fn cuEventQuery(event: Handle) |world| {
        world.check(event, Kind::Event)?;
        world.unsafe_in_capture()
    }
    fn cuEventSynchronize(event: Handle) |world| {
        world.check(event, Kind::Event)
    }
    fn cuModuleLoadData(module: Out<Handle>, _image: *const c_void) |world| {
        current()?;
        module.put(world.make(Kind::Module));
        Ok(())
    }
    fn cuModuleGetFunction(function: Out<*const c_char>, module: Handle, name: *const c_char) |world| {
        world.check(module, Kind::Module)?;
        // Functions are their names, which are constants of the caller.
        function.put(name);
        Ok(())
    }
    fn cuFuncGetName(name: Out<*const c_char>, function: *const c_char) |_world| {
        name.put(function);
        Ok(())
    }
    fn cuLaunchKernel(
        function: *const c_char,
        _gx: c_uint,
        _gy: c_uint,
        _gz: c_uint,
        _bx: c_uint,
        _by: c_uint,
        _bz: c_uint,
        _shared: c_uint,
        stream: Handle,
        _parameters: *mut *mut c_void,
        _extra: *mut *mut c_void,
    ) |world| {
        current()?;
        world.check(stream, Kind::Stream)?;
        world.add_node(stream, function)
    }
}

/// The text of a code.
#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: c_int, text: Out<*const c_char>) -> c_int {
    let known: &CStr = match code {
        INVALID_VALUE => c"invalid argument",
        2 => c"out of memory",
        _ => c"an error that was planted",
    };
    text.put(known.as_ptr());
    0
}
