//! Cuts a call that needs more scratch than one piece: pure arithmetic, equal on all ranks.
//!
//! Operations on equal sides are cut into sub-ranges. A reduce-scatter and an all-gather with equal
//! parts are cut inside the parts: a piece is the same sub-range of every rank's part, side by side in
//! the lease, and so it is a reduce-scatter or an all-gather itself. What else there is stays whole.

use std::ops::Range;

use super::route::missing_sides;
use super::rows::Rows;
use super::staged::{self, has_equal_sides};
use crate::addr::Operand;
use crate::collective::{Collective, Counts, OpKind};
use crate::error::Result;
use crate::path::Sides;
use crate::scratch::SCRATCH_ALIGNMENT;
use crate::submission::Copy;

/// How a call is cut: as few pieces as fit one lease each, of lengths that differ by less than two
/// alignments.
///
/// Their lengths are alike so that no piece is so short that another kernel would serve it, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Elements that are cut: all, or those of one rank's part.
    elements: usize,
    /// Pieces begin at multiples of this many elements.
    unit: usize,
    /// How many pieces there are.
    pieces: usize,
    /// The sides that must lie in windows for every piece, and that must be staged to be cut at all.
    needs: Sides,
}

impl Cut {
    /// The cut of a call that needs these sides in windows, for leases of `piece` bytes; `None` if it
    /// must stay whole.
    ///
    /// It depends on the call's shape and the table alone, not on where the operands are.
    pub(super) fn of(
        call: &Collective<'_>,
        needs: Sides,
        piece: usize,
        rows: &Rows,
        world_size: usize,
    ) -> Option<Self> {
        let mut needs = needs.and(staged_at_least(call.kind(), needs));
        loop {
            let cut = Self::needing(call, needs, piece, world_size)?;
            // A row of the table may serve large operands only, and another the pieces.
            let all = needs.and(cut.needs_of_pieces(call, rows, world_size)?);
            if all == needs {
                return Some(cut);
            }
            needs = all;
        }
    }

    fn needing(
        call: &Collective<'_>,
        needs: Sides,
        piece: usize,
        world_size: usize,
    ) -> Option<Self> {
        let elements = even(call.counts)?;
        let (send, recv) = match call.kind() {
            OpKind::ReduceScatter => (world_size, 1),
            OpKind::AllGather => (1, world_size),
            kind if has_equal_sides(kind) => (1, 0),
            _ => return None,
        };
        let shares = match needs {
            _ if has_equal_sides(call.kind()) => 1,
            Sides::Send => send,
            Sides::Recv => recv,
            Sides::Both => send.checked_add(recv)?,
        };
        let unit = SCRATCH_ALIGNMENT / call.dtype.size();
        // Whole units, so that both sides of a lease are aligned.
        let room = piece / SCRATCH_ALIGNMENT / shares;
        (room > 0 && elements > 0).then(|| Self {
            elements,
            unit,
            pieces: elements.div_ceil(unit).div_ceil(room),
            needs,
        })
    }

    /// The sides that the kernels of the longest and of the shortest piece need.
    fn needs_of_pieces(
        &self,
        call: &Collective<'_>,
        rows: &Rows,
        world_size: usize,
    ) -> Option<Sides> {
        let needs = |index| {
            let bytes = self.bytes(call, index, world_size);
            rows.serving(call, bytes).ok().map(|row| row.needs)
        };
        Some(needs(0)?.and(needs(self.pieces - 1)?))
    }

    /// Bytes of the larger operand of a piece; the first piece is the longest.
    pub(super) fn bytes(&self, call: &Collective<'_>, index: usize, world_size: usize) -> usize {
        let parts = match has_equal_sides(call.kind()) {
            true => 1,
            false => world_size,
        };
        self.range(index).len() * call.dtype.size() * parts
    }

    /// How many pieces there are.
    pub(super) const fn pieces(&self) -> usize {
        self.pieces
    }

    /// The sides to stage, of which `missing` are known; the call is the one that was cut.
    pub(super) fn sides(&self, call: &Collective<'_>, missing: Sides, forced: bool) -> Sides {
        let missing =
            missing_sides(call, self.needs, forced).map_or(missing, |all| missing.and(all));
        missing.and(staged_at_least(call.kind(), missing))
    }

    /// The elements of a piece.
    fn range(&self, index: usize) -> Range<usize> {
        let units = self.elements.div_ceil(self.unit);
        let (each, more) = (units / self.pieces, units % self.pieces);
        let start = |index: usize| (index * each + index.min(more)) * self.unit;
        start(index)..start(index + 1).min(self.elements)
    }

    /// One piece of the call, with these sides moved to `scratch`, which is as long as the call was cut
    /// for.
    pub(super) fn piece<'c>(
        &self,
        call: &Collective<'c>,
        index: usize,
        sides: Sides,
        scratch: Operand,
        world_size: usize,
    ) -> Result<Piece<'c>> {
        let range = self.range(index);
        let size = call.dtype.size();
        let (start, bytes) = (range.start * size, range.len() * size);
        let mut piece = *call;
        piece.counts = Counts::Even(range.len());
        // What lies in the parts of all ranks begins in the first of them.
        let spread = |whole: Operand| Operand {
            addr: whole.addr.offset(start),
            bytes: bytes * world_size,
            ..whole
        };
        let cut = |side: Operand| match side.bytes {
            0 => Ok(side),
            _ => side.slice(start, bytes),
        };
        (piece.send, piece.recv) = match call.kind() {
            OpKind::ReduceScatter => (spread(call.send), cut(call.recv)?),
            OpKind::AllGather => (cut(call.send)?, spread(call.recv)),
            _ => (cut(call.send)?, cut(call.recv)?),
        };
        let (piece, staged) = staged::stage(&piece, sides, scratch, world_size)?;
        // In the lease parts lie side by side; in the tensor each lies in its rank's part.
        let apart = self.elements * size;
        let (mut into, mut out) = (Copies::one(staged.into), Copies::one(staged.out));
        match call.kind() {
            OpKind::ReduceScatter => into = into.of_parts(world_size, bytes, bytes, apart),
            OpKind::AllGather => out = out.of_parts(world_size, bytes, apart, bytes),
            _ => {}
        }
        let call = piece;
        Ok(Piece { call, into, out })
    }
}

/// The side that must be in the lease for the operation to be cut: the one whose parts must come to lie
/// side by side; `otherwise` where the operation has none.
const fn staged_at_least(kind: OpKind, otherwise: Sides) -> Sides {
    match kind {
        OpKind::ReduceScatter => Sides::Send,
        OpKind::AllGather => Sides::Recv,
        _ => otherwise,
    }
}

/// The count that all ranks have.
fn even(counts: Counts<'_>) -> Option<usize> {
    match counts {
        Counts::Even(count) => Some(count),
        Counts::Uneven([first, rest @ ..]) => {
            rest.iter().all(|count| count == first).then_some(*first)
        }
        Counts::Uneven([]) => None,
    }
}

/// One piece of a call: the copies in, the operation in the lease, the copies out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'c> {
    pub(super) call: Collective<'c>,
    pub(super) into: Copies,
    pub(super) out: Copies,
}

/// Equal copies, each as far from the one before as the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copies {
    first: Option<Copy>,
    count: usize,
    dst_step: usize,
    src_step: usize,
}

impl Copies {
    const fn one(first: Option<Copy>) -> Self {
        Self {
            first,
            count: 1,
            dst_step: 0,
            src_step: 0,
        }
    }

    /// The same, as `count` copies of `bytes` bytes.
    fn of_parts(self, count: usize, bytes: usize, dst_step: usize, src_step: usize) -> Self {
        Self {
            first: self.first.map(|copy| Copy { bytes, ..copy }),
            count,
            dst_step,
            src_step,
        }
    }

    /// Each of them.
    pub(super) fn each(self) -> impl Iterator<Item = Copy> {
        let at = move |index, first: Copy| Copy {
            dst: first.dst.offset(index * self.dst_step),
            src: first.src.offset(index * self.src_step),
            ..first
        };
        let all = move |first| (0..self.count).map(move |index| at(index, first));
        self.first.into_iter().flat_map(all)
    }
}

#[cfg(test)]
mod tests;
