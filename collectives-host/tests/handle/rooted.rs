//! The host backend as one that has symmetric kernels for rooted operations too.

use std::sync::Arc;
use std::time::Duration;

use collectives_core::addr::{Addr, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::collective::{Collective, OpKind};
use collectives_core::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, Result};
use collectives_core::path::{PathRule, Sides};
use collectives_core::submission::Submission;
use collectives_core::symmetric::SymmetricMemory;

/// A communicator whose table says that broadcasts and reductions to a root want both sides in windows.
#[derive(Debug)]
pub(crate) struct Rooted<C> {
    inner: C,
    capabilities: Capabilities,
}

impl<C: Communicator> Rooted<C> {
    pub(crate) fn around(inner: C) -> Self {
        let mut capabilities = inner.capabilities().clone();
        let all_reduce = capabilities.paths.0[0].clone();
        for (op, reductions) in [
            (OpKind::Broadcast, &[][..]),
            (OpKind::Reduce, all_reduce.reductions),
        ] {
            capabilities.paths.0.push(PathRule {
                op,
                reductions,
                needs: Sides::Both,
                ..all_reduce.clone()
            });
        }
        Self {
            inner,
            capabilities,
        }
    }
}

impl<C: Communicator> Communicator for Rooted<C> {
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

    fn window_of(&self, addr: Addr, bytes: usize) -> Option<WindowSlice> {
        self.inner.window_of(addr, bytes)
    }

    fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory> {
        self.inner.symmetric()
    }

    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Communicator>>> {
        self.inner.split(color, key)
    }

    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }

    fn shutdown(&mut self) -> Result<Deferred> {
        self.inner.shutdown()
    }
}
