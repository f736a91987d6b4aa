//! The life of one call, from check to report.

use std::slice;

use super::Collectives;
use super::operation::{Operands, Operation};
use super::route::{self, Route, Way};
use super::split::Large;
use super::staged;
use crate::addr::Operand;
use crate::collective::{Collective, Counts, Op};
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::order;
use crate::path::{Kernel, OpReport, Path, Reason, Sides};
use crate::rank::CaptureId;
use crate::scratch::{Lease, Request, ScratchAllocator};
use crate::stream::{Stream, StreamRef};
use crate::submission::{Submission, check_stream};

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// Runs one call whose operands `owners` own.
    ///
    /// Everything below is inlined into each of its copies, and the call goes down by a reference that
    /// nothing changes, so that what is asked of a known operation is answered when this is compiled.
    #[inline(never)]
    pub(super) fn run<O: Operation>(
        &mut self,
        operation: O,
        operands: Operands,
        owners: &mut [&Memory],
        stream: &Stream,
    ) -> Result<OpReport> {
        let mut call = operands.call(operation.op(), operation.counts());
        if self.look_up_addresses {
            call = self.looked_up(&call);
        }
        let call = &call;
        let calls = slice::from_ref(call);
        let (capture, route) = match self.decide(call, owners, stream) {
            Ok(decided) => decided,
            Err(error) => return Err(self.refuse(calls, call.kind().name(), error)),
        };
        // The call as it is; staging makes another one of it.
        let on = Submission {
            calls,
            kernel: self.kernel,
            ..Submission::on(stream, capture)
        };
        let done = match route {
            Route::AsIs(way) => self.run_as_is(call, way, owners, &on),
            Route::Stage {
                sides,
                kernel,
                bytes,
            } => self.run_staged(call, (sides, kernel, bytes), owners, &on),
        };
        match done {
            Ok(report) => Ok(report),
            Err(error) => Err(self.with_context(error, call.kind().name())),
        }
    }

    /// Checks a call and chooses its way: all that can be wrong with it on this rank is found here, before
    /// another rank hears of it.
    #[inline(always)]
    fn decide(
        &self,
        call: &Collective<'_>,
        owners: &[&Memory],
        stream: &StreamRef,
    ) -> Result<(Option<CaptureId>, Route)> {
        check_stream(stream, self.device_id)?;
        call.check_inline(self.rank, self.world_size)?;
        order::check_device(self.device_id, owners)?;
        let capture = self.device.capture_state(stream)?;
        Ok((capture, self.route(call, capture.is_some())?))
    }

    /// The error of calls that are refused before any other rank hears of them, once layers of the
    /// communicator did.
    #[cold]
    pub(super) fn refuse(
        &mut self,
        calls: &[Collective<'_>],
        name: &'static str,
        error: Error,
    ) -> Error {
        let error = self.with_context(error, name);
        self.comm.refused(calls, error)
    }

    /// The same for a call of which nothing but the operation is known.
    #[cold]
    pub(super) fn refuse_op(&mut self, op: Op<'_>, error: Error) -> Error {
        let call = Operands::NONE.call(op, Counts::Even(0));
        self.refuse(slice::from_ref(&call), call.kind().name(), error)
    }

    #[cold]
    pub(super) fn with_context(&self, error: Error, operation: &'static str) -> Error {
        error
            .during(operation)
            .on_backend(self.comm.info().backend)
            .on_rank(self.rank)
    }

    /// Runs a call on its operands where they are.
    #[inline(always)]
    fn run_as_is(
        &mut self,
        call: &Collective<'_>,
        way: Way,
        owners: &mut [&Memory],
        on: &Submission<'_>,
    ) -> Result<OpReport> {
        self.submit(on, None, owners)?;
        Ok(OpReport::unstaged(call, way))
    }

    /// Runs a call through scratch, or as it is where scratch may not or cannot be had.
    #[inline(always)]
    fn run_staged(
        &mut self,
        call: &Collective<'_>,
        (sides, kernel, bytes): (Sides, Kernel, usize),
        owners: &mut [&Memory],
        on: &Submission<'_>,
    ) -> Result<OpReport> {
        let large = match bytes > self.splitting.piece {
            true => self.run_large(call, (sides, kernel, bytes), owners, on)?,
            false => Large::Whole,
        };
        let served = match large {
            Large::Whole => self.acquire(bytes, on)?,
            Large::Unserved(reason) => Scratch::Ordinary(reason),
            Large::Done(report) => return Ok(report),
        };
        let lease = match served {
            Scratch::Lease(lease) => lease,
            Scratch::Ordinary(reason) => {
                let way = Way::fallback(reason);
                route::permit(call, way, self.fallback)?;
                return self.run_as_is(call, way, owners, on);
            }
        };
        let report = OpReport::staged(call, &lease, kernel);
        let (call, copies) = staged::stage(call, sides, lease.operand(), self.world_size)?;
        let submission = Submission {
            copies_in: copies.into.as_slice(),
            calls: slice::from_ref(&call),
            copies_out: copies.out.as_slice(),
            ..*on
        };
        self.submit(&submission, Some(&lease), owners)?;
        self.scratch.release(lease)?;
        Ok(report)
    }

    /// The call with the windows that its operands lie in.
    #[inline(always)]
    pub(super) fn looked_up<'c>(&self, call: &Collective<'c>) -> Collective<'c> {
        call.with_operands(self.look_up(call.send), self.look_up(call.recv))
    }

    #[inline(never)]
    fn look_up(&self, operand: Operand) -> Operand {
        Operand {
            window: operand
                .window
                .or_else(|| self.comm.window_of(operand.addr, operand.bytes)),
            ..operand
        }
    }

    /// A lease, or the reason to take the ordinary path.
    #[inline(always)]
    pub(super) fn acquire(&mut self, bytes: usize, on: &Submission<'_>) -> Result<Scratch> {
        let request = Request::new(bytes);
        let lease = self
            .scratch
            .acquire(&mut self.comm, request, on.stream, on.capture);
        match lease {
            Ok(lease) => Ok(Scratch::Lease(lease)),
            Err(error) => self
                .reason_to_fall_back(error, bytes)
                .map(Scratch::Ordinary),
        }
    }

    /// Why the ordinary path is taken where scratch could not be had, if it may be.
    #[cold]
    fn reason_to_fall_back(&self, error: Error, bytes: usize) -> Result<Reason> {
        match self.scratch.fallback_reason(&error) {
            Some(reason) => {
                tracing::debug!(%error, bytes, "taking the ordinary path");
                Ok(reason)
            }
            None => Err(error),
        }
    }
}

/// What came of asking for scratch.
pub(super) enum Scratch {
    /// There is some.
    Lease(Lease),
    /// There is none, and the call takes the ordinary path.
    Ordinary(Reason),
}

impl OpReport {
    #[inline(always)]
    pub(super) fn unstaged(call: &Collective<'_>, way: Way) -> Self {
        Self {
            path: way.path,
            reason: way.reason,
            bytes: call.send.bytes.max(call.recv.bytes),
            pieces: 0,
            slot: None,
            kernel: way.kernel,
        }
    }

    #[inline(always)]
    pub(super) fn staged(call: &Collective<'_>, lease: &Lease, kernel: Kernel) -> Self {
        Self {
            path: Path::Staged,
            reason: Reason::StagingPays,
            bytes: call.send.bytes.max(call.recv.bytes),
            pieces: 1,
            slot: Some(lease.slot()),
            kernel,
        }
    }
}
