//! The life of one call, from check to report.

use super::Collectives;
use super::route::{self, Route, Rules};
use super::staged::{self, Copy, Staged};
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

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// Runs one call whose operands `owners` own.
    pub(super) fn run(
        &mut self,
        mut call: Collective<'_>,
        owners: &mut [&Memory],
        stream: &Stream,
    ) -> Result<OpReport> {
        let name = call.kind().name();
        self.run_one(&mut call, owners, stream)
            .map_err(|error| self.with_context(error, name))
    }

    pub(super) fn with_context(&self, error: Error, operation: &'static str) -> Error {
        error
            .during(operation)
            .on_backend(self.comm.info().backend)
            .on_rank(self.rank)
    }

    fn run_one(
        &mut self,
        call: &mut Collective<'_>,
        owners: &mut [&Memory],
        stream: &Stream,
    ) -> Result<OpReport> {
        let capture = self.check(call, stream)?;
        let (staged, report, lease) = match self.route(call, capture.is_some()) {
            Route::AsIs {
                path,
                reason,
                kernel,
            } => {
                route::permit(call, path, reason, self.fallback)?;
                let report = OpReport::unstaged(call, path, reason, kernel);
                (Staged::as_is(*call), report, None)
            }
            Route::Stage { sides, kernel } => {
                self.stage(call, sides, kernel, Site { stream, capture })?
            }
        };
        self.enqueue(&[staged], lease.as_ref(), owners, stream, capture)?;
        if let Some(lease) = lease {
            lease.complete()?;
        }
        Ok(report)
    }

    /// Checks a call and gives its operands the windows they lie in, where that is wanted.
    pub(super) fn check(
        &self,
        call: &mut Collective<'_>,
        stream: &StreamRef,
    ) -> Result<Option<CaptureId>> {
        if stream.device() != self.device.id() {
            return Err(Misuse::WrongDevice { what: "the stream" }.into());
        }
        call.check(self.rank, self.world_size)?;
        if self.look_up_addresses {
            call.send = self.look_up(call.send);
            call.recv = self.look_up(call.recv);
        }
        self.device.capture_state(stream)
    }

    fn look_up(&self, operand: Operand) -> Operand {
        Operand {
            window: operand
                .window
                .or_else(|| self.comm.window_of(operand.addr, operand.bytes)),
            ..operand
        }
    }

    pub(super) fn route(&self, call: &Collective<'_>, captured: bool) -> Route {
        if call.is_empty() {
            // Enqueued all the same: a backend that compares calls compares this one too.
            return Route::ordinary(Path::Direct, Reason::Empty);
        }
        let capabilities = self.comm.capabilities();
        route::choose(
            call,
            &Rules {
                table: &capabilities.paths,
                symmetric: capabilities.symmetric.is_ok(),
                staging: self.staging,
                rank: self.rank,
                world_size: self.world_size,
                captured,
                insisted: self.insisted,
            },
        )
    }

    fn stage<'c>(
        &mut self,
        call: &Collective<'c>,
        sides: Sides,
        kernel: Kernel,
        site: Site<'_>,
    ) -> Result<(Staged<'c>, OpReport, Option<Lease>)> {
        let bytes = staged::scratch_bytes(call, sides, self.world_size)?;
        match self.acquire(bytes, site)? {
            Ok(lease) => {
                let staged = staged::stage(*call, sides, lease.operand(), self.world_size)?;
                let report = OpReport::staged(call, &lease, kernel);
                Ok((staged, report, Some(lease)))
            }
            Err(reason) => {
                route::permit(call, Path::Fallback, reason, self.fallback)?;
                let report = OpReport::unstaged(call, Path::Fallback, reason, Kernel::Ordinary);
                Ok((Staged::as_is(*call), report, None))
            }
        }
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
            Err(error) => match self.scratch.fallback_reason(&error) {
                Some(reason) => {
                    tracing::debug!(%error, bytes, "taking the ordinary path");
                    Ok(Err(reason))
                }
                None => Err(error),
            },
        }
    }

    /// Enqueues copies in, the operations as one group, and copies out, in stream order.
    pub(super) fn enqueue(
        &mut self,
        staged: &[Staged<'_>],
        lease: Option<&Lease>,
        owners: &mut [&Memory],
        stream: &Stream,
        capture: Option<CaptureId>,
    ) -> Result<()> {
        let Self { comm, device, .. } = self;
        let device = &**device;
        if capture.is_some() {
            order::retained(device, owners, stream)?;
            return enqueue_all(comm, device, staged, stream);
        }
        if let Some(lease) = lease {
            lease.note_use(stream);
        }
        order::exclusively(device, owners, stream, || {
            enqueue_all(comm, device, staged, stream)
        })
    }
}

/// The data-moving part; if it unwinds, peers must not wait for this rank.
fn enqueue_all<C: Communicator>(
    comm: &mut C,
    device: &dyn Device,
    staged: &[Staged<'_>],
    stream: &StreamRef,
) -> Result<()> {
    let guard = AbortOnPanic(comm);
    for copy in staged.iter().filter_map(|staged| staged.copy_in) {
        enqueue_copy(device, copy, stream)?;
    }
    match staged {
        // SAFETY: `check` found the operands valid in shape. Their bytes are valid for the device
        // by the contract of `Tensor` or of the lease, and the stream is ordered after their last
        // users: by the caller for owners, by the allocator for slots.
        [one] => unsafe { guard.0.enqueue(&[one.call], stream) },
        // SAFETY: As above.
        many => unsafe {
            let calls: Vec<_> = many.iter().map(|staged| staged.call).collect();
            guard.0.enqueue(&calls, stream)
        },
    }?;
    if !guard.0.capabilities().drains && staged.iter().any(Staged::is_read_by_peers) {
        // SAFETY: A barrier has no operands.
        unsafe { guard.0.enqueue(&[Collective::BARRIER], stream) }?;
    }
    for copy in staged.iter().filter_map(|staged| staged.copy_out) {
        enqueue_copy(device, copy, stream)?;
    }
    Ok(())
}

fn enqueue_copy(device: &dyn Device, copy: Copy, stream: &StreamRef) -> Result<()> {
    // SAFETY: One range lies in the lease and the other in the tensor; both are valid until the
    // copy has run, for the reasons given at the enqueue.
    unsafe { device.copy(copy.dst, copy.src, copy.bytes, stream) }
}

struct AbortOnPanic<'a, C: Communicator>(&'a mut C);

impl<C: Communicator> Drop for AbortOnPanic<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort_handle().abort("panicked inside a collective");
        }
    }
}

impl<'c> Staged<'c> {
    pub(super) const fn as_is(call: Collective<'c>) -> Self {
        Self {
            call,
            copy_in: None,
            copy_out: None,
        }
    }

    /// Whether peers may read or write its operands themselves. It is the same on all ranks, since
    /// windows are an argument that they share.
    fn is_read_by_peers(&self) -> bool {
        let windows = [self.call.send.window, self.call.recv.window];
        !self.call.kind().is_point_to_point() && windows.iter().any(Option::is_some)
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
            slot: None,
            kernel,
        }
    }

    pub(super) fn staged(call: &Collective<'_>, lease: &Lease, kernel: Kernel) -> Self {
        Self {
            path: Path::Staged,
            reason: Reason::StagingPays,
            bytes: call.send.bytes.max(call.recv.bytes),
            slot: Some(lease.slot()),
            kernel,
        }
    }
}
