//! Operations that move elements and do not look at them.

use std::ffi::c_void;

use collectives_core::addr::Operand;
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::error::Result;
use collectives_core::rank::Rank;

use crate::group::{Group, Parts, even};
use crate::messages::{Piece, exchange};
use crate::raw::in_place;

/// Runs one of them.
///
/// # Safety
///
/// The operands are valid, and all ranks call it alike.
pub(crate) unsafe fn run(group: &Group, call: &Collective<'_>) -> Result<()> {
    let (send, recv) = (pointer(call.send), pointer(call.recv));
    let unit = call.dtype.size();
    match call.op {
        // SAFETY: By the caller.
        Op::Broadcast { root } => unsafe { broadcast(group, call, root) },
        // SAFETY: By the caller.
        Op::AllGather => unsafe { all_gather(group, send, recv, &call.counts, unit) },
        // SAFETY: By the caller.
        Op::Gather { root } => unsafe { gather(group, (send, recv), &call.counts, unit, root) },
        // SAFETY: By the caller.
        Op::Scatter { root } => unsafe { scatter(group, (send, recv), &call.counts, unit, root) },
        Op::AllToAll { recv_counts } => {
            // SAFETY: By the caller.
            unsafe { all_to_all(group, (send, recv), (&call.counts, &recv_counts), unit) }
        }
        _ => group.comm.barrier(),
    }
}

fn pointer(operand: Operand) -> *mut u8 {
    operand.addr.as_ptr()
}

fn total(counts: &Counts<'_>, ranks: usize) -> usize {
    counts.before(Rank::new(ranks))
}

/// Each rank's place and length in a whole.
fn part(counts: &Counts<'_>, rank: usize, unit: usize) -> (usize, usize) {
    let rank = Rank::new(rank);
    (counts.before(rank) * unit, counts.of(rank) * unit)
}

unsafe fn broadcast(group: &Group, call: &Collective<'_>, root: Rank) -> Result<()> {
    let is_root = root.index() == group.me;
    let buffer = pointer(if is_root { call.send } else { call.recv });
    let bytes = call.recv.bytes;
    let mut offset = 0;
    while offset < bytes {
        let piece = group.largest.min(bytes - offset);
        let from = buffer.wrapping_add(offset);
        // SAFETY: By the caller of `run`.
        unsafe { group.comm.bcast(from, piece, Group::int(root.index())) }?;
        offset += piece;
    }
    if is_root && call.send.addr != call.recv.addr {
        // SAFETY: Both are valid, and they are the same range or do not overlap.
        unsafe { buffer.copy_to_nonoverlapping(pointer(call.recv), bytes) };
    }
    Ok(())
}

/// # Safety
///
/// As for [`run`].
pub(crate) unsafe fn all_gather(
    group: &Group,
    send: *const u8,
    recv: *mut u8,
    counts: &Counts<'_>,
    unit: usize,
) -> Result<()> {
    let (place, bytes) = part(counts, group.me, unit);
    let whole = total(counts, group.ranks) * unit;
    if whole > group.largest {
        let sends = (0..group.ranks).map(|rank| Piece {
            rank,
            addr: send,
            bytes,
        });
        // SAFETY: By the caller; the parts of the output do not overlap.
        return unsafe { exchange(group, sends, pieces(recv, counts, group.ranks, unit)) };
    }
    let from = if std::ptr::eq(send, recv.wrapping_add(place)) && bytes > 0 {
        in_place().cast_const()
    } else {
        send.cast::<c_void>()
    };
    if even(counts, group.ranks).is_some() {
        // SAFETY: By the caller.
        return unsafe { group.comm.allgather(from, recv, bytes) };
    }
    let parts = Parts::of(counts, group.ranks, unit)?;
    // A rank without elements passes its own place too: it is of no length.
    // SAFETY: By the caller.
    unsafe { group.comm.allgatherv(from, bytes, recv, parts.as_pair()) }
}

unsafe fn gather(
    group: &Group,
    (send, recv): (*mut u8, *mut u8),
    counts: &Counts<'_>,
    unit: usize,
    root: Rank,
) -> Result<()> {
    let rooted = Rooted::new(group, recv, counts, unit, root);
    if rooted.is_cut {
        let send = std::iter::once(rooted.piece(send).to_send());
        // SAFETY: By the caller of `run`.
        return unsafe { exchange(group, send, rooted.pieces()) };
    }
    let from = rooted.own(send).cast_const();
    let parts = Parts::of(counts, group.ranks, unit)?;
    let (bytes, root) = (rooted.bytes, rooted.root());
    // SAFETY: By the caller of `run`.
    unsafe { group.comm.gatherv(from, bytes, recv, parts.as_pair(), root) }
}

unsafe fn scatter(
    group: &Group,
    (send, recv): (*mut u8, *mut u8),
    counts: &Counts<'_>,
    unit: usize,
    root: Rank,
) -> Result<()> {
    let rooted = Rooted::new(group, send, counts, unit, root);
    if rooted.is_cut {
        let sends = rooted.pieces().map(Piece::to_send);
        let receive = std::iter::once(rooted.piece(recv));
        // SAFETY: By the caller of `run`.
        return unsafe { exchange(group, sends, receive) };
    }
    let to = rooted.own(recv);
    let parts = Parts::of(counts, group.ranks, unit)?;
    let (bytes, root) = (rooted.bytes, rooted.root());
    // SAFETY: By the caller of `run`.
    unsafe { group.comm.scatterv(send, parts.as_pair(), to, bytes, root) }
}

/// A root's whole, of which every rank, the root too, has a part elsewhere.
struct Rooted<'a> {
    group: &'a Group,
    whole: *mut u8,
    counts: &'a Counts<'a>,
    unit: usize,
    root: Rank,
    /// Where this rank's part lies in the whole, and its length.
    place: usize,
    bytes: usize,
    /// Whether it is more than one call carries.
    is_cut: bool,
}

impl<'a> Rooted<'a> {
    fn new(
        group: &'a Group,
        whole: *mut u8,
        counts: &'a Counts<'a>,
        unit: usize,
        root: Rank,
    ) -> Self {
        let (place, bytes) = part(counts, group.me, unit);
        Self {
            group,
            whole,
            counts,
            unit,
            root,
            place,
            bytes,
            is_cut: total(counts, group.ranks) * unit > group.largest,
        }
    }

    fn is_root(&self) -> bool {
        self.root.index() == self.group.me
    }

    fn root(&self) -> std::ffi::c_int {
        Group::int(self.root.index())
    }

    /// This rank's part, which goes to the root or comes from it.
    fn piece(&self, addr: *mut u8) -> Piece<*mut u8> {
        Piece {
            rank: self.root.index(),
            addr,
            bytes: self.bytes,
        }
    }

    /// The parts of the whole, on the root.
    fn pieces(&self) -> impl Iterator<Item = Piece<*mut u8>> {
        let ranks = if self.is_root() { self.group.ranks } else { 0 };
        pieces(self.whole, self.counts, ranks, self.unit)
    }

    /// This rank's part as MPI takes it, which is told where the part lies in the whole already.
    fn own(&self, addr: *mut u8) -> *mut c_void {
        let within = self.whole.wrapping_add(self.place);
        match self.is_root() && self.bytes > 0 && std::ptr::eq(addr, within) {
            true => in_place(),
            false => addr.cast(),
        }
    }
}

/// # Safety
///
/// As for [`run`].
pub(crate) unsafe fn all_to_all(
    group: &Group,
    (send, recv): (*mut u8, *mut u8),
    (counts, recv_counts): (&Counts<'_>, &Counts<'_>),
    unit: usize,
) -> Result<()> {
    let ranks = group.ranks;
    // A rank cannot tell whether the counts of others are even too, so it is always messages.
    let sends = pieces(send, counts, ranks, unit).map(Piece::to_send);
    // SAFETY: By the caller; parts do not overlap.
    unsafe { exchange(group, sends, pieces(recv, recv_counts, ranks, unit)) }
}

/// The parts of a whole, one for each rank.
fn pieces<'a>(
    whole: *mut u8,
    counts: &'a Counts<'_>,
    ranks: usize,
    unit: usize,
) -> impl Iterator<Item = Piece<*mut u8>> + 'a {
    (0..ranks).map(move |rank| {
        let (place, bytes) = part(counts, rank, unit);
        Piece {
            rank,
            addr: whole.wrapping_add(place),
            bytes,
        }
    })
}
