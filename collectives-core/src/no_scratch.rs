//! The allocator of those who want none: nothing is ever staged.

use crate::communicator::{Communicator, Deferred};
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::path::Reason;
use crate::rank::CaptureId;
use crate::scratch::{Lease, Plan, Request, ScratchAllocator, Trimmed};
use crate::stats::Stats;
use crate::stream::StreamRef;

/// Hands out nothing, so that every call takes its operands where they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoScratch;

impl ScratchAllocator for NoScratch {
    fn name(&self) -> &'static str {
        "none"
    }

    fn acquire(
        &mut self,
        _comm: &mut dyn Communicator,
        request: Request,
        _stream: &StreamRef,
        _capture: Option<CaptureId>,
    ) -> Result<Lease> {
        Err(Error::new(ErrorKind::Refused {
            bytes: request.bytes,
            why: Refusal::NoScratch,
        }))
    }

    fn fallback_reason(&self, _error: &Error) -> Option<Reason> {
        Some(Reason::StagingOff)
    }

    fn plan(&mut self, _comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan> {
        Ok(Plan {
            refused: requests.len(),
            ..Plan::default()
        })
    }

    fn reserve(&mut self, comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan> {
        self.plan(comm, requests)
    }

    fn seal(&mut self) {}

    fn trim(&mut self, _comm: &mut dyn Communicator) -> Result<Trimmed> {
        Ok(Trimmed::default())
    }

    fn close(&mut self, _comm: &mut dyn Communicator) -> Result<Deferred> {
        Ok(Deferred::default())
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}
