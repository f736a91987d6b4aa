//! Operations that fold: what ranks staged is summed where it is needed.

use collectives_core::error::Result;
use collectives_core::reduce::ReduceOp;

use super::staged::{BLOCK, LINE, Staged, copy};
use crate::engine::fold::{Input, fold};

/// Worlds in which every rank folds everything: one more read of each block is cheaper than a step.
const FOLD_ALL: usize = 2;

impl Staged<'_> {
    /// An all-reduce, or a reduce where there is a root.
    pub(super) fn reduce(&mut self, op: ReduceOp, count: usize, root: Option<usize>) -> Result<()> {
        let bytes = count * self.unit();
        let receives = root.is_none_or(|root| root == self.me());
        if self.is_inline() {
            if receives {
                self.fold_inline(op, (0, bytes))?;
            }
            return Ok(());
        }
        let block = |begin: usize| BLOCK.min(bytes - begin);
        if self.ranks() <= FOLD_ALL {
            let is_read = root != Some(self.me());
            let fill = |own: &Self, begin: usize, stage| {
                if is_read {
                    copy(own.send(begin), stage, block(begin));
                }
            };
            return self.carry((BLOCK, bytes), fill, |own, begin, step| {
                let (shared, me, mine) = (own.shared, own.me(), own.send(begin));
                let at = |rank: usize| match rank == me {
                    true => mine,
                    false => shared.segment.stage(rank, step).cast_const(),
                };
                match receives {
                    true => own.fold(op, block(begin), at, [own.recv(begin)]),
                    false => Ok(()),
                }
            });
        }
        for begin in (0..bytes).step_by(BLOCK) {
            self.share_fold(op, (begin, block(begin)), receives)?;
        }
        Ok(())
    }

    /// Each rank folds its share of a block, and publishes it in a step of its own.
    fn share_fold(
        &mut self,
        op: ReduceOp,
        (begin, block): (usize, usize),
        receives: bool,
    ) -> Result<()> {
        let share = block.div_ceil(self.ranks()).next_multiple_of(LINE);
        let of = |rank: usize| {
            let from = (share * rank).min(block);
            (from, share.min(block - from))
        };
        let me = self.me();
        for (from, length) in (0..self.ranks()).filter(|&rank| rank != me).map(of) {
            let to = self.own_stage().wrapping_add(from);
            copy(self.send(begin + from), to, length);
        }
        let step = self.step()?;
        let (from, length) = of(me);
        let (shared, mine) = (self.shared, self.send(begin + from));
        let at = |rank| match rank == me {
            true => mine,
            false => shared
                .segment
                .stage(rank, step)
                .wrapping_add(from)
                .cast_const(),
        };
        let result = receives.then(|| self.recv(begin + from));
        let to = result.into_iter().chain([self.own_stage()]);
        self.fold(op, length, at, to)?;
        let step = self.step()?;
        for rank in (0..self.ranks()).filter(|&rank| receives && rank != me) {
            let (from, length) = of(rank);
            copy(self.stage(rank, step), self.recv(begin + from), length);
        }
        Ok(())
    }

    /// Every rank folds its own part; a step carries a piece of every part.
    pub(super) fn reduce_scatter(&mut self, op: ReduceOp) -> Result<()> {
        let counts = self.call.counts;
        if self.is_inline() {
            return self.fold_inline(op, self.part(counts, self.me()));
        }
        let piece = BLOCK / self.ranks() / LINE * LINE;
        let longest = self.longest(counts);
        let now = |begin: usize, length: usize| piece.min(length.saturating_sub(begin));
        let fill = |own: &Self, begin: usize, stage: *mut u8| {
            for rank in (0..own.ranks()).filter(|&rank| rank != own.me()) {
                let (place, length) = own.part(counts, rank);
                let to = stage.wrapping_add(rank * piece);
                copy(own.send(place + begin.min(length)), to, now(begin, length));
            }
        };
        self.carry((piece, longest), fill, |own, begin, step| {
            let (shared, me) = (own.shared, own.me());
            let (place, length) = own.part(counts, me);
            let mine = own.send(place + begin.min(length));
            let at = |rank| match rank == me {
                true => mine,
                false => shared
                    .segment
                    .stage(rank, step)
                    .wrapping_add(me * piece)
                    .cast_const(),
            };
            own.fold(op, now(begin, length), at, [own.recv(begin.min(length))])
        })
    }

    /// Folds a part of the payload on boards into what this rank receives.
    #[inline]
    fn fold_inline(&mut self, op: ReduceOp, (place, length): (usize, usize)) -> Result<()> {
        let (boards, me, mine) = (self.boards, self.me(), self.send(place));
        let at = |rank: usize| match rank == me {
            true => mine,
            false => boards.payload(rank).wrapping_add(place),
        };
        self.fold(op, length, at, [self.recv(0)])
    }

    /// Folds `bytes` of the inputs that `at` gives into each of `to`.
    fn fold(
        &mut self,
        op: ReduceOp,
        bytes: usize,
        at: impl Fn(usize) -> *const u8,
        to: impl IntoIterator<Item = *mut u8>,
    ) -> Result<()> {
        let kind = (self.call.dtype, op);
        let elements = bytes / self.unit();
        let boards = self.boards;
        let inputs = (0..self.ranks()).map(|rank| Input {
            addr: at(rank),
            scalar: boards.scalar(rank),
        });
        // SAFETY: Inputs lie on boards and stages that nobody writes now, or are this rank's own;
        // targets are this rank's, and apart from them or the same range as its own input.
        unsafe { fold(kind, elements, inputs, to, self.scratch) }
    }
}
