//! A GPU: streams, memory, copies and order.

pub(crate) mod captures;
pub(crate) mod event;
pub(crate) mod garbage;
mod graph;
pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod vmm;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use collectives_core::addr::Addr;
use collectives_core::device::Device;
use collectives_core::error::{CaptureFault, Error, ErrorKind, Misuse, Result, Unsupported};
use collectives_core::graph::Graphs;
use collectives_core::memory::Memory;
use collectives_core::rank::{CaptureId, DeviceId, Rank};
use collectives_core::stream::{Fence, Stream, StreamRef};

use crate::driver::{
    Code, Context, DevicePointer, Driver, EVENT_DISABLE_TIMING, EVENT_EXTERNAL, RawContext,
    RawEvent, RawStream, attribute, driver, driver_error,
};
use crate::error::BACKEND;
use event::{CudaFence, fence_of};
use garbage::{Item, ready};
use shared::Shared;
use stream::{CudaStream, stream_of};
use vmm::{Blocks, Chunks};

pub(crate) use graph::{capture, end_capture, kernel_names};

/// One GPU of this process, through its primary context, which other libraries share.
///
/// Calls work on any thread, leave the caller's context current and disturb no capture of another
/// thread. Once opened it lasts as long as the process, as the context does.
#[derive(Debug)]
pub struct CudaDevice {
    pub(crate) shared: Arc<Shared>,
}

impl CudaDevice {
    /// The GPU with this ordinal among those the process sees; the same device for the same
    /// ordinal.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) without a CUDA driver or with one that is too old,
    /// and [`Native`](ErrorKind::Native) when there is no such GPU.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        static OPEN: Mutex<BTreeMap<usize, Arc<CudaDevice>>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.get(&ordinal) {
            return Ok(Arc::clone(device));
        }
        let device = Arc::new(
            Self::make(ordinal).map_err(|error| error.during("open").on_backend(BACKEND))?,
        );
        open.insert(ordinal, Arc::clone(&device));
        Ok(device)
    }

    /// GPUs the process sees; none without a driver.
    #[must_use]
    pub fn count() -> usize {
        let mut count = 0;
        let counted = driver().and_then(|driver| {
            // SAFETY: `cuDeviceGetCount` (cuda.h, "Device Management") writes one number.
            unsafe { driver.device_get_count(&raw mut count) }
        });
        counted.map_or(0, |()| usize::try_from(count).unwrap_or(0))
    }

    /// A stream that somebody else made, a framework's for example.
    ///
    /// Captures may begin on it without our knowing. Each eager use of it is marked with an event,
    /// so that the first capture that claims a slot can wait for it.
    ///
    /// # Errors
    ///
    /// [`Misuse::WrongDevice`] for a stream of another context.
    ///
    /// # Safety
    ///
    /// `stream` is a valid `CUstream`, also `CU_STREAM_LEGACY` or `CU_STREAM_PER_THREAD` by its
    /// constant, which outlives its last use through the result and everything that was enqueued
    /// through it, and no capture begins on it while another thread enqueues on the result.
    pub unsafe fn stream_from_raw(&self, stream: *mut c_void) -> Result<Stream> {
        // SAFETY: By the caller.
        let stream = unsafe { CudaStream::foreign(&self.shared, RawStream(stream)) }?;
        Ok(Stream::new(Arc::new(stream)))
    }

    /// Free and total bytes of the GPU, whoever uses them.
    ///
    /// # Errors
    ///
    /// When the device has failed.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let _current = self.shared.context.enter_relaxed()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: `cuMemGetInfo` (cuda.h, "Memory Management") writes two numbers.
        unsafe { self.driver().mem_get_info(&raw mut free, &raw mut total) }?;
        Ok((free, total))
    }

    /// Bytes that symmetric memory maps on this device, in whole granules.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.shared.blocks.as_ref().map_or(0, Blocks::mapped_bytes)
    }

    /// Bytes of ordinary memory allocated through this device and not freed yet.
    #[must_use]
    pub fn ordinary_bytes(&self) -> usize {
        self.shared.ordinary.load(Ordering::Relaxed)
    }

    /// Things whose last owner is gone and that wait for work which may still use them; see
    /// [`Device::collect`].
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.shared.garbage.len()
    }

    fn make(ordinal: usize) -> Result<Self> {
        let driver = driver()?;
        let ordinal = c_int::try_from(ordinal)
            .map_err(|_| Misuse::Other(format!("there is no GPU {ordinal}")))?;
        let (mut device, mut uuid, mut raw) = (0, [0; 16], RawContext::NULL);
        // SAFETY: `cuDeviceGet` (cuda.h, "Device Management") writes a number.
        unsafe { driver.device_get(&raw mut device, ordinal) }?;
        // SAFETY: `cuDeviceGetUuid` (same section) writes 16 bytes.
        unsafe { driver.device_get_uuid(&raw mut uuid, device) }?;
        let attribute = |which| -> Result<c_int> {
            let mut value = 0;
            // SAFETY: `cuDeviceGetAttribute` (same section) writes a number.
            unsafe { driver.device_get_attribute(&raw mut value, which, device) }?;
            Ok(value)
        };
        let compute =
            attribute(attribute::COMPUTE_MAJOR)? * 10 + attribute(attribute::COMPUTE_MINOR)?;
        let has = |which| attribute(which).is_ok_and(|value| value != 0);
        // SAFETY: `cuDevicePrimaryCtxRetain` (cuda.h, "Primary Context Management") writes a
        // handle, which stays valid because it is never released.
        unsafe { driver.primary_context_retain(&raw mut raw, device) }?;
        let context = Context { driver, raw };
        let current = context.enter_relaxed()?;
        let blocks = match has(attribute::VMM) {
            true => Blocks::new(
                context,
                device,
                has(attribute::FABRIC),
                has(attribute::RDMA_WITH_VMM),
            ),
            false => {
                let text = "this GPU has no virtual memory management".to_owned();
                Err(Error::unsupported(Unsupported::SymmetricMemory(text)))
            }
        };
        drop(current);
        let compute = u32::try_from(compute).unwrap_or(0);
        let shared = Shared::new(context, uuid, compute, blocks);
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    fn driver(&self) -> &'static Driver {
        self.shared.driver()
    }

    /// Symmetric memory of at least `bytes` bytes, mapping `first` first.
    pub(crate) fn allocate_symmetric(
        &self,
        bytes: usize,
        first: Option<Chunks>,
        rank: Rank,
    ) -> Result<Memory> {
        self.shared.collect();
        let blocks = self.shared.blocks()?;
        let _current = self.shared.context.enter_relaxed()?;
        let block = blocks
            .create(bytes, first)
            .map_err(|error| out_of_memory(error, bytes, rank))?;
        let base = address(block.base());
        let length = block.bytes();
        let shared = Arc::clone(&self.shared);
        // SAFETY: The block is mapped for reading and writing until it is unmapped, which the
        // garbage does after the hook queued it, and nobody else knows the range.
        Ok(unsafe {
            Memory::new(self.shared.id, base, length, move |after| {
                if let Ok(blocks) = &shared.blocks {
                    blocks.forget(base);
                }
                shared.garbage.push(Item::Block(block), after);
            })
        })
    }
}

/// A device address as one of ours.
pub(crate) fn address(pointer: DevicePointer) -> Addr {
    let value = usize::try_from(pointer).unwrap_or(0);
    Addr::from_ptr(std::ptr::with_exposed_provenance_mut::<u8>(value))
}

fn pointer(addr: Addr) -> DevicePointer {
    addr.value() as DevicePointer
}

/// Turns the driver's "out of memory" into ours.
fn out_of_memory(error: Error, bytes: usize, rank: Rank) -> Error {
    match driver_error(&error) {
        Some(Code::OUT_OF_MEMORY) => {
            Error::new(ErrorKind::OutOfMemory { rank, bytes }).caused_by(error)
        }
        _ => error,
    }
}

fn blocks_in_capture(what: &'static str) -> Error {
    Misuse::BlocksInCapture { what }.into()
}

impl CudaDevice {
    fn wait_raw(&self, stream: &CudaStream, event: RawEvent, flags: u32) -> Result<()> {
        // SAFETY: `cuStreamWaitEvent` (cuda.h, "Stream Management"): both handles are valid.
        unsafe { self.driver().stream_wait_event(stream.raw, event, flags) }
    }

    fn order_between(
        &self,
        earlier: &CudaStream,
        later: &CudaStream,
        event: RawEvent,
    ) -> Result<()> {
        // SAFETY: `cuEventRecord` (cuda.h, "Event Management"): both handles are valid.
        unsafe { self.driver().event_record(event, earlier.raw) }?;
        self.wait_raw(later, event, 0)
    }

    /// Copies between host and device, and waits.
    fn transfer(
        &self,
        stream: &StreamRef,
        what: &'static str,
        copy: impl FnOnce(&Driver, RawStream) -> Result<()>,
    ) -> Result<()> {
        let stream = stream_of(self.shared.id, stream)?;
        stream.health()?;
        let _current = self.shared.context.enter_relaxed()?;
        if stream.capturing()?.is_some() {
            return Err(blocks_in_capture(what));
        }
        let copied = copy(self.driver(), stream.raw);
        // SAFETY: `cuStreamSynchronize` (cuda.h, "Stream Management"): the stream is valid and
        // does not capture. It also waits where the copy failed half way.
        let waited = unsafe { self.driver().stream_synchronize(stream.raw) };
        copied.and(waited)?;
        stream.health()
    }
}

// SAFETY: Memory is freed by the garbage, after its last owner is gone and the work of its last
// user has finished; graphs own what is retained through user objects of the driver, which live as
// long as the graph, its clones and its executables; streams run in order (CUDA programming guide,
// "Streams"); `synchronize` waits in the driver before it looks for errors.
unsafe impl Device for CudaDevice {
    fn id(&self) -> DeviceId {
        self.shared.id
    }

    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn is_host(&self) -> bool {
        false
    }

    fn create_stream(&self) -> Result<Stream> {
        self.shared.collect();
        Ok(Stream::new(Arc::new(CudaStream::create(&self.shared)?)))
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        self.shared.collect();
        let _current = self.shared.context.enter_relaxed()?;
        let mut raw = 0;
        // SAFETY: `cuMemAlloc` (cuda.h, "Memory Management") writes an address, aligned to at
        // least 256 bytes (CUDA programming guide, "Device Memory Accesses").
        unsafe { self.driver().mem_alloc(&raw mut raw, bytes.max(1)) }
            .map_err(|error| out_of_memory(error, bytes, Rank(0)))?;
        let shared = Arc::clone(&self.shared);
        shared.ordinary.fetch_add(bytes, Ordering::Relaxed);
        // SAFETY: The range is ours until `mem_free`, which the garbage calls once.
        Ok(unsafe {
            Memory::new(self.shared.id, address(raw), bytes, move |after| {
                shared.garbage.push(Item::Memory(raw, bytes), after);
            })
        })
    }

    #[inline]
    fn capture_state(&self, stream: &StreamRef) -> Result<Option<CaptureId>> {
        let stream = stream_of(self.shared.id, stream)?;
        stream.health()?;
        Ok(stream.capturing()?.map(|capturing| capturing.id))
    }

    fn retain(&self, stream: &StreamRef, memory: Memory) -> Result<()> {
        let stream = stream_of(self.shared.id, stream)?;
        let capturing = stream
            .capturing()?
            .ok_or_else(|| Error::capture(CaptureFault::NotCapturing))?;
        let captures = &self.shared.captures;
        captures.own(self.driver(), capturing, memory)
    }

    unsafe fn copy(&self, dst: Addr, src: Addr, bytes: usize, stream: &StreamRef) -> Result<()> {
        let stream = stream_of(self.shared.id, stream)?;
        stream.health()?;
        let capturing = stream.capturing()?.is_some();
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.shared.context.enter()?;
        // SAFETY: `cuMemcpyDtoDAsync` (cuda.h, "Memory Management"): the ranges are valid and do
        // not overlap, by the caller.
        unsafe {
            self.driver()
                .copy_device_to_device(pointer(dst), pointer(src), bytes, stream.raw)
        }?;
        if stream.is_foreign() && !capturing {
            stream.mark()?;
        }
        Ok(())
    }

    unsafe fn write(&self, dst: Addr, src: &[u8], stream: &StreamRef) -> Result<()> {
        self.transfer(stream, "write", |driver, stream| {
            if src.is_empty() {
                return Ok(());
            }
            // SAFETY: `cuMemcpyHtoDAsync` (cuda.h, "Memory Management"): `dst` is valid by the
            // caller, and `src` is borrowed until `transfer` has waited.
            unsafe {
                driver.copy_host_to_device(pointer(dst), src.as_ptr().cast(), src.len(), stream)
            }
        })
    }

    unsafe fn read(&self, dst: &mut [u8], src: Addr, stream: &StreamRef) -> Result<()> {
        let (to, bytes) = (dst.as_mut_ptr(), dst.len());
        self.transfer(stream, "read", |driver, stream| {
            if bytes == 0 {
                return Ok(());
            }
            // SAFETY: `cuMemcpyDtoHAsync` (cuda.h, "Memory Management"): as for `write`, the other
            // way round.
            unsafe { driver.copy_device_to_host(to.cast(), pointer(src), bytes, stream) }
        })
    }

    fn order(&self, earlier: &StreamRef, later: &StreamRef) -> Result<()> {
        let (earlier, later) = (
            stream_of(self.shared.id, earlier)?,
            stream_of(self.shared.id, later)?,
        );
        let (first, second) = (earlier.capturing()?, later.capturing()?);
        if earlier.raw == later.raw {
            return Ok(());
        }
        let isolation = || Error::capture(CaptureFault::Isolation).during("order");
        let _current = self.shared.context.enter()?;
        match (first, second) {
            // The wait takes the event as it is now, so one event for each stream will do.
            (None, None) => self.order_between(earlier, later, earlier.order_event()),
            (Some(one), Some(other)) if one.id == other.id => {
                // An event recorded in a capture must not be used outside, so it is one of its own.
                let mut event = RawEvent::NULL;
                let driver = self.driver();
                // SAFETY: `cuEventCreate` (cuda.h, "Event Management") writes one handle.
                unsafe { driver.event_create(&raw mut event, EVENT_DISABLE_TIMING) }?;
                let ordered = self.order_between(earlier, later, event);
                self.shared.garbage.push(Item::Event(event), None);
                ordered
            }
            _ => Err(isolation()),
        }
    }

    fn create_fence(&self) -> Result<Fence> {
        Ok(Fence::new(Arc::new(CudaFence::new(&self.shared)?)))
    }

    fn wait(&self, fence: &Fence, stream: &StreamRef) -> Result<()> {
        let cuda = fence_of(self.shared.id, fence)?;
        let stream = stream_of(self.shared.id, stream)?;
        let capturing = stream.capturing()?;
        let _current = self.shared.context.enter()?;
        let flags = match capturing {
            Some(capturing) => {
                self.keep_fence(capturing, fence, cuda)?;
                EVENT_EXTERNAL
            }
            None => 0,
        };
        self.wait_raw(stream, cuda.event.raw, flags)
    }

    fn record(&self, fence: &Fence, stream: &StreamRef) -> Result<()> {
        let cuda = fence_of(self.shared.id, fence)?;
        let stream = stream_of(self.shared.id, stream)?;
        let capturing = stream.capturing()?;
        let _current = self.shared.context.enter()?;
        let (event, driver) = (cuda.event.raw, self.driver());
        match capturing {
            Some(capturing) => {
                self.keep_fence(capturing, fence, cuda)?;
                // SAFETY: `cuEventRecordWithFlags` (cuda.h, "Event Management"): both handles are
                // valid, and the graph owns the event.
                unsafe { driver.event_record_with_flags(event, stream.raw, EVENT_EXTERNAL) }
            }
            // SAFETY: `cuEventRecord` (same section): both handles are valid.
            None => unsafe { driver.event_record(event, stream.raw) },
        }
    }

    fn record_eager(&self, fence: &Fence, stream: &StreamRef) -> Result<()> {
        let cuda = fence_of(self.shared.id, fence)?;
        let on = stream_of(self.shared.id, stream)?;
        if matches!(on.capturing(), Ok(None)) {
            return self.record(fence, stream);
        }
        match on.tail() {
            Some(tail) => self.shared.record_behind(cuda.event.raw, tail),
            // Nothing was enqueued before the capture.
            None => Ok(()),
        }
    }

    fn query(&self, stream: &StreamRef) -> Result<bool> {
        let stream = stream_of(self.shared.id, stream)?;
        if stream.capturing()?.is_some() {
            return Err(blocks_in_capture("query"));
        }
        let _current = self.shared.context.enter_relaxed()?;
        // SAFETY: `cuStreamQuery` (cuda.h, "Stream Management"): the stream is valid and does not
        // capture.
        let finished = ready(unsafe { self.driver().stream_query(stream.raw) })?;
        stream.health()?;
        Ok(finished)
    }

    fn synchronize(&self, stream: &StreamRef) -> Result<()> {
        let stream = stream_of(self.shared.id, stream)?;
        let _current = self.shared.context.enter_relaxed()?;
        if !matches!(stream.capturing(), Ok(None)) {
            if let Some(tail) = stream.tail() {
                // SAFETY: `cuEventSynchronize` (cuda.h, "Event Management"): the event is valid.
                unsafe { self.driver().event_synchronize(tail) }?;
            }
            stream.health()?;
            return Err(blocks_in_capture("synchronize"));
        }
        // SAFETY: `cuStreamSynchronize` (cuda.h, "Stream Management"): the stream is valid and
        // does not capture.
        unsafe { self.driver().stream_synchronize(stream.raw) }?;
        stream.health()
    }

    fn collect(&self) {
        self.shared.collect();
    }

    fn graphs(&self) -> Option<&dyn Graphs> {
        Some(self)
    }
}

impl CudaDevice {
    /// Makes the graph own the event, which its nodes refer to.
    fn keep_fence(
        &self,
        capturing: stream::Capturing,
        fence: &Fence,
        cuda: &CudaFence,
    ) -> Result<()> {
        let key = std::ptr::from_ref(cuda).addr();
        let captures = &self.shared.captures;
        captures.keep(self.driver(), capturing, key, fence.clone())
    }
}
