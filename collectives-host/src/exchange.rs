//! The data movement of each collective, once all ranks have met and said the same.
//!
//! Each rank moves its share alone, in one pass: of a reduction it reduces one part of all ranks'
//! inputs and writes it to all who want it, in rank order per element, so that every rank gets the
//! same bits. Nobody writes what another reads, apart from a part's own owner, after reading it.

use std::ptr;

use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::error::Result;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;

use crate::compare::Posts;
use crate::post::INLINE;
use crate::reduce::{Reducer, Scratch, Source};

/// What an algorithm sees of the ranks.
pub(crate) trait View: Posts {
    fn rank(&self) -> Rank;
    /// Where a rank's input can be read.
    fn input(&self, rank: usize) -> *const u8;
    /// Where a rank's output can be written.
    fn output(&self, rank: usize) -> *mut u8 {
        self.post(rank).recv.addr
    }
}

/// Bytes that all ranks share in copying to make a broadcast; below, each rank copies for itself.
const SHARED_COPY: usize = 256 << 10;

/// Parts of a reduction end at cache lines, so that no two ranks write one.
const LINE: usize = 64;

/// Moves this rank's share.
///
/// # Safety
///
/// All ranks' operands are valid for the operation, as [`Collective::check`] and the comparison of
/// the posts established, and stay so until all have left the meeting.
pub(crate) unsafe fn run<V: View>(
    view: &V,
    call: &Collective<'_>,
    scratch: &mut Scratch,
) -> Result<()> {
    if matches!(call.op, Op::Barrier) {
        return Ok(());
    }
    // INVARIANT: By the caller, all ranks' operands are valid and as long as the call says.
    let exchange = Exchange {
        view,
        call,
        me: view.rank().index(),
        ranks: view.world_size(),
        size: call.dtype.size(),
        counts: call.counts,
    };
    exchange.run(scratch)
}

/// One rank's part of an operation.
///
/// INVARIANT: all ranks' operands are valid until all have left the meeting, and have the length
/// that the call's counts, or an all-to-all's posts, say.
struct Exchange<'a, V> {
    view: &'a V,
    call: &'a Collective<'a>,
    me: usize,
    ranks: usize,
    size: usize,
    counts: Counts<'a>,
}

impl<V: View> Exchange<'_, V> {
    fn run(&self, scratch: &mut Scratch) -> Result<()> {
        let count = self.counts.of(Rank(0));
        let inline = self.view.post(self.me).head.is(INLINE);
        match self.call.op {
            Op::AllReduce(op) if inline => self.reduce(op, scratch, (0, count), [self.me]),
            Op::AllReduce(op) => {
                let everyone = (0..self.ranks).map(|distance| (self.me + distance) % self.ranks);
                self.reduce(op, scratch, self.share(count), everyone)
            }
            Op::Reduce { op, root } if inline => {
                let all = if root.index() == self.me { count } else { 0 };
                self.reduce(op, scratch, (0, all), [self.me])
            }
            Op::Reduce { op, root } => self.reduce(op, scratch, self.share(count), [root.index()]),
            Op::ReduceScatter(op) => {
                let begin = self.before(self.me);
                let part = (begin, begin + self.of(self.me));
                self.reduce_into(op, scratch, part, [self.view.output(self.me)])
            }
            Op::AllGather => {
                self.gather();
                Ok(())
            }
            Op::Gather { root } if inline => {
                if root.index() == self.me {
                    self.gather();
                }
                Ok(())
            }
            Op::Gather { root } => {
                let to = (root.index(), self.before(self.me));
                self.copy((self.me, 0), to, self.of(self.me));
                Ok(())
            }
            Op::Scatter { root } => {
                let from = (root.index(), self.before(self.me));
                self.copy(from, (self.me, 0), self.of(self.me));
                Ok(())
            }
            Op::Broadcast { root } => {
                self.broadcast(root.index(), count);
                Ok(())
            }
            Op::AllToAll { .. } => {
                self.all_to_all();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Copies every rank's input to its part of this rank's output.
    fn gather(&self) {
        for distance in 0..self.ranks {
            let from = (self.me + distance) % self.ranks;
            self.copy((from, 0), (self.me, self.before(from)), self.of(from));
        }
    }

    fn of(&self, rank: usize) -> usize {
        self.counts.of(Rank::new(rank))
    }

    fn before(&self, rank: usize) -> usize {
        self.counts.before(Rank::new(rank))
    }

    /// The elements of `count` that this rank takes care of, ending at cache lines.
    fn share(&self, count: usize) -> (usize, usize) {
        let line = LINE / self.size;
        let part = count.div_ceil(self.ranks).next_multiple_of(line);
        let begin = part.saturating_mul(self.me).min(count);
        (begin, begin.saturating_add(part).min(count))
    }

    /// Reduces elements `begin..end` of all inputs into the same elements of these ranks' outputs.
    fn reduce(
        &self,
        op: ReduceOp,
        scratch: &mut Scratch,
        range: (usize, usize),
        ranks: impl IntoIterator<Item = usize>,
    ) -> Result<()> {
        let start = range.0 * self.size;
        let output = |rank| self.view.output(rank).wrapping_add(start);
        self.reduce_into(op, scratch, range, ranks.into_iter().map(output))
    }

    /// Reduces elements `begin..end` of all inputs; each of the targets gets the results.
    fn reduce_into(
        &self,
        op: ReduceOp,
        scratch: &mut Scratch,
        (begin, end): (usize, usize),
        targets: impl IntoIterator<Item = *mut u8>,
    ) -> Result<()> {
        if begin >= end {
            return Ok(());
        }
        let start = begin * self.size;
        let source = |rank| Source {
            addr: self.view.input(rank).wrapping_add(start),
            scalar: self.view.post(rank).scalar,
        };
        let job = scratch.job(end - begin, (0..self.ranks).map(source), targets);
        // SAFETY: By the invariant, the range lies in all operands; only this rank reads and writes
        // these elements of the targets, which are apart from the sources or the same range.
        unsafe { Reducer::new(self.call.dtype, op)?.run(job) };
        Ok(())
    }

    /// Copies `count` elements from one rank's input to another's output, each from an element on.
    fn copy(&self, from: (usize, usize), to: (usize, usize), count: usize) {
        let source = self.view.input(from.0).wrapping_add(from.1 * self.size);
        let target = self.view.output(to.0).wrapping_add(to.1 * self.size);
        if count > 0 && !ptr::eq(source, target) {
            // SAFETY: By the invariant, parts lie inside their operands, which overlap only where
            // they are the same range.
            unsafe { ptr::copy_nonoverlapping(source, target, count * self.size) };
        }
    }

    fn broadcast(&self, root: usize, count: usize) {
        if count * self.size < SHARED_COPY {
            self.copy((root, 0), (self.me, 0), count);
            return;
        }
        let (begin, end) = self.share(count);
        for distance in 0..self.ranks {
            let to = (self.me + distance) % self.ranks;
            self.copy((root, begin), (to, begin), end - begin);
        }
    }

    fn all_to_all(&self) {
        for distance in 0..self.ranks {
            let from = (self.me + distance) % self.ranks;
            let (mine, theirs) = (self.view.post(self.me), self.view.post(from));
            let begin = (0..self.me).map(|rank| theirs.sends(rank)).sum();
            let to = (0..from).map(|rank| mine.receives(rank)).sum();
            self.copy((from, begin), (self.me, to), theirs.sends(self.me));
        }
    }
}
