//! Operations whose operands are private: they go through the ranks' stages, step by step.
//!
//! In a step every rank writes its stage, all meet, and every rank reads the others', but never its own:
//! a peer may have those lines for itself by then. Operations of
//! several steps write the next stage before they read, so that a rank which is a little behind holds
//! up nobody. A rank has three stages and takes them in turn, so that one meeting a step is enough: who
//! has come to a step has read everything of the step two before it, and who writes a stage again has
//! met everybody at the step before.

use std::ptr;

use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::error::Result;
use collectives_core::rank::Rank;

use super::board::Boards;
use super::letters::Letters;
use super::meeting;
use super::segment::STAGE;
use super::transport::Shared;
use crate::compare::Posts;
use crate::engine::fold::FoldScratch;

/// Bytes of one step; small enough to stay in a cache.
pub(super) const BLOCK: usize = 128 << 10;
const _: () = assert!(BLOCK <= STAGE);

/// Parts of a reduction begin at cache lines.
pub(super) const LINE: usize = 64;

/// One operation that all ranks have met in and said the same of.
pub(super) struct Staged<'a> {
    pub(super) shared: &'a Shared,
    pub(super) call: &'a Collective<'a>,
    pub(super) boards: &'a Boards<'a>,
    pub(super) letters: &'a mut Letters,
    pub(super) steps: &'a mut u64,
    pub(super) scratch: &'a mut FoldScratch,
}

impl Staged<'_> {
    /// Moves this rank's share.
    ///
    /// # Safety
    ///
    /// This rank's operands are valid until it returns.
    pub(super) unsafe fn run(mut self) -> Result<()> {
        let count = self.call.counts.of(Rank(0));
        let unit = self.unit();
        match self.call.op {
            Op::AllReduce(op) => self.reduce(op, count, None),
            Op::Reduce { op, root } => self.reduce(op, count, Some(root.index())),
            Op::ReduceScatter(op) => self.reduce_scatter(op),
            Op::AllGather => {
                let receives = |_: &Self| true;
                self.gather(receives)
            }
            Op::Gather { root } => self.gather(|own| own.me() == root.index()),
            Op::Scatter { root } => {
                let sends = |own: &Self, to: usize| own.part(own.call.counts, to);
                let longest = self.longest(self.call.counts);
                self.distribute(Some(root.index()), longest, sends, |own, _| {
                    own.of(own.me()) * unit
                })
            }
            Op::AllToAll { recv_counts } => {
                let sends = |own: &Self, to: usize| own.part(own.call.counts, to);
                // Every rank must take as many steps as the longest part of any pair needs.
                let ranks = self.ranks();
                let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
                let longest = pairs
                    .map(|(from, to)| self.boards.post(from).sends(to) * unit)
                    .max()
                    .unwrap_or(0);
                self.distribute(None, longest, sends, |_, from| {
                    recv_counts.of(Rank::new(from)) * unit
                })
            }
            Op::Broadcast { root } => self.broadcast(root.index()),
            _ => Ok(()),
        }
    }

    pub(super) fn me(&self) -> usize {
        self.shared.me
    }

    pub(super) fn ranks(&self) -> usize {
        self.shared.segment.ranks()
    }

    pub(super) fn unit(&self) -> usize {
        self.call.dtype.size()
    }

    fn of(&self, rank: usize) -> usize {
        self.call.counts.of(Rank::new(rank))
    }

    /// Where a rank's part begins in a whole, and its length, in bytes.
    pub(super) fn part(&self, counts: Counts<'_>, rank: usize) -> (usize, usize) {
        let (unit, rank) = (self.unit(), Rank::new(rank));
        (counts.before(rank) * unit, counts.of(rank) * unit)
    }

    pub(super) fn longest(&self, counts: Counts<'_>) -> usize {
        let parts = (0..self.ranks()).map(|rank| self.part(counts, rank).1);
        parts.max().unwrap_or(0)
    }

    pub(super) fn send(&self, offset: usize) -> *const u8 {
        self.call.send.addr.offset(offset).as_ptr()
    }

    pub(super) fn recv(&self, offset: usize) -> *mut u8 {
        self.call.recv.addr.offset(offset).as_ptr()
    }

    /// Whether the payload of all ranks lies on their boards, so that no step is needed.
    pub(super) fn is_inline(&self) -> bool {
        self.boards.are_inline()
    }

    /// Where a rank's payload lies, from an offset on, if no step is needed. This rank's own is read where
    /// it came from: a peer may have the board's line for itself by now.
    fn inline_input(&self, rank: usize, offset: usize) -> *const u8 {
        match rank == self.me() {
            true => self.send(offset),
            false => self.boards.payload(rank).wrapping_add(offset),
        }
    }

    /// This rank's stage for the next step.
    pub(super) fn own_stage(&self) -> *mut u8 {
        self.shared.segment.stage(self.me(), *self.steps)
    }

    /// This rank's stage is filled; gives the number of the step.
    fn arrive(&mut self) -> u64 {
        let step = *self.steps;
        *self.steps += 1;
        meeting::arrive(self.shared, *self.steps);
        step
    }

    /// Waits until the stages of all ranks are filled.
    fn wait(&mut self, step: u64) -> Result<()> {
        meeting::wait(self.shared, self.letters, step + 1)
    }

    /// Meets everybody, and gives the number of the step.
    pub(super) fn step(&mut self) -> Result<u64> {
        let step = self.arrive();
        self.wait(step)?;
        Ok(step)
    }

    /// Carries blocks of at most `block` bytes, of `whole` in all: `fill` puts one into this rank's
    /// stage, and `drain` takes it from those of all ranks. Both get where the block begins.
    pub(super) fn carry(
        &mut self,
        (block, whole): (usize, usize),
        fill: impl Fn(&Self, usize, *mut u8),
        mut drain: impl FnMut(&mut Self, usize, u64) -> Result<()>,
    ) -> Result<()> {
        if whole == 0 {
            return Ok(());
        }
        fill(self, 0, self.own_stage());
        let mut filled = self.arrive();
        for begin in (0..whole).step_by(block) {
            let step = filled;
            self.wait(step)?;
            let next = begin + block;
            if next < whole {
                fill(self, next, self.own_stage());
                filled = self.arrive();
            }
            drain(self, begin, step)?;
        }
        Ok(())
    }

    pub(super) fn stage(&self, rank: usize, step: u64) -> *const u8 {
        self.shared.segment.stage(rank, step).cast_const()
    }

    /// Every rank publishes its input, and those who receive copy all.
    fn gather(&mut self, receives: impl Fn(&Self) -> bool) -> Result<()> {
        let counts = self.call.counts;
        if self.is_inline() {
            if receives(self) {
                for rank in 0..self.ranks() {
                    let (place, length) = self.part(counts, rank);
                    let at = self.inline_input(rank, 0);
                    copy(at, self.recv(place), length);
                }
            }
            return Ok(());
        }
        let longest = self.longest(counts);
        let mine = self.part(counts, self.me()).1;
        let now = |begin: usize, length: usize| BLOCK.min(length.saturating_sub(begin));
        let is_read = self.call.root() != Some(Rank::new(self.me()));
        let fill = |own: &Self, begin: usize, stage| {
            if is_read {
                copy(own.send(begin.min(mine)), stage, now(begin, mine));
            }
        };
        self.carry((BLOCK, longest), fill, |own, begin, step| {
            for rank in (0..own.ranks()).filter(|_| receives(own)) {
                let (place, length) = own.part(counts, rank);
                let to = own.recv(place + begin.min(length));
                let from = match rank == own.me() {
                    true => own.send(begin.min(length)),
                    false => own.stage(rank, step),
                };
                copy(from, to, now(begin, length));
            }
            Ok(())
        })
    }

    /// Every rank, or the one that sends, has a part for each; a step carries a piece of each.
    fn distribute(
        &mut self,
        root: Option<usize>,
        longest: usize,
        sends: impl Fn(&Self, usize) -> (usize, usize),
        receives: impl Fn(&Self, usize) -> usize,
    ) -> Result<()> {
        let sends_now = root.is_none_or(|root| root == self.me());
        let sources = |ranks: usize| match root {
            Some(root) => root..root + 1,
            None => 0..ranks,
        };
        if self.is_inline() {
            let mut place = 0;
            for from in sources(self.ranks()) {
                let length = receives(self, from);
                // Parts on a board are even: others are not inline.
                let part = self.inline_input(from, self.me() * length);
                copy(part, self.recv(place), length);
                place += length;
            }
            return Ok(());
        }
        let piece = BLOCK / self.ranks() / LINE * LINE;
        let now = |begin: usize, length: usize| piece.min(length.saturating_sub(begin));
        let fill = |own: &Self, begin: usize, stage: *mut u8| {
            for to in (0..own.ranks()).filter(|&to| sends_now && to != own.me()) {
                let (place, length) = sends(own, to);
                let target = stage.wrapping_add(to * piece);
                copy(
                    own.send(place + begin.min(length)),
                    target,
                    now(begin, length),
                );
            }
        };
        self.carry((piece, longest), fill, |own, begin, step| {
            let mut place = 0;
            for from in sources(own.ranks()) {
                let length = receives(own, from);
                let part = match from == own.me() {
                    true => own.send(sends(own, from).0 + begin.min(length)),
                    false => own.stage(from, step).wrapping_add(own.me() * piece),
                };
                copy(
                    part,
                    own.recv(place + begin.min(length)),
                    now(begin, length),
                );
                place += length;
            }
            Ok(())
        })
    }

    fn broadcast(&mut self, root: usize) -> Result<()> {
        let bytes = self.call.recv.bytes;
        if self.is_inline() {
            copy(self.inline_input(root, 0), self.recv(0), bytes);
            return Ok(());
        }
        let block = |begin: usize| BLOCK.min(bytes - begin);
        let fill = |own: &Self, begin: usize, stage| {
            if own.me() == root {
                copy(own.send(begin), stage, block(begin));
            }
        };
        self.carry((BLOCK, bytes), fill, |own, begin, step| {
            let from = match own.me() == root {
                true => own.send(begin),
                false => own.stage(root, step),
            };
            copy(from, own.recv(begin), block(begin));
            Ok(())
        })
    }
}

/// Copies bytes between this rank's operands and the segment, or within an operand, which in place is
/// to where they are.
pub(super) fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes > 0 && from != to.cast_const() {
        // SAFETY: By the caller of `Staged::run`, operands are valid and as long as the counts say,
        // and do not overlap but in place; boards and stages are as long as their constants, and no
        // operand lies in them.
        unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
    }
}
