//! The toy's device: host memory, and streams that run everything at once.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr;
use std::sync::Arc;

use collectives_core::addr::Addr;
use collectives_core::device::Device;
use collectives_core::error::{CaptureFault, Error, ErrorKind, Misuse, Result};
use collectives_core::graph::Graphs;
use collectives_core::memory::Memory;
use collectives_core::rank::{CaptureId, DeviceId, Rank, StreamId};
use collectives_core::stream::{Fence, FenceHandle, Stream, StreamHandle, StreamRef};

/// One rank's device.
#[derive(Debug)]
pub(crate) struct ToyDevice {
    id: DeviceId,
}

/// A stream has an identity and nothing else, since work never waits in it.
#[derive(Debug)]
struct ToyStream {
    id: StreamId,
    device: DeviceId,
}

// SAFETY: Identities are fresh, and there is no native stream that could go.
unsafe impl StreamHandle for ToyStream {
    fn id(&self) -> StreamId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn raw(&self) -> usize {
        0
    }
}

/// The hook of a memory: it was allocated with this layout, and its last owner is gone.
fn free(addr: Addr, layout: Layout) {
    // SAFETY: It is the hook of one allocation, which runs once.
    unsafe { dealloc(addr.as_ptr(), layout) };
}

/// Everything before a fence has run when it is recorded.
#[derive(Debug)]
struct ToyFence;

impl FenceHandle for ToyFence {}

impl ToyDevice {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            id: DeviceId::fresh(),
        })
    }

    fn check(&self, stream: &StreamRef) -> Result<()> {
        if stream.device() == self.id {
            return Ok(());
        }
        Err(Misuse::WrongDevice { what: "the stream" }.into())
    }
}

// SAFETY: Memory is freed by its hook and not before; nothing can be captured, so no graph owns
// anything; copies touch the ranges they are given and have ended when they return.
unsafe impl Device for ToyDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn backend(&self) -> &'static str {
        "toy"
    }

    fn is_host(&self) -> bool {
        true
    }

    fn create_stream(&self) -> Result<Stream> {
        Ok(Stream::new(Arc::new(ToyStream {
            id: StreamId::fresh(),
            device: self.id,
        })))
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        let out_of_memory = || {
            let rank = Rank(0);
            Error::new(ErrorKind::OutOfMemory { rank, bytes })
        };
        let layout = Layout::from_size_align(bytes.max(1), 256).map_err(|_| out_of_memory())?;
        // SAFETY: The layout is not empty.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return Err(out_of_memory());
        }
        let addr = Addr::from_ptr(start);
        // SAFETY: The hook frees what was just allocated, and runs once, after the last owner.
        // Streams run at once, so nothing is in flight then.
        Ok(unsafe { Memory::new(self.id, addr, bytes, move |_| free(addr, layout)) })
    }

    fn capture_state(&self, stream: &StreamRef) -> Result<Option<CaptureId>> {
        self.check(stream)?;
        Ok(None)
    }

    fn retain(&self, _stream: &StreamRef, _memory: Memory) -> Result<()> {
        Err(Error::capture(CaptureFault::NotCapturing))
    }

    unsafe fn copy(&self, dst: Addr, src: Addr, bytes: usize, stream: &StreamRef) -> Result<()> {
        self.check(stream)?;
        // SAFETY: By the caller.
        unsafe { ptr::copy_nonoverlapping(src.as_ptr::<u8>(), dst.as_ptr::<u8>(), bytes) };
        Ok(())
    }

    unsafe fn write(&self, dst: Addr, src: &[u8], stream: &StreamRef) -> Result<()> {
        let from = Addr::from_ptr(src.as_ptr().cast_mut());
        // SAFETY: By the caller, and `src` is a slice.
        unsafe { self.copy(dst, from, src.len(), stream) }
    }

    unsafe fn read(&self, dst: &mut [u8], src: Addr, stream: &StreamRef) -> Result<()> {
        // SAFETY: By the caller, and `dst` is a slice.
        unsafe { self.copy(Addr::from_ptr(dst.as_mut_ptr()), src, dst.len(), stream) }
    }

    fn order(&self, earlier: &StreamRef, later: &StreamRef) -> Result<()> {
        self.check(earlier)?;
        self.check(later)
    }

    fn create_fence(&self) -> Result<Fence> {
        Ok(Fence::new(Arc::new(ToyFence)))
    }

    fn wait(&self, _fence: &Fence, stream: &StreamRef) -> Result<()> {
        self.check(stream)
    }

    fn record(&self, _fence: &Fence, stream: &StreamRef) -> Result<()> {
        self.check(stream)
    }

    fn record_eager(&self, _fence: &Fence, stream: &StreamRef) -> Result<()> {
        self.check(stream)
    }

    fn query(&self, stream: &StreamRef) -> Result<bool> {
        self.check(stream)?;
        Ok(true)
    }

    fn synchronize(&self, stream: &StreamRef) -> Result<()> {
        self.check(stream)
    }

    fn collect(&self) {}

    fn graphs(&self) -> Option<&dyn Graphs> {
        None
    }
}
