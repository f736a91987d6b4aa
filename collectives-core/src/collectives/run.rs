//! The life of one call, from check to report.

use std::slice;

use super::Collectives;
use super::route::{self, Route, Rules};
use super::staged::{self, Copy};
use crate::addr::Operand;
use crate::collective::Collective;
use crate::communicator::Communicator;
use crate::device::Device;
use crate::error::{Error, Misuse, Result};
use crate::memory::Memory;
use crate::order;
use crate::path::{Kernel, OpReport, Path, Reason, Sides};
use crate::rank::CaptureId;
use crate::scratch::{Lease, Request, ScratchAllocator, Site};
use crate::stream::{Stream, StreamRef};

/// What is enqueued for one call or group, in stream order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work<'a, 'c> {
    pub(super) into: &'a [Copy],
    pub(super) calls: &'a [Collective<'c>],
    pub(super) out: &'a [Copy],
}

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// Runs one call whose operands `owners` own.
    pub(super) fn run(
        &mut self,
        mut call: Collective<'_>,
        owners: &mut [&Memory],
        stream: &Stream,
    ) -> Result<OpReport> {
        match self.run_one(&mut call, owners, stream) {
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

    #[inline]
    fn run_one(
        &mut self,
        call: &mut Collective<'_>,
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
                if bytes > self.splitting.piece {
                    return self.run_large(*call, (sides, kernel, bytes), owners, site);
                }
                let request = Request::new(bytes);
                match self.scratch.acquire(&mut self.comm, request, site) {
                    Ok(lease) => {
                        let report = OpReport::staged(call, &lease, kernel);
                        self.run_staged(call, sides, lease, owners, site)?;
                        return Ok(report);
                    }
                    Err(error) => {
                        let reason = self.reason_to_fall_back(error, bytes)?;
                        (Path::Fallback, reason, Kernel::Ordinary)
                    }
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
        let work = Work {
            into: &[],
            calls: slice::from_ref(call),
            out: &[],
        };
        self.enqueue(&work, None, owners, site)?;
        Ok(OpReport::unstaged(call, path, reason, kernel))
    }

    // Always inline, or the rare path of large calls would make it a call of its own on the common one.
    #[inline(always)]
    pub(super) fn run_staged(
        &mut self,
        call: &mut Collective<'_>,
        sides: Sides,
        lease: Lease,
        owners: &mut [&Memory],
        site: Site<'_>,
    ) -> Result<()> {
        let copies = staged::stage(call, sides, lease.operand(), self.world_size)?;
        let work = Work {
            into: copies.into.as_slice(),
            calls: slice::from_ref(call),
            out: copies.out.as_slice(),
        };
        self.enqueue(&work, Some(&lease), owners, site)?;
        self.scratch.release(lease)
    }

    /// Checks a call and gives its operands the windows they lie in, where that is wanted.
    #[inline]
    pub(super) fn check(
        &self,
        call: &mut Collective<'_>,
        stream: &StreamRef,
    ) -> Result<Option<CaptureId>> {
        if stream.device() != self.device_id {
            return Err(Misuse::WrongDevice { what: "the stream" }.into());
        }
        call.check(self.rank, self.world_size)?;
        if self.look_up_addresses {
            call.send = self.look_up(call.send);
            call.recv = self.look_up(call.recv);
        }
        self.device.capture_state(stream)
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

    #[inline]
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
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        work: &Work<'_, '_>,
        lease: Option<&Lease>,
        owners: &mut [&Memory],
        site: Site<'_>,
    ) -> Result<()> {
        let drains = self.drains;
        self.in_order(lease, owners, site, |comm, device| {
            enqueue_all(comm, device, work, drains, site)
        })
    }

    /// Runs `enqueue` with the stream ordered after the last use of the owners.
    #[inline(always)]
    pub(super) fn in_order(
        &mut self,
        lease: Option<&Lease>,
        owners: &mut [&Memory],
        site: Site<'_>,
        enqueue: impl FnOnce(&mut C, &dyn Device) -> Result<()>,
    ) -> Result<()> {
        if site.capture.is_some() {
            let Self { comm, device, .. } = self;
            order::retained(&**device, owners, site.stream)?;
            return enqueue(comm, &**device);
        }
        if let Some(lease) = lease {
            lease.note_use(site.stream);
        }
        let id = self.device_id;
        let Self { comm, device, .. } = self;
        let device = &**device;
        order::exclusively_on(device, id, owners, site.stream, || enqueue(comm, device))
    }
}

/// The data-moving part; if it unwinds, peers must not wait for this rank.
#[inline(never)]
fn enqueue_all<C: Communicator>(
    comm: &mut C,
    device: &dyn Device,
    work: &Work<'_, '_>,
    drains: bool,
    site: Site<'_>,
) -> Result<()> {
    let guard = AbortOnPanic(comm);
    for copy in work.into {
        enqueue_copy(device, copy, site.stream)?;
    }
    enqueue_calls(guard.0, work.calls, site)?;
    settle(guard.0, work.calls, drains, site)?;
    for copy in work.out {
        enqueue_copy(device, copy, site.stream)?;
    }
    // Nothing unwound, so nobody needs to be asked whether something does.
    std::mem::forget(guard);
    Ok(())
}

#[inline]
pub(super) fn enqueue_copy(device: &dyn Device, copy: &Copy, stream: &StreamRef) -> Result<()> {
    // SAFETY: One range lies in the lease and the other in the tensor; both are valid until the
    // copy has run, for the reasons given at the calls.
    unsafe { device.copy(copy.dst, copy.src, copy.bytes, stream) }
}

/// Enqueues operations that `check` has seen, or pieces of such.
#[inline]
pub(super) fn enqueue_calls<C: Communicator>(
    comm: &mut C,
    calls: &[Collective<'_>],
    site: Site<'_>,
) -> Result<()> {
    // SAFETY: `check` found the operands valid in shape, which neither staging nor cutting changes, and
    // asked the stream. Their bytes are valid for the device by the contract of `Tensor` or of the
    // lease, and the stream is ordered after their last users: by the caller for owners, by the allocator
    // for slots.
    unsafe { comm.enqueue_checked(calls, site) }
}

/// Has the stream wait until no peer reads the operands any more.
#[inline]
pub(super) fn settle<C: Communicator>(
    comm: &mut C,
    calls: &[Collective<'_>],
    drains: bool,
    site: Site<'_>,
) -> Result<()> {
    if !drains && calls.iter().any(is_read_by_peers) {
        // SAFETY: A barrier has no operands.
        unsafe { comm.enqueue(&[Collective::BARRIER], site.stream) }?;
    }
    Ok(())
}

/// Whether peers may read or write its operands themselves. It is the same on all ranks, since windows
/// are an argument that they share.
fn is_read_by_peers(call: &Collective<'_>) -> bool {
    let windows = [call.send.window, call.recv.window];
    !call.kind().is_point_to_point() && windows.iter().any(Option::is_some)
}

/// Aborts what it borrows if it is dropped by a panic.
pub(super) struct AbortOnPanic<'a, C: Communicator>(pub(super) &'a mut C);

impl<C: Communicator> Drop for AbortOnPanic<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort_handle().abort("panicked inside a collective");
        }
    }
}

impl OpReport {
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
