//! Operations whose operands lie in windows: every rank reads and writes the others' directly.
//!
//! Ranks meet, each moves its share in one pass, and they meet again. The result has the bits of
//! the accumulation rules, because each element is folded by one rank, in rank order.

use collectives_core::addr::{Addr, Operand, WindowId};
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::error::Result;
use collectives_core::path::PathTable;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;

use super::fold::{FoldScratch, Input, fold};
use crate::capabilities::symmetric_paths;
use crate::windows::Window;

/// All reductions but the pre-multiplied sum, whose scalars only their own ranks know.
const REDUCTIONS: &[u8] = &[0, 1, 2, 3, 4];

/// Parts of a reduction end at cache lines, so that no two ranks write one.
const LINE: usize = 64;

/// What is served here, as data.
pub(super) fn paths() -> PathTable {
    let kernels = [
        "direct_all_reduce",
        "direct_reduce_scatter",
        "direct_all_gather",
    ];
    symmetric_paths(REDUCTIONS, kernels)
}

/// One operation that is served here.
pub(super) struct Direct<'a> {
    call: &'a Collective<'a>,
    me: usize,
    ranks: usize,
    /// The window and the offset of the side that peers read, and of the one that they write.
    read: Option<(&'a Window, usize)>,
    written: Option<(&'a Window, usize)>,
}

impl<'a> Direct<'a> {
    /// The operation, if what it needs lies in windows. The same on all ranks, because which window
    /// and offset an operand has is an argument that all pass alike.
    pub(super) fn of(
        call: &'a Collective<'a>,
        me: Rank,
        ranks: usize,
        window: impl Fn(WindowId) -> Option<&'a Window>,
    ) -> Option<Self> {
        let place = |side: Operand| {
            let slice = side.window?;
            Some((window(slice.window)?, slice.offset))
        };
        let (read, written) = match call.op {
            _ if ranks < 2 || call.is_empty() => return None,
            Op::AllReduce(ReduceOp::PreMulSum(_)) | Op::ReduceScatter(ReduceOp::PreMulSum(_)) => {
                return None;
            }
            Op::AllReduce(_) => (Some(place(call.send)?), Some(place(call.recv)?)),
            Op::ReduceScatter(_) => (Some(place(call.send)?), None),
            Op::AllGather => (None, Some(place(call.recv)?)),
            _ => return None,
        };
        Some(Self {
            call,
            me: me.index(),
            ranks,
            read,
            written,
        })
    }

    /// Moves this rank's share, between two meetings of all ranks.
    ///
    /// # Safety
    ///
    /// All ranks run the same operation, with valid operands, and none leaves before all are done.
    pub(super) unsafe fn run(&self, scratch: &mut FoldScratch) -> Result<()> {
        let size = self.call.dtype.size();
        match self.call.op {
            Op::AllReduce(op) => {
                let (begin, end) = self.share(self.call.counts.of(Rank(0)));
                let to = |distance| {
                    let output = self.output((self.me + distance) % self.ranks);
                    output.offset(begin * size).as_ptr::<u8>()
                };
                let targets = (0..self.ranks).map(to);
                // SAFETY: By the caller; the range is this rank's share.
                unsafe { self.fold(op, begin, end, scratch, targets) }
            }
            Op::ReduceScatter(op) => {
                let begin = self.before(self.me);
                let end = begin + self.counts().of(Rank::new(self.me));
                let to = std::iter::once(self.call.recv.addr.as_ptr::<u8>());
                // SAFETY: By the caller; the range is this rank's part.
                unsafe { self.fold(op, begin, end, scratch, to) }
            }
            _ => {
                let send = self.call.send;
                let part = self.before(self.me) * size;
                for distance in 0..self.ranks {
                    let to = self.output((self.me + distance) % self.ranks).offset(part);
                    if to != send.addr && send.bytes > 0 {
                        let (from, to) = (send.addr.as_ptr::<u8>(), to.as_ptr::<u8>());
                        // SAFETY: By the caller, the part lies in the rank's output and is written
                        // by this rank alone; where it is the input itself nothing is copied.
                        unsafe { std::ptr::copy_nonoverlapping(from, to, send.bytes) };
                    }
                }
                Ok(())
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Direct::run`], and the range is this rank's to fold.
    unsafe fn fold(
        &self,
        op: ReduceOp,
        begin: usize,
        end: usize,
        scratch: &mut FoldScratch,
        targets: impl IntoIterator<Item = *mut u8>,
    ) -> Result<()> {
        if begin >= end {
            return Ok(());
        }
        let start = begin * self.call.dtype.size();
        let inputs = (0..self.ranks).map(|rank| Input {
            addr: self.input(rank).offset(start).as_ptr(),
            scalar: 0,
        });
        let kind = (self.call.dtype, op);
        // SAFETY: By the caller, the range lies in all inputs, and nobody else writes it.
        unsafe { fold(kind, end - begin, inputs, targets, scratch) }
    }

    fn input(&self, rank: usize) -> Addr {
        self.read
            .map_or(Addr::NULL, |(window, offset)| window.part(rank, offset))
    }

    fn output(&self, rank: usize) -> Addr {
        self.written
            .map_or(Addr::NULL, |(window, offset)| window.part(rank, offset))
    }

    fn counts(&self) -> Counts<'_> {
        self.call.counts
    }

    fn before(&self, rank: usize) -> usize {
        self.counts().before(Rank::new(rank))
    }

    /// The elements of `count` that this rank takes care of, ending at cache lines.
    fn share(&self, count: usize) -> (usize, usize) {
        let line = LINE / self.call.dtype.size();
        let part = count.div_ceil(self.ranks).next_multiple_of(line);
        let begin = part.saturating_mul(self.me).min(count);
        (begin, begin.saturating_add(part).min(count))
    }
}
