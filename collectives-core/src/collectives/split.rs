//! Stages a call in pieces, one after another, through one lease of a fixed size.

use std::slice;

use super::Collectives;
use super::pieces::Cut;
use crate::collective::Collective;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::path::{Kernel, OpReport, Reason, Sides, Staging};
use crate::scratch::{ScratchAllocator, Site, Splitting};

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

    /// [`Collectives::cut`] of a call that was checked.
    #[cold]
    pub(super) fn cut_large(&self, call: &Collective<'_>, bytes: usize) -> Option<Cut> {
        let row = self.rows.find(call).ok()?;
        self.cut(call, row.needs, bytes)
    }

    /// Runs a call that was cut, or says why it must take the ordinary path.
    #[inline(never)]
    pub(super) fn run_cut(
        &mut self,
        call: &Collective<'_>,
        cut: &Cut,
        (missing, kernel): (Sides, Kernel),
        owners: &mut [&Memory],
        site: Site<'_>,
    ) -> Result<Result<OpReport, Reason>> {
        let lease = match self.acquire(self.splitting.piece, site)? {
            Ok(lease) => lease,
            Err(reason) => return Ok(Err(reason)),
        };
        let pieces = u32::try_from(cut.pieces()).unwrap_or(u32::MAX);
        let report = OpReport::staged(call, &lease, kernel, pieces);
        let sides = cut.sides(call, missing, self.staging == Staging::Forced);
        let (scratch, world_size) = (lease.operand(), self.world_size);
        let mut progress = Progress::default();
        let enqueued = self.enqueue_with(Some(&lease), owners, site, |queue| {
            for index in 0..cut.pieces() {
                let piece = cut.piece(call, index, sides, scratch, world_size)?;
                let calls = slice::from_ref(&piece.call);
                queue.copy(piece.into.each())?;
                queue.call(calls)?;
                progress.moved = true;
                queue.settle(calls)?;
                queue.copy(piece.out.each())?;
                progress.pieces += 1;
            }
            Ok(())
        });
        self.scratch.note_pieces(progress.pieces);
        match enqueued {
            Ok(()) => self.scratch.release(lease).map(|()| Ok(report)),
            // A recording has moved nothing, and goes with its capture.
            Err(error) if progress.moved && site.capture.is_none() => {
                Err(self.stopped(error, call, progress.pieces, cut.pieces()))
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the communicator of a call that stopped after something had moved: peers must not wait for
    /// the pieces that are left, and the call cannot be made again.
    #[cold]
    fn stopped(&self, error: Error, call: &Collective<'_>, done: u64, pieces: usize) -> Error {
        let operation = call.kind();
        let cause = format!("{operation} stopped after {done} of {pieces} pieces: {error}");
        self.comm.abort_handle().abort(&cause);
        error.poisoning()
    }
}

/// How far a call came.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Whether an operation was enqueued.
    moved: bool,
    /// Pieces of which all was enqueued.
    pieces: u64,
}
