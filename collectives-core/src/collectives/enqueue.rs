//! What a call that was checked and routed has enqueued, and what it holds meanwhile.

use crate::collective::Collective;
use crate::communicator::Communicator;
use crate::device::Device;
use crate::error::Result;
use crate::memory::Memory;
use crate::order::Held;
use crate::scratch::Site;
use crate::stream::StreamRef;
use crate::work::{Copy, Work};

/// Locks the owners that an eager call uses; replays are ordered when they are launched.
#[inline(always)]
pub(super) fn hold<'m>(owners: &mut [&'m Memory], site: Site<'_>) -> Held<'m> {
    match site.capture {
        None => Held::of(owners),
        Some(_) => Held::of(&mut []),
    }
}

/// The data-moving part; if it unwinds, peers must not wait for this rank.
#[inline(always)]
pub(super) fn enqueue_all<C: Communicator>(
    comm: &mut C,
    device: &dyn Device,
    work: &Work<'_, '_>,
    drains: bool,
    site: Site<'_>,
) -> Result<()> {
    let guard = AbortOnPanic(comm);
    match drains {
        true => enqueue_work(guard.0, work, site)?,
        false => enqueue_undrained(guard.0, device, work, site)?,
    }
    // Nothing unwound, so nobody needs to be asked whether something does.
    std::mem::forget(guard);
    Ok(())
}

/// The same where an operation that has run may still be read by peers.
#[inline(never)]
fn enqueue_undrained<C: Communicator>(
    comm: &mut C,
    device: &dyn Device,
    work: &Work<'_, '_>,
    site: Site<'_>,
) -> Result<()> {
    enqueue_work(comm, &Work { out: &[], ..*work }, site)?;
    settle(comm, work.calls, site)?;
    let mut out = work.out.iter();
    out.try_for_each(|copy| enqueue_copy(device, copy, site.stream))
}

pub(super) fn enqueue_copy(device: &dyn Device, copy: &Copy, stream: &StreamRef) -> Result<()> {
    // SAFETY: One range lies in the lease and the other in the tensor; both are valid until the
    // copy has run, for the reasons given at the calls.
    unsafe { device.copy(copy.dst, copy.src, copy.bytes, stream) }
}

/// Enqueues operations that `check` has seen, or pieces of such, and their copies.
#[inline(always)]
pub(super) fn enqueue_work<C: Communicator>(
    comm: &mut C,
    work: &Work<'_, '_>,
    site: Site<'_>,
) -> Result<()> {
    // SAFETY: `check` found the operands valid in shape, which neither staging nor cutting changes, and
    // asked the stream. Their bytes are valid for the device by the contract of `Tensor` or of the
    // lease, and the stream is ordered after their last users: by the caller for owners, by the allocator
    // for slots. A copy is between such operands.
    unsafe { comm.enqueue_checked(work, site) }
}

/// Has the stream wait until no peer reads the operands any more, where an operation that has run may
/// still be read.
#[inline(never)]
pub(super) fn settle<C: Communicator>(
    comm: &mut C,
    calls: &[Collective<'_>],
    site: Site<'_>,
) -> Result<()> {
    if calls.iter().any(is_read_by_peers) {
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
