//! A communicator on another view of its device, with the planted bug of its layer.
#![deny(clippy::missing_trait_methods)]

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use collectives_core::addr::{Addr, WindowId, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::collective::Collective;
use collectives_core::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::layered::symmetric_of;
use collectives_core::memory::Memory;
use collectives_core::rank::Rank;
use collectives_core::scratch::Site;
use collectives_core::stream::StreamRef;
use collectives_core::symmetric::SymmetricMemory;
use collectives_core::work::Work;

use crate::planted::communicator::Bugged;

/// The communicator inside, on the device given.
#[derive(Debug)]
pub(crate) struct OnDevice {
    pub(crate) inner: ManuallyDrop<Box<dyn Communicator>>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) bugged: Bugged,
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        if !self.bugged.is_unheard() {
            // SAFETY: This is the only place that drops it, and nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

impl Communicator for OnDevice {
    fn info(&self) -> &CommInfo {
        self.inner.info()
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    unsafe fn enqueue(&mut self, ops: &[Collective<'_>], stream: &StreamRef) -> Result<()> {
        let changed = self
            .bugged
            .enqueue(&mut **self.inner, &*self.device, ops, stream)?;
        let ops = changed.as_deref().unwrap_or(ops);
        // SAFETY: By the caller; a planted bug names no bytes that were not named before.
        let outcome = unsafe { self.inner.enqueue(ops, stream) };
        self.bugged
            .enqueued(&**self.inner, &*self.device, ops, stream, outcome)
    }

    /// A planted bug may change operations, and its device may copy wrongly and say anything of a stream.
    unsafe fn enqueue_checked(&mut self, work: &Work<'_, '_>, site: Site<'_>) -> Result<()> {
        // SAFETY: By the caller.
        unsafe { work.enqueue_each(self, site.stream) }
    }

    fn agree(&mut self, mine: &Record, deadline: Duration) -> Result<Vec<Record>> {
        self.bugged.agree(&mut **self.inner, mine, deadline)
    }

    fn window_of(&self, addr: Addr, bytes: usize) -> Option<WindowSlice> {
        self.bugged.window_of(self.inner.window_of(addr, bytes))
    }

    fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory> {
        match self.inner.symmetric() {
            Some(_) => Some(self),
            None => None,
        }
    }

    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Communicator>>> {
        let color = self.bugged.color(color);
        let child = self.inner.split(color, key)?;
        Ok(child.map(|inner| -> Box<dyn Communicator> {
            Box::new(Self {
                inner: ManuallyDrop::new(inner),
                device: Arc::clone(&self.device),
                bugged: self.bugged.for_child(),
            })
        }))
    }

    fn insist(&mut self, on: bool) -> bool {
        self.inner.insist(on)
    }

    fn abort_handle(&self) -> AbortHandle {
        self.bugged.abort_handle(self.inner.abort_handle())
    }

    fn shutdown(&mut self) -> Result<Deferred> {
        self.bugged.shutdown(&mut **self.inner)
    }
}

impl SymmetricMemory for OnDevice {
    fn allocate(&mut self, bytes: usize, extend: Option<WindowId>) -> Result<Memory> {
        self.bugged.allocate(&mut **self.inner, bytes, extend)
    }

    fn register(&mut self, memory: &Memory) -> Result<WindowId> {
        self.bugged.register(&mut **self.inner, memory)
    }

    fn retire(&mut self, window: WindowId) -> Result<()> {
        self.bugged.retire(&mut **self.inner, window)
    }

    fn extensible(&mut self) -> Result<usize> {
        self.bugged.extensible(&mut **self.inner)
    }

    fn peer_address(&mut self, window: WindowId, rank: Rank, offset: usize) -> Result<Addr> {
        symmetric_of(&mut **self.inner)?.peer_address(window, rank, offset)
    }

    fn window_count(&mut self) -> usize {
        self.inner
            .symmetric()
            .map_or(0, |symmetric| symmetric.window_count())
    }
}
