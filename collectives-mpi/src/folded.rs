//! Reductions that MPI has no operation for: inputs are exchanged, and folded in rank order.
//!
//! Every rank gets all inputs of one part, folds them with one rounding, and the parts are gathered:
//! as many bytes travel as in MPI's own algorithms, and the bits are those of the accumulation rules.
//! Large operations go in slices, so that working memory stays small; of small ones every rank gets
//! everything, which takes one exchange.

use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::error::Result;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_host::engine::fold::{FoldScratch, Input, fold};

use crate::group::{Group, Parts};
use crate::messages::{Piece, exchange};

/// Bytes of one rank's part of one slice.
const PART: usize = 256 << 10;

/// Bytes of all inputs together that every rank gets, rather than a part of them.
const SMALL: usize = 32 << 10;

/// Parts begin at cache lines.
const LINE: usize = 64;

/// Working memory of one communicator.
#[derive(Debug, Default)]
pub(crate) struct Work {
    fold: FoldScratch,
    inputs: Vec<u8>,
    pub(crate) results: Vec<u8>,
}

/// Runs a reduction.
///
/// # Safety
///
/// The operands are valid, and all ranks call it alike.
pub(crate) unsafe fn run(group: &Group, call: &Collective<'_>, work: &mut Work) -> Result<()> {
    let Some(op) = call.reduction() else {
        return Ok(());
    };
    // SAFETY: By the caller.
    let scalars = unsafe { scalars(group, op) }?;
    let folded = Folded {
        group,
        call,
        op,
        scalars,
        unit: call.dtype.size(),
    };
    match call.op {
        // SAFETY: By the caller.
        Op::ReduceScatter(_) => unsafe { folded.reduce_scatter(work) },
        // SAFETY: By the caller.
        _ => unsafe { folded.reduce(work) },
    }
}

/// Every rank's own scalar, where the reduction has any.
unsafe fn scalars(group: &Group, op: ReduceOp) -> Result<Vec<u64>> {
    let mut all = vec![0_u64; group.ranks];
    if let ReduceOp::PreMulSum(scalar) = op {
        let own = scalar.bits();
        let (from, to) = (&raw const own, all.as_mut_ptr());
        // SAFETY: There is a word for each rank.
        unsafe {
            group
                .comm
                .allgather(from.cast(), to.cast(), size_of::<u64>())
        }?;
    }
    Ok(all)
}

struct Folded<'a> {
    group: &'a Group,
    call: &'a Collective<'a>,
    op: ReduceOp,
    scalars: Vec<u64>,
    unit: usize,
}

impl Folded<'_> {
    fn root(&self) -> Option<Rank> {
        self.call.root()
    }

    /// An all-reduce, or a reduce where there is a root.
    unsafe fn reduce(&self, work: &mut Work) -> Result<()> {
        let count = self.call.counts.of(Rank(0));
        let bytes = count * self.unit;
        if bytes.saturating_mul(self.group.ranks) <= SMALL {
            // SAFETY: By the caller of `run`.
            return unsafe { self.small(count, work) };
        }
        let slice = PART / self.unit * self.group.ranks;
        let mut begin = 0;
        while begin < count {
            let elements = slice.min(count - begin);
            // SAFETY: By the caller of `run`; slices do not overlap.
            unsafe { self.slice(begin, elements, work) }?;
            begin += elements;
        }
        Ok(())
    }

    /// Every rank, or the root, gets all inputs.
    unsafe fn small(&self, count: usize, work: &mut Work) -> Result<()> {
        let (group, bytes) = (self.group, count * self.unit);
        let send = self.call.send.addr.as_ptr::<u8>().cast_const();
        let to = make_room(&mut work.inputs, bytes * group.ranks);
        match self.root() {
            None => {
                // SAFETY: By the caller of `run`, and there is room for every rank.
                unsafe { group.comm.allgather(send.cast(), to, bytes) }?;
            }
            Some(root) => {
                let parts = Parts::of(&Counts::Even(bytes), group.ranks, 1)?;
                let to_root = Group::int(root.index());
                // SAFETY: As above.
                unsafe {
                    group
                        .comm
                        .gatherv(send.cast(), bytes, to, parts.as_pair(), to_root)
                }?;
                if root.index() != group.me {
                    return Ok(());
                }
            }
        }
        let recv = self.call.recv.addr.as_ptr::<u8>();
        // SAFETY: The inputs are this rank's own copies, and the output is the caller's.
        unsafe { self.fold(count, work, recv) }
    }

    /// One slice: each rank folds a part of it, and the parts are gathered.
    unsafe fn slice(&self, begin: usize, elements: usize, work: &mut Work) -> Result<()> {
        let group = self.group;
        let part = elements
            .div_ceil(group.ranks)
            .next_multiple_of(LINE / self.unit);
        let of = |rank: usize| part.min(elements.saturating_sub(part * rank));
        let mine = of(group.me) * self.unit;
        let lengths = Parts::of_lengths((0..group.ranks).map(|rank| of(rank) * self.unit))?;
        let inputs = Parts::of_lengths((0..group.ranks).map(|_| mine))?;
        let at = begin * self.unit;
        let send = self.call.send.addr.offset(at).as_ptr::<u8>();
        let to = make_room(&mut work.inputs, mine * group.ranks);
        // SAFETY: By the caller of `run`, and there is room for every rank's part.
        unsafe {
            group
                .comm
                .alltoallv(send, lengths.as_pair(), to, inputs.as_pair())
        }?;
        let results = make_room(&mut work.results, mine);
        // SAFETY: Inputs and results are this rank's own.
        unsafe { self.fold(of(group.me), work, results) }?;
        let from = results.cast_const().cast();
        match self.root() {
            None => {
                let recv = self.call.recv.addr.offset(at).as_ptr();
                // SAFETY: By the caller of `run`; this slice of the input was sent already.
                unsafe { group.comm.allgatherv(from, mine, recv, lengths.as_pair()) }
            }
            Some(root) => {
                let recv = match root.index() == group.me {
                    true => self.call.recv.addr.offset(at).as_ptr(),
                    false => std::ptr::null_mut(),
                };
                let root = Group::int(root.index());
                // SAFETY: As above.
                unsafe {
                    group
                        .comm
                        .gatherv(from, mine, recv, lengths.as_pair(), root)
                }
            }
        }
    }

    /// Each rank folds its own part, slice by slice.
    unsafe fn reduce_scatter(&self, work: &mut Work) -> Result<()> {
        let group = self.group;
        let counts = &self.call.counts;
        let of = |rank: usize| counts.of(Rank::new(rank));
        let longest = (0..group.ranks).map(of).max().unwrap_or(0);
        let slice = PART / self.unit;
        let send = self.call.send.addr;
        let mut begin = 0;
        while begin < longest {
            let now = |rank: usize| slice.min(of(rank).saturating_sub(begin));
            let mine = now(group.me) * self.unit;
            let to = make_room(&mut work.inputs, mine * group.ranks);
            let sends = (0..group.ranks).map(|rank| Piece {
                rank,
                addr: send
                    .offset((counts.before(Rank::new(rank)) + begin.min(of(rank))) * self.unit)
                    .as_ptr::<u8>()
                    .cast_const(),
                bytes: now(rank) * self.unit,
            });
            let receives = (0..group.ranks).map(|rank| Piece {
                rank,
                addr: to.wrapping_add(rank * mine),
                bytes: mine,
            });
            // SAFETY: By the caller of `run`, and there is room for every rank's part.
            unsafe { exchange(group, sends, receives) }?;
            let at = begin.min(of(group.me)) * self.unit;
            let recv = self.call.recv.addr.offset(at).as_ptr();
            // SAFETY: By the caller of `run`; this slice of the input was sent already.
            unsafe { self.fold(now(group.me), work, recv) }?;
            begin += slice;
        }
        Ok(())
    }

    /// Folds the inputs in the working memory into `to`.
    ///
    /// # Safety
    ///
    /// They have that many elements each, and `to` is writable and no part of them.
    unsafe fn fold(&self, elements: usize, work: &mut Work, to: *mut u8) -> Result<()> {
        let bytes = elements * self.unit;
        let start = work.inputs.as_ptr();
        let inputs = (0..self.group.ranks).map(|rank| Input {
            addr: start.wrapping_add(rank * bytes),
            scalar: self.scalars[rank],
        });
        let kind = (self.call.dtype, self.op);
        let to = std::iter::once(to);
        // SAFETY: By the caller.
        unsafe { fold(kind, elements, inputs, to, &mut work.fold) }
    }
}

/// At least this many bytes of working memory.
pub(crate) fn make_room(memory: &mut Vec<u8>, bytes: usize) -> *mut u8 {
    if memory.len() < bytes {
        memory.resize(bytes, 0);
    }
    memory.as_mut_ptr()
}
