//! A rank's presence in its communicator, and what its absence does to the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use collectives_core::communicator::Abort;
use collectives_core::error::Result;
use collectives_core::rank::Process;

use crate::endpoint::Endpoint;
use crate::tickets::Tickets;

/// Why a rank is gone that drops its communicator now.
pub(crate) fn cause_of_drop() -> &'static str {
    match thread::panicking() {
        true => "it panicked",
        false => "it dropped the communicator without shutting it down",
    }
}

/// Held by the communicator and by work that is enqueued or being launched, not by graphs.
///
/// When the last one goes and the communicator was not shut down, peers may wait for this rank for
/// ever, so that counts as its failure. An operation in which everybody has arrived still ends well.
#[derive(Debug)]
pub(crate) struct Presence {
    endpoint: Arc<Endpoint>,
    process: Process,
}

impl Presence {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self {
            endpoint,
            process: Process::this(),
        }
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }
}

impl AsRef<Tickets> for Arc<Presence> {
    fn as_ref(&self) -> &Tickets {
        self.endpoint.tickets()
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if !self.process.is_this() {
            return;
        }
        if self.endpoint.close() && self.endpoint.fabric.world_size() > 1 {
            self.endpoint.fail(cause_of_drop(), false);
        }
    }
}

/// What an abort handle of this backend reaches.
#[derive(Debug)]
pub(crate) struct HostAbort(pub(crate) Arc<Endpoint>);

impl Abort for HostAbort {
    fn abort(&self, cause: &str) {
        self.0.fail(cause, true);
    }

    fn health(&self) -> Result<()> {
        let me = self.0.rank.index();
        if !self.0.fabric.member(me).gone.load(Ordering::Acquire) {
            self.0.look_for_failures([]);
        }
        self.0.check_open()
    }
}
