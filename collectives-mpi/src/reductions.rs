//! Reductions that MPI has an operation for.

use std::ffi::c_void;

use collectives_core::collective::{Collective, Op};
use collectives_core::error::Result;
use collectives_core::rank::Rank;

use crate::arithmetic::{Native, divide};
use crate::folded::{self, Work, make_room};
use crate::group::{Group, even};
use crate::raw::{in_place, int};

/// What one rooted reduction carries at most. MPICH 4.0.2 takes `MPI_IN_PLACE` for an address in some
/// of its algorithms for these, so a root that reduces in place passes a copy.
const ROOTED: usize = 16 << 20;

/// Runs a reduction, by MPI's own operation where it has one.
///
/// # Safety
///
/// The operands are valid, and all ranks call it alike.
pub(crate) unsafe fn run(group: &Group, call: &Collective<'_>, work: &mut Work) -> Result<()> {
    let ordered = group.in_rank_order && call.dtype.is_float();
    let native = call.reduction().filter(|_| !ordered);
    let native = native.and_then(|op| Native::of(call.dtype, op));
    let Some(native) = native else {
        // SAFETY: By the caller.
        return unsafe { folded::run(group, call, work) };
    };
    match call.op {
        // SAFETY: By the caller.
        Op::ReduceScatter(_) => unsafe { reduce_scatter(group, call, native, work) },
        // SAFETY: By the caller.
        _ => unsafe { reduce(group, call, native, work) },
    }
}

/// An all-reduce, or a reduce where there is a root, in as many calls as it takes.
unsafe fn reduce(
    group: &Group,
    call: &Collective<'_>,
    native: Native,
    work: &mut Work,
) -> Result<()> {
    let count = call.counts.of(Rank(0));
    let unit = call.dtype.size();
    let root = call.root();
    let receives = root.is_none_or(|root| root.index() == group.me);
    let is_in_place = receives && call.send.addr == call.recv.addr;
    let most = match root {
        None => group.largest,
        Some(_) => group.largest.min(ROOTED),
    };
    let mut begin = 0;
    while begin < count {
        let elements = (most / unit).min(count - begin);
        let from = call.send.addr.offset(begin * unit).as_ptr::<u8>();
        let send: *const c_void = match (is_in_place, root) {
            (false, _) => from.cast(),
            (true, None) => in_place().cast_const(),
            (true, Some(_)) => {
                let copy = make_room(&mut work.results, elements * unit);
                // SAFETY: By the caller of `run`, and there is room.
                unsafe { from.copy_to_nonoverlapping(copy, elements * unit) };
                copy.cast_const().cast()
            }
        };
        let recv = match receives {
            true => call.recv.addr.offset(begin * unit).as_ptr(),
            false => std::ptr::null_mut(),
        };
        match root {
            // SAFETY: By the caller of `run`.
            None => unsafe { group.comm.allreduce(send, recv, elements, native.kind) },
            Some(root) => {
                let root = Group::int(root.index());
                // SAFETY: By the caller of `run`.
                unsafe { group.comm.reduce(send, recv, elements, native.kind, root) }
            }
        }?;
        begin += elements;
    }
    if native.divide && receives {
        // SAFETY: The output is this rank's, and MPI is done with it.
        unsafe { divide(call.dtype, call.recv.addr.as_ptr(), count, group.ranks) };
    }
    Ok(())
}

unsafe fn reduce_scatter(
    group: &Group,
    call: &Collective<'_>,
    native: Native,
    work: &mut Work,
) -> Result<()> {
    let unit = call.dtype.size();
    let all = call.counts.before(Rank::new(group.ranks));
    if all > group.largest / unit {
        // SAFETY: By the caller of `run`.
        return unsafe { folded::run(group, call, work) };
    }
    let mine = call.counts.of(Rank::new(group.me));
    let send = call.send.addr.as_ptr::<u8>();
    let recv = call.recv.addr.as_ptr::<u8>();
    // MPI wants the whole input where the output goes; ours is a part of it.
    let apart = !call.send.overlaps(call.recv);
    let to = match apart {
        true => recv,
        false => make_room(&mut work.results, mine * unit),
    };
    match even(&call.counts, group.ranks) {
        Some(count) => {
            // SAFETY: By the caller of `run`, and the working memory is long enough.
            unsafe {
                group
                    .comm
                    .reduce_scatter_block(send, to, count, native.kind)
            }?;
        }
        None => {
            let each = (0..group.ranks).map(|rank| int(call.counts.of(Rank::new(rank))));
            let counts = each.collect::<Result<Vec<_>>>()?;
            // SAFETY: As above.
            unsafe { group.comm.reduce_scatter(send, to, &counts, native.kind) }?;
        }
    }
    if !apart {
        // SAFETY: The result lies in the working memory, and the output is this rank's.
        unsafe { to.copy_to_nonoverlapping(recv, mine * unit) };
    }
    if native.divide {
        // SAFETY: The output is this rank's, and MPI is done with it.
        unsafe { divide(call.dtype, recv, mine, group.ranks) };
    }
    Ok(())
}
