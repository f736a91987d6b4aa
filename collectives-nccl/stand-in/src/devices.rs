//! Devices, contexts, and the capture modes of threads.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::world::{Handle, INVALID_CONTEXT, INVALID_VALUE, Out, World, functions};

/// Devices there are.
const COUNT: c_int = 64;
/// The primary context of the first device; those of the others follow.
const CONTEXT: Handle = 0x5a00_0000_0001;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;
/// `CUDA_ERROR_INVALID_DEVICE`.
const INVALID_DEVICE: c_int = 101;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub(crate) const CAPTURE_UNSUPPORTED: c_int = 900;

thread_local! {
    static CONTEXTS: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
    static MODE: Cell<c_int> = const { Cell::new(0) };
}

/// Contexts this thread has pushed and not popped, and its capture mode.
pub(crate) fn thread() -> (usize, c_int) {
    (CONTEXTS.with_borrow(Vec::len), MODE.get())
}

/// The primary context of a device.
pub(crate) fn context_of(device: usize) -> Handle {
    CONTEXT + device
}

/// The device whose context is current; a call without one is refused.
pub(crate) fn current() -> Result<usize, c_int> {
    let context = CONTEXTS.with_borrow(|contexts| contexts.last().copied());
    let device = context.and_then(|context| context.checked_sub(CONTEXT));
    device.ok_or(INVALID_CONTEXT)
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
}

functions! {
    fn cuInit(flags: c_uint) |_world| {
        if flags == 0 { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cuDeviceGetCount(count: Out<c_int>) |_world| {
        count.put(COUNT);
        Ok(())
    }
    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) |_world| {
        if !(0..COUNT).contains(&ordinal) {
            return Err(INVALID_DEVICE);
        }
        device.put(ordinal);
        Ok(())
    }
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, _device: c_int) |_world| {
        // The same for all: they share the one machine, as ranks do a GPU.
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
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) |_world| {
        let device = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
        context.put(context_of(device));
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
