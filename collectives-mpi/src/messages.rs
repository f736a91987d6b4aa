//! Messages between two ranks: users', and those that larger operations are made of.

use std::ffi::c_int;

use collectives_core::agreement::mismatch;
use collectives_core::collective::{Collective, Op};
use collectives_core::error::{Error, Field, Result};

use crate::group::Group;
use crate::requests::Requests;

/// Messages that users send and receive.
const USERS: c_int = 1;
/// Messages inside one operation; ranks run those in one order, so they meet in order.
const INSIDE: c_int = 2;

/// Bytes for, or from, one rank.
#[derive(Clone, Copy)]
pub(crate) struct Piece<P> {
    pub(crate) rank: usize,
    pub(crate) addr: P,
    pub(crate) bytes: usize,
}

impl Piece<*mut u8> {
    /// The same bytes, to be read.
    pub(crate) fn to_send(self) -> Piece<*const u8> {
        Piece {
            rank: self.rank,
            addr: self.addr.cast_const(),
            bytes: self.bytes,
        }
    }
}

/// Sends and receives everything, in pieces that one call can carry; what a rank has for itself is
/// copied.
///
/// # Safety
///
/// The pieces are valid, and those that are written overlap no other; both sides of each pair know
/// how much there is.
pub(crate) unsafe fn exchange(
    group: &Group,
    sends: impl Iterator<Item = Piece<*const u8>>,
    receives: impl Iterator<Item = Piece<*mut u8>>,
) -> Result<()> {
    let mut requests = Requests::default();
    let mut own_in = None;
    for piece in receives {
        if piece.rank == group.me {
            own_in = Some(piece);
            continue;
        }
        let from = (Group::int(piece.rank), INSIDE);
        for (offset, bytes) in cuts(piece.bytes, group.largest).filter(|&(_, bytes)| bytes > 0) {
            let to = piece.addr.wrapping_add(offset);
            // SAFETY: By the caller.
            unsafe { requests.receive(group.comm, (to, bytes), from) }?;
        }
    }
    for piece in sends {
        if piece.rank == group.me {
            if let Some(to) = own_in.filter(|to| !std::ptr::eq(to.addr, piece.addr)) {
                // SAFETY: By the caller, and they are not the same.
                unsafe { piece.addr.copy_to_nonoverlapping(to.addr, piece.bytes) };
            }
            continue;
        }
        let to = (Group::int(piece.rank), INSIDE);
        for (offset, bytes) in cuts(piece.bytes, group.largest).filter(|&(_, bytes)| bytes > 0) {
            let from = piece.addr.wrapping_add(offset);
            // SAFETY: By the caller.
            unsafe { requests.send(group.comm, (from, bytes), to) }?;
        }
    }
    settle(requests)
}

/// Starts the messages among the calls of a group.
///
/// # Safety
///
/// The operands are valid until the requests were waited for.
pub(crate) unsafe fn post(group: &Group, calls: &[Collective<'_>]) -> Result<Requests> {
    let mut requests = Requests::default();
    for call in calls {
        match call.op {
            Op::Recv { from } => {
                let from = (Group::int(from.index()), USERS);
                for (offset, bytes) in cuts(call.recv.bytes, group.largest) {
                    let to = call.recv.addr.as_ptr::<u8>().wrapping_add(offset);
                    // SAFETY: By the caller.
                    unsafe { requests.receive(group.comm, (to, bytes), from) }?;
                }
            }
            Op::Send { to } => {
                let to = (Group::int(to.index()), USERS);
                for (offset, bytes) in cuts(call.send.bytes, group.largest) {
                    let from = call.send.addr.as_ptr::<u8>().wrapping_add(offset);
                    // SAFETY: By the caller.
                    unsafe { requests.send(group.comm, (from, bytes), to) }?;
                }
            }
            _ => {}
        }
    }
    Ok(requests)
}

/// Waits for messages; one that is shorter than its receiver expects is a mismatch.
pub(crate) fn settle(requests: Requests) -> Result<()> {
    match requests.wait()? {
        None => Ok(()),
        Some((from, came, expected)) => Err(shorter(from, came, expected)),
    }
}

#[cold]
fn shorter(from: c_int, came: c_int, expected: c_int) -> Error {
    let rank = usize::try_from(from).unwrap_or(0);
    let text = |bytes: c_int| format!("{bytes} bytes");
    mismatch(rank, Field::Count, text(came), text(expected))
}

/// Offsets and lengths of pieces, at least one.
fn cuts(bytes: usize, largest: usize) -> impl Iterator<Item = (usize, usize)> {
    let pieces = bytes.div_ceil(largest).max(1);
    (0..pieces).map(move |index| {
        let offset = index * largest;
        (offset, largest.min(bytes - offset))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once_and_nothing_is_one_piece() {
        let all = |bytes, largest| cuts(bytes, largest).collect::<Vec<_>>();
        assert_eq!(all(0, 4), [(0, 0)]);
        assert_eq!(all(4, 4), [(0, 4)]);
        assert_eq!(all(9, 4), [(0, 4), (4, 4), (8, 1)]);
    }
}
