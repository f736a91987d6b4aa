//! The life of one call, from check to report.

use std::slice;

use super::Collectives;
use super::enqueue::{enqueue_all, hold};
use super::route::{self, Route, Rules};
use super::split::Large;
use super::staged;
use crate::addr::Operand;
use crate::collective::{Collective, Counts, Op};
use crate::communicator::Communicator;
use crate::error::{Error, Misuse, Result};
use crate::memory::Memory;
use crate::order::{self, Held};
use crate::path::{Kernel, OpReport, Path, Reason, Sides};
use crate::rank::CaptureId;
use crate::scratch::{Lease, Request, ScratchAllocator, Site};
use crate::stream::{Stream, StreamRef};
use crate::work::Work;

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// Runs one call whose operands `owners` own.
    ///
    /// What is called most has code of its own, in which nothing depends on the operation any more.
    #[inline(always)]
    pub(super) fn run(
        &mut self,
        call: Collective<'_>,
        owners: &mut [&Memory],
        stream: &Stream,
    ) -> Result<OpReport> {
        let call = &call;
        match call.op {
            _ if self.look_up_addresses => self.run_looked_up(call, owners, stream),
            Op::AllReduce(_) => {
                self.run_known(|op| matches!(op, Op::AllReduce(_)), call, owners, stream)
            }
            Op::ReduceScatter(_) => self.run_known(
                |op| matches!(op, Op::ReduceScatter(_)),
                call,
                owners,
                stream,
            ),
            Op::AllGather => self.run_known(|op| matches!(op, Op::AllGather), call, owners, stream),
            _ => self.run_any(call, owners, stream),
        }
    }

    /// Runs a call of the operation that `is` tells, for each of which this is compiled anew.
    #[inline(never)]
    fn run_known(
        &mut self,
        is: impl Fn(Op<'_>) -> bool,
        call: &Collective<'_>,
        owners: &mut [&Memory],
        stream: &Stream,
    ) -> Result<OpReport> {
        match is(call.op) && matches!(call.counts, Counts::Even(_)) {
            true => self.run_inline(call, owners, stream),
            false => self.run_any(call, owners, stream),
        }
    }

    #[inline(never)]
    fn run_any(
        &mut self,
        call: &Collective<'_>,
        owners: &mut [&Memory],
        stream: &Stream,
    ) -> Result<OpReport> {
        self.run_inline(call, owners, stream)
    }

    /// Runs a call with its operands' windows, where it names none itself.
    #[inline(never)]
    fn run_looked_up(
        &mut self,
        call: &Collective<'_>,
        owners: &mut [&Memory],
        stream: &Stream,
    ) -> Result<OpReport> {
        self.run_any(&self.looked_up(call), owners, stream)
    }

    // Always inline and by an unchanging reference all the way down, so that what is asked of a known
    // operation is answered at compile time.
    #[inline(always)]
    fn run_inline(
        &mut self,
        call: &Collective<'_>,
        owners: &mut [&Memory],
        stream: &Stream,
    ) -> Result<OpReport> {
        match self.run_one(call, owners, stream) {
            Ok(report) => Ok(report),
            Err(error) => Err(self.with_context(error, call.kind().name())),
        }
    }

    #[cold]
    pub(super) fn with_context(&self, error: Error, operation: &'static str) -> Error {
        error
            .during(operation)
            .on_backend(self.comm.info().backend)
            .on_rank(self.rank)
    }

    #[inline(always)]
    fn run_one(
        &mut self,
        call: &Collective<'_>,
        owners: &mut [&Memory],
        stream: &StreamRef,
    ) -> Result<OpReport> {
        let capture = self.check(call, stream)?;
        let site = Site { stream, capture };
        let (path, reason, kernel) = match self.route(call, capture.is_some()) {
            Route::AsIs {
                path,
                reason,
                kernel,
            } => (path, reason, kernel),
            Route::Stage { sides, kernel } => {
                let bytes = staged::scratch_bytes(call, sides, self.world_size)?;
                let large = match bytes > self.splitting.piece {
                    true => self.run_large(call, (sides, kernel, bytes), owners, site)?,
                    false => Large::Whole,
                };
                let served = match large {
                    Large::Whole => self.acquire(bytes, site)?,
                    Large::Unserved(reason) => Err(reason),
                    Large::Done(report) => return Ok(report),
                };
                match served {
                    Ok(lease) => {
                        let report = OpReport::staged(call, &lease, kernel);
                        self.run_staged(call, sides, lease, owners, site)?;
                        return Ok(report);
                    }
                    Err(reason) => (Path::Fallback, reason, Kernel::Ordinary),
                }
            }
        };
        self.run_as_is(call, (path, reason, kernel), owners, site)
    }

    /// Runs a call on its operands where they are.
    #[inline(always)]
    pub(super) fn run_as_is(
        &mut self,
        call: &Collective<'_>,
        (path, reason, kernel): (Path, Reason, Kernel),
        owners: &mut [&Memory],
        site: Site<'_>,
    ) -> Result<OpReport> {
        route::permit(call, path, reason, self.fallback)?;
        let work = Work::of(slice::from_ref(call));
        self.enqueue(&work, None, owners, site)?;
        Ok(OpReport::unstaged(call, path, reason, kernel))
    }

    #[inline(always)]
    pub(super) fn run_staged(
        &mut self,
        call: &Collective<'_>,
        sides: Sides,
        lease: Lease,
        owners: &mut [&Memory],
        site: Site<'_>,
    ) -> Result<()> {
        self.prepare(Some(&lease), owners, site)?;
        let held = hold(owners, site);
        held.order(&*self.device, site.stream)?;
        // Made where it is used, so that the backend still knows what operation it is.
        let (call, copies) = staged::stage(call, sides, lease.operand(), self.world_size)?;
        let work = Work {
            into: copies.into.as_slice(),
            calls: slice::from_ref(&call),
            out: copies.out.as_slice(),
        };
        self.enqueue_ordered(&work, held, site)?;
        self.scratch.release(lease)
    }

    /// Checks a call.
    #[inline(always)]
    pub(super) fn check(
        &self,
        call: &Collective<'_>,
        stream: &StreamRef,
    ) -> Result<Option<CaptureId>> {
        if stream.device() != self.device_id {
            return Err(Misuse::WrongDevice { what: "the stream" }.into());
        }
        call.check_inline(self.rank, self.world_size)?;
        self.device.capture_state(stream)
    }

    /// The call with the windows that its operands lie in.
    pub(super) fn looked_up<'c>(&self, call: &Collective<'c>) -> Collective<'c> {
        call.with_operands(self.look_up(call.send), self.look_up(call.recv))
    }

    fn look_up(&self, operand: Operand) -> Operand {
        Operand {
            window: operand
                .window
                .or_else(|| self.comm.window_of(operand.addr, operand.bytes)),
            ..operand
        }
    }

    #[inline(always)]
    pub(super) fn route(&self, call: &Collective<'_>, captured: bool) -> Route {
        if call.is_empty() {
            // Enqueued all the same: a backend that compares calls compares this one too.
            return Route::ordinary(Path::Direct, Reason::Empty);
        }
        let rules = Rules {
            rows: &self.rows,
            symmetric: self.symmetric,
            staging: self.staging,
            world_size: self.world_size,
            captured,
            insisted: self.insisted,
        };
        route::choose(call, &rules)
    }

    /// A lease, or the reason to take the ordinary path.
    #[inline(always)]
    pub(super) fn acquire(
        &mut self,
        bytes: usize,
        site: Site<'_>,
    ) -> Result<Result<Lease, Reason>> {
        let request = Request::new(bytes);
        match self.scratch.acquire(&mut self.comm, request, site) {
            Ok(lease) => Ok(Ok(lease)),
            Err(error) => self.reason_to_fall_back(error, bytes).map(Err),
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

    /// Enqueues copies in, the operations as one group, and copies out, in stream order.
    #[inline(always)]
    pub(super) fn enqueue(
        &mut self,
        work: &Work<'_, '_>,
        lease: Option<&Lease>,
        owners: &mut [&Memory],
        site: Site<'_>,
    ) -> Result<()> {
        self.prepare(lease, owners, site)?;
        let held = hold(owners, site);
        held.order(&*self.device, site.stream)?;
        self.enqueue_ordered(work, held, site)
    }

    #[inline(always)]
    fn enqueue_ordered(
        &mut self,
        work: &Work<'_, '_>,
        held: Held<'_>,
        site: Site<'_>,
    ) -> Result<()> {
        let Self { comm, device, .. } = self;
        let enqueued = enqueue_all(comm, &**device, work, self.drains, site);
        held.note(site.stream);
        enqueued
    }

    /// Has the graph own what a captured call uses; checks owners and notes the use of the lease otherwise.
    #[inline(always)]
    pub(super) fn prepare(
        &self,
        lease: Option<&Lease>,
        owners: &[&Memory],
        site: Site<'_>,
    ) -> Result<()> {
        if site.capture.is_some() {
            return order::retained(&*self.device, owners, site.stream);
        }
        if let Some(lease) = lease {
            lease.note_use(site.stream);
        }
        order::check_device(self.device_id, owners)
    }
}

impl OpReport {
    #[inline(always)]
    pub(super) fn unstaged(
        call: &Collective<'_>,
        path: Path,
        reason: Reason,
        kernel: Kernel,
    ) -> Self {
        Self {
            path,
            reason,
            bytes: call.send.bytes.max(call.recv.bytes),
            pieces: 0,
            slot: None,
            kernel,
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
