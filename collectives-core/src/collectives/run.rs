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
                let staged = if bytes > self.splitting.piece
                    && let Some(cut) = self.cut_large(call, bytes)
                {
                    self.run_cut(call, &cut, (sides, kernel), owners, site)?
                } else {
                    let request = Request::new(bytes);
                    match self.scratch.acquire(&mut self.comm, request, site) {
                        Ok(lease) => {
                            let report = OpReport::staged(call, &lease, kernel, 1);
                            self.run_staged(call, sides, lease, owners, site)?;
                            return Ok(report);
                        }
                        Err(error) => Err(self.reason_to_fall_back(error, bytes)?),
                    }
                };
                match staged {
                    Ok(report) => return Ok(report),
                    Err(reason) => (Path::Fallback, reason, Kernel::Ordinary),
                }
            }
        };
        route::permit(call, path, reason, self.fallback)?;
        let work = Work {
            into: &[],
            calls: slice::from_ref(call),
            out: &[],
        };
        self.enqueue(&work, None, owners, site)?;
        Ok(OpReport::unstaged(call, path, reason, kernel))
    }

    #[inline]
    fn run_staged(
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
        self.enqueue_with(lease, owners, site, |queue| {
            queue.copy(work.into.iter().copied())?;
            queue.call(work.calls)?;
            queue.settle(work.calls)?;
            queue.copy(work.out.iter().copied())
        })
    }

    /// Enqueues what `work` does, on a stream that is ordered after the last use of the operands.
    #[inline]
    pub(super) fn enqueue_with(
        &mut self,
        lease: Option<&Lease>,
        owners: &mut [&Memory],
        site: Site<'_>,
        work: impl FnOnce(&mut Queue<'_, C>) -> Result<()>,
    ) -> Result<()> {
        let (id, drains) = (self.device_id, self.drains);
        let Self { comm, device, .. } = self;
        let device = &**device;
        let begun = |comm| Queue {
            comm: AbortOnPanic(comm),
            device,
            drains,
            site,
        };
        if site.capture.is_some() {
            order::retained(device, owners, site.stream)?;
            return begun(comm).end(work);
        }
        if let Some(lease) = lease {
            lease.note_use(site.stream);
        }
        order::exclusively_on(device, id, owners, site.stream, || begun(comm).end(work))
    }
}

/// Where the data-moving part of a call is enqueued; if that unwinds, peers must not wait for this rank.
pub(super) struct Queue<'a, C: Communicator> {
    comm: AbortOnPanic<'a, C>,
    device: &'a dyn Device,
    drains: bool,
    site: Site<'a>,
}

impl<C: Communicator> Queue<'_, C> {
    #[inline]
    fn end(mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let done = work(&mut self);
        // Nothing unwound, so nobody needs to be asked whether something does.
        std::mem::forget(self.comm);
        done
    }

    #[inline]
    pub(super) fn copy(&self, mut copies: impl Iterator<Item = Copy>) -> Result<()> {
        copies.try_for_each(|copy| {
            // SAFETY: One range lies in the lease and the other in the tensor; both are valid until the
            // copy has run, for the reasons given at the call.
            unsafe {
                self.device
                    .copy(copy.dst, copy.src, copy.bytes, self.site.stream)
            }
        })
    }

    #[inline]
    pub(super) fn call(&mut self, calls: &[Collective<'_>]) -> Result<()> {
        // SAFETY: `check` found the operands valid in shape, which neither staging nor cutting changes,
        // and asked the stream. Their bytes are valid for the device by the contract of `Tensor` or of
        // the lease, and the stream is ordered after their last users: by the caller for owners, by the
        // allocator for slots.
        unsafe { self.comm.0.enqueue_checked(calls, self.site) }
    }

    /// Waits, in stream order, until no peer reads the operands any more.
    #[inline]
    pub(super) fn settle(&mut self, calls: &[Collective<'_>]) -> Result<()> {
        if !self.drains && calls.iter().any(is_read_by_peers) {
            // SAFETY: A barrier has no operands.
            unsafe {
                self.comm
                    .0
                    .enqueue(&[Collective::BARRIER], self.site.stream)
            }?;
        }
        Ok(())
    }
}

/// Whether peers may read or write its operands themselves. It is the same on all ranks, since windows
/// are an argument that they share.
fn is_read_by_peers(call: &Collective<'_>) -> bool {
    let windows = [call.send.window, call.recv.window];
    !call.kind().is_point_to_point() && windows.iter().any(Option::is_some)
}

struct AbortOnPanic<'a, C: Communicator>(&'a mut C);

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

    pub(super) fn staged(
        call: &Collective<'_>,
        lease: &Lease,
        kernel: Kernel,
        pieces: u32,
    ) -> Self {
        Self {
            path: Path::Staged,
            reason: Reason::StagingPays,
            bytes: call.send.bytes.max(call.recv.bytes),
            pieces,
            slot: Some(lease.slot()),
            kernel,
        }
    }
}
