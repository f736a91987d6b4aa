//! Hands a submission to the communicator, with what it uses locked, owned and ordered meanwhile.

use std::slice;

use super::Collectives;
use crate::collective::Collective;
use crate::communicator::Communicator;
use crate::error::Result;
use crate::memory::Memory;
use crate::order::{self, Held};
use crate::rank::CaptureId;
use crate::scratch::{Lease, ScratchAllocator};
use crate::stream::StreamRef;
use crate::submission::Submission;

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// Enqueues calls that were checked, or what staging made of them, and their copies.
    #[inline(always)]
    pub(super) fn submit(
        &mut self,
        submission: &Submission<'_>,
        lease: Option<&Lease>,
        owners: &mut [&Memory],
    ) -> Result<()> {
        self.own(submission, lease, owners)?;
        let held = hold(submission, owners);
        held.order(&*self.device, submission.stream)?;
        let noted = held.note_at_the_end(submission.stream);
        let guard = AbortOnPanic(&mut self.comm);
        let enqueued = match self.drains {
            true => enqueue(guard.0, submission),
            false => enqueue_undrained(guard.0, submission),
        };
        // Nothing unwound, so nobody needs to be asked whether something does.
        std::mem::forget(guard);
        drop(noted);
        enqueued
    }

    /// Has the graph own what a captured call uses; notes the use of the lease otherwise.
    #[inline(always)]
    pub(super) fn own(
        &mut self,
        submission: &Submission<'_>,
        lease: Option<&Lease>,
        owners: &[&Memory],
    ) -> Result<()> {
        if let Some(capture) = submission.capture {
            self.note_capture(capture, submission.stream);
            return order::retained(&*self.device, owners, submission.stream);
        }
        if let Some(lease) = lease {
            lease.note_use(submission.stream);
        }
        Ok(())
    }

    /// Keeps windows as they are until the capture has ended.
    #[cold]
    fn note_capture(&mut self, capture: CaptureId, stream: &StreamRef) {
        if self.captures.note(&*self.device, capture, stream) {
            self.scratch.note_capture(&*self.device, capture, stream);
        }
    }
}

/// Locks the owners that an eager call uses; replays are ordered when they are launched.
#[inline(always)]
pub(super) fn hold<'m>(submission: &Submission<'_>, owners: &mut [&'m Memory]) -> Held<'m> {
    match submission.capture {
        None => Held::of(owners),
        Some(_) => Held::of(&mut []),
    }
}

/// Enqueues a submission whose calls `check` has seen, or pieces of such.
#[inline(always)]
pub(super) fn enqueue<C: Communicator>(comm: &mut C, submission: &Submission<'_>) -> Result<()> {
    // SAFETY: The calls: `check` found them valid in shape, which neither staging nor cutting changes,
    // and disjoint where they are a group. The capture: `check` asked the device. The operands: their
    // bytes are valid by the contract of `Tensor` or of the lease, and the stream is ordered after their
    // last users, by `submit` for owners and by the allocator for slots. The copies: each is between a
    // tensor and a lease, and where operations do not drain, those out come by `enqueue_after`.
    unsafe { comm.enqueue(submission) }
}

/// The same where an operation that has run may still be read by peers.
#[inline(never)]
fn enqueue_undrained<C: Communicator>(comm: &mut C, submission: &Submission<'_>) -> Result<()> {
    enqueue_calls(comm, submission)?;
    enqueue_after(comm, submission, false)
}

/// Enqueues a submission but for its copies out.
pub(super) fn enqueue_calls<C: Communicator>(
    comm: &mut C,
    submission: &Submission<'_>,
) -> Result<()> {
    let copies_out = &[];
    enqueue(
        comm,
        &Submission {
            copies_out,
            ..*submission
        },
    )
}

/// Enqueues the copies out of a submission whose calls were enqueued. Where these do not drain and peers
/// read their operands, the stream waits until none does any more.
pub(super) fn enqueue_after<C: Communicator>(
    comm: &mut C,
    submission: &Submission<'_>,
    drains: bool,
) -> Result<()> {
    let on = Submission::on(submission.stream, submission.capture);
    if !drains && submission.calls.iter().any(is_read_by_peers) {
        let calls = slice::from_ref(&Collective::BARRIER);
        enqueue(comm, &Submission { calls, ..on })?;
    }
    match submission.copies_out {
        [] => Ok(()),
        copies_out => enqueue(comm, &Submission { copies_out, ..on }),
    }
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
