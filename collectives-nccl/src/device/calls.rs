//! What the contract asks of a device: streams, memory, copies and order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use collectives_core::addr::Addr;
use collectives_core::device::Device;
use collectives_core::error::{CaptureFault, Error, Misuse, Result};
use collectives_core::graph::Graphs;
use collectives_core::memory::Memory;
use collectives_core::rank::{CaptureId, DeviceId, Rank};
use collectives_core::stream::{Fence, Stream, StreamRef};
use collectives_core::submission::Copy;

use super::event::{CudaFence, fence_of};
use super::garbage::{Item, ready};
use super::stream::{Capturing, CudaStream, stream_of};
use super::{CudaDevice, address, out_of_memory, pointer};
use crate::driver::{Driver, EVENT_DISABLE_TIMING, EVENT_EXTERNAL, RawEvent, RawStream};
use crate::error::BACKEND;

fn blocks_in_capture(what: &'static str) -> Error {
    Misuse::BlocksInCapture { what }.into()
}

impl CudaDevice {
    fn wait_raw(&self, stream: &CudaStream, event: RawEvent, flags: u32) -> Result<()> {
        // SAFETY: `cuStreamWaitEvent` (cuda.h, "Stream Management"): both handles are valid.
        unsafe { self.driver().stream_wait_event(stream.raw, event, flags) }
    }

    pub(super) fn order_between(
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

    #[inline]
    unsafe fn copy(&self, dst: Addr, src: Addr, bytes: usize, stream: &StreamRef) -> Result<()> {
        let stream = stream_of(self.shared.id, stream)?;
        stream.health()?;
        let marks = stream.is_foreign() && stream.capturing()?.is_none();
        let _current = self.shared.context.enter()?;
        // SAFETY: By the caller.
        unsafe { stream.copy(&[Copy { dst, src, bytes }]) }?;
        if marks {
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
    fn keep_fence(&self, capturing: Capturing, fence: &Fence, cuda: &CudaFence) -> Result<()> {
        let key = std::ptr::from_ref(cuda).addr();
        let captures = &self.shared.captures;
        captures.keep(self.driver(), capturing, key, fence.clone())
    }
}
