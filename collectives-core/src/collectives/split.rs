//! Stages a call in pieces, one after another, through one lease of a fixed size.

use std::slice;

use super::Collectives;
use super::enqueue::{AbortOnPanic, enqueue_after, enqueue_calls, hold};
use super::pieces::Cut;
use super::run::Scratch;
use crate::collective::Collective;
use crate::communicator::Communicator;
use crate::error::{CaptureFault, Error, Result};
use crate::memory::Memory;
use crate::path::{Kernel, OpReport, Reason, Sides, Staging};
use crate::scratch::{Lease, ScratchAllocator, Splitting};
use crate::submission::Submission;

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// How a call is cut that needs these sides in windows and so many bytes of scratch for it; `None`
    /// if it stays whole.
    pub(super) fn cut(&self, call: &Collective<'_>, needs: Sides, bytes: usize) -> Option<Cut> {
        let Splitting { piece, up_to } = self.splitting;
        if bytes <= piece || bytes > up_to {
            return None;
        }
        Cut::of(call, needs, piece, &self.rows, self.world_size)
    }

    /// Stages a call that was checked and needs more than a piece, if it can be cut.
    #[cold]
    #[inline(never)]
    pub(super) fn run_large(
        &mut self,
        call: &Collective<'_>,
        (sides, kernel, bytes): (Sides, Kernel, usize),
        owners: &mut [&Memory],
        on: &Submission<'_>,
    ) -> Result<Large> {
        let row = self.rows.find(call).ok();
        let Some(cut) = row.and_then(|row| self.cut(call, row.needs, bytes)) else {
            return Ok(Large::Whole);
        };
        let lease = match self.acquire(self.splitting.piece, on)? {
            Scratch::Lease(lease) => lease,
            Scratch::Ordinary(reason) => return Ok(Large::Unserved(reason)),
        };
        let report = OpReport::staged(call, &lease, kernel);
        self.run_cut(call, &cut, sides, lease, owners, on)?;
        // That of the pieces, where the table tells kernels by size.
        let longest = cut.bytes(call, 0, self.world_size);
        let row = self.rows.serving(call, longest).ok();
        Ok(Large::Done(OpReport {
            kernel: row.map_or(kernel, |row| row.kernel(self.kernel)),
            pieces: u32::try_from(cut.pieces()).unwrap_or(u32::MAX),
            ..report
        }))
    }

    fn run_cut(
        &mut self,
        call: &Collective<'_>,
        cut: &Cut,
        missing: Sides,
        lease: Lease,
        owners: &mut [&Memory],
        on: &Submission<'_>,
    ) -> Result<()> {
        let sides = cut.sides(call, missing, self.staging == Staging::Forced);
        let (scratch, world_size, drains) = (lease.operand(), self.world_size, self.drains);
        let mut progress = Progress::default();
        self.own(on, Some(&lease), owners)?;
        let held = hold(on, owners);
        held.order(&*self.device, on.stream)?;
        let Self { comm, copies, .. } = self;
        let mut enqueue_pieces = || {
            let guard = AbortOnPanic(comm);
            for index in 0..cut.pieces() {
                let piece = cut.piece(call, index, sides, scratch, world_size)?;
                copies.clear();
                copies.extend(piece.into.each());
                let copied_in = copies.len();
                copies.extend(piece.out.each());
                let (copies_in, copies_out) = copies.split_at(copied_in);
                let submission = Submission {
                    copies_in,
                    calls: slice::from_ref(&piece.call),
                    copies_out,
                    ..*on
                };
                // In two steps, so that it is known whether the operation of a piece that fails was enqueued.
                enqueue_calls(guard.0, &submission)?;
                progress.moved = true;
                enqueue_after(guard.0, &submission, drains)?;
                progress.pieces += 1;
            }
            // Nothing unwound, so nobody needs to be asked whether something does.
            std::mem::forget(guard);
            Ok(())
        };
        let noted = held.note_at_the_end(on.stream);
        let enqueued = enqueue_pieces();
        drop(noted);
        self.scratch.note_pieces(progress.pieces);
        match enqueued {
            Ok(()) => self.scratch.release(lease),
            Err(error) if !progress.moved => Err(error),
            // A recording has moved nothing, and goes with its capture.
            Err(error) if on.capture.is_some() => {
                Err(Error::capture(CaptureFault::Partial).caused_by(error))
            }
            // Peers must not wait for the pieces that are left, and the call cannot be made again.
            Err(error) => {
                let (operation, done, pieces) = (call.kind(), progress.pieces, cut.pieces());
                Err(self.stopped(
                    error,
                    &format!("{operation} stopped after {done} of {pieces} pieces"),
                ))
            }
        }
    }

    /// Ends the communicator because this rank alone cannot go on after something had moved.
    #[cold]
    pub(super) fn stopped(&self, error: Error, what: &str) -> Error {
        self.comm.abort_handle().abort(&format!("{what}: {error}"));
        error.poisoning()
    }
}

/// What became of a call that needs more than a piece.
#[derive(Clone, Copy, Debug)]
pub(super) enum Large {
    /// It went in pieces.
    Done(OpReport),
    /// There is no scratch for a piece.
    Unserved(Reason),
    /// It stays whole, and nothing was done.
    Whole,
}

/// How far a call came.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Whether an operation was enqueued.
    moved: bool,
    /// Pieces of which all was enqueued.
    pieces: u64,
}
