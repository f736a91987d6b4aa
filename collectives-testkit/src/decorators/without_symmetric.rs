//! Hides symmetric memory, as a platform without it would.

use std::sync::Arc;
use std::time::Duration;

use collectives_core::addr::{Addr, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::collective::Collective;
use collectives_core::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, Result, Unsupported};
use collectives_core::submission::Submission;
use collectives_core::symmetric::SymmetricMemory;

/// A communicator that has no symmetric memory, whatever the one inside has.
#[derive(Debug)]
pub struct WithoutSymmetric<C> {
    inner: C,
    capabilities: Capabilities,
}

impl<C: Communicator> WithoutSymmetric<C> {
    /// Hides the symmetric memory of a communicator.
    pub fn around(inner: C) -> Self {
        let mut capabilities = inner.capabilities().clone();
        let why = "hidden by a decorator of the kit".to_owned();
        capabilities.symmetric = Err(Unsupported::SymmetricMemory(why));
        Self {
            inner,
            capabilities,
        }
    }
}

impl<C: Communicator> Communicator for WithoutSymmetric<C> {
    fn info(&self) -> &CommInfo {
        self.inner.info()
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.inner.device()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    unsafe fn enqueue(&mut self, submission: &Submission<'_>) -> Result<()> {
        // SAFETY: The caller's promise is passed on unchanged.
        unsafe { self.inner.enqueue(submission) }
    }

    fn refused(&mut self, calls: &[Collective<'_>], error: Error) -> Error {
        self.inner.refused(calls, error)
    }

    fn agree(&mut self, mine: &Record, deadline: Duration) -> Result<Vec<Record>> {
        self.inner.agree(mine, deadline)
    }

    fn window_of(&self, _addr: Addr, _bytes: usize) -> Option<WindowSlice> {
        None
    }

    fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory> {
        None
    }

    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Communicator>>> {
        let child = self.inner.split(color, key)?;
        Ok(child
            .map(|child| -> Box<dyn Communicator> { Box::new(WithoutSymmetric::around(child)) }))
    }

    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }

    fn shutdown(&mut self) -> Result<Deferred> {
        self.inner.shutdown()
    }
}
