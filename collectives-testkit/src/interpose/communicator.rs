//! A communicator on another view of its device, with the planted bug of its layer.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use collectives_core::addr::{Addr, WindowId, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::collective::Collective;
use collectives_core::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, Result};
use collectives_core::layered::symmetric_of;
use collectives_core::memory::Memory;
use collectives_core::rank::Rank;
use collectives_core::submission::Submission;
use collectives_core::symmetric::SymmetricMemory;

use crate::planted::communicator::Bugged;

/// The communicator inside, on the device given.
#[derive(Debug)]
pub(crate) struct OnDevice {
    pub(crate) inner: ManuallyDrop<Box<dyn Communicator>>,
    pub(crate) device: Arc<dyn Device>,
    /// That device without planted bugs.
    pub(crate) seen: Arc<dyn Device>,
    pub(crate) bugged: Bugged,
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        self.bugged.before_drop(&**self.inner);
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

    /// A planted bug may change calls and copies, and its device says anything of a stream.
    unsafe fn enqueue(&mut self, submission: &Submission<'_>) -> Result<()> {
        let stream = submission.stream;
        let capture = self.inner.device().capture_state(stream)?;
        let folded = self
            .bugged
            .folds(&mut **self.inner, &*self.seen, submission)?;
        let left = Submission::on(stream, capture);
        let submission = match folded {
            true => &Submission {
                copies_out: submission.copies_out,
                ..left
            },
            false => submission,
        };
        let copies_in = self
            .bugged
            .copies(&*self.seen, submission.copies_in, stream)?;
        let changed =
            self.bugged
                .enqueue(&mut **self.inner, capture.is_some(), submission.calls)?;
        let copies_out = self
            .bugged
            .copies(&*self.seen, submission.copies_out, stream)?;
        let submission = Submission {
            copies_in: &copies_in,
            calls: changed.as_deref().unwrap_or(submission.calls),
            copies_out: &copies_out,
            capture,
            ..*submission
        };
        // SAFETY: By the caller; a planted bug names no bytes that were not named before, and the device
        // inside was asked about the capture.
        let outcome = unsafe { self.inner.enqueue(&submission) };
        self.bugged
            .enqueued(&**self.inner, &*self.seen, &submission, outcome)
    }

    fn refused(&mut self, calls: &[Collective<'_>], error: Error) -> Error {
        self.inner.refused(calls, error)
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
                seen: Arc::clone(&self.seen),
                bugged: self.bugged.for_child(),
            })
        }))
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
