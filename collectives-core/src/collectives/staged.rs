//! Rewrites a call so that it runs in a scratch slot: pure arithmetic on operands.

use crate::addr::Operand;
use crate::collective::{Collective, Counts, OpKind};
use crate::error::{Error, Misuse, Result};
use crate::path::Sides;
use crate::scratch::SCRATCH_ALIGNMENT;
use crate::submission::Copy;

/// The copies before and after a call that runs on exactly the requested bytes of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copies {
    pub(super) into: Option<Copy>,
    pub(super) out: Option<Copy>,
}

/// Scratch bytes of a call: equal on all ranks, also where ranks have parts of different length.
///
/// An operation on equal sides runs in place in one range; others give each staged side its own.
#[inline(always)]
pub(super) fn scratch_bytes(
    call: &Collective<'_>,
    sides: Sides,
    world_size: usize,
) -> Result<usize> {
    match (call.kind(), call.counts) {
        // Apart, because this is called most.
        (OpKind::AllReduce, Counts::Even(count)) => call.dtype.bytes(count),
        _ => sides_bytes(call, sides, world_size),
    }
}

/// Whether send and receive operand are equally long, so that both may be one range.
#[inline]
pub(super) const fn has_equal_sides(kind: OpKind) -> bool {
    matches!(kind, OpKind::AllReduce) || is_rooted(kind)
}

/// Whether a rank that is not the root has only one of two equal sides.
#[inline]
pub(super) const fn is_rooted(kind: OpKind) -> bool {
    matches!(kind, OpKind::Broadcast | OpKind::Reduce)
}

#[inline(never)]
fn sides_bytes(call: &Collective<'_>, sides: Sides, world_size: usize) -> Result<usize> {
    let (send, recv) = side_bytes(call, world_size)?;
    if has_equal_sides(call.kind()) {
        return Ok(send);
    }
    match (sides.send(), sides.recv()) {
        (true, true) => aligned(send)?.checked_add(recv).ok_or_else(too_large),
        (true, false) => Ok(send),
        (false, _) => Ok(recv),
    }
}

/// The longest send and receive operand any rank has.
#[inline(never)]
fn side_bytes(call: &Collective<'_>, world_size: usize) -> Result<(usize, usize)> {
    let part = match call.counts {
        Counts::Even(count) => count,
        Counts::Uneven(counts) => counts.iter().copied().max().unwrap_or(0),
    };
    let part = call.dtype.bytes(part)?;
    let whole = || call.dtype.bytes(call.counts.total(world_size, call.dtype)?);
    match call.kind() {
        OpKind::ReduceScatter => Ok((whole()?, part)),
        OpKind::AllGather => Ok((part, whole()?)),
        // Also where only the root has both.
        kind if has_equal_sides(kind) => Ok((part, part)),
        // No other operation has symmetric kernels, and so none is staged.
        _ => Ok((call.send.bytes, call.recv.bytes)),
    }
}

/// Bytes of one lease for calls that take so many each, in their order.
pub(super) fn together(parts: impl IntoIterator<Item = Result<usize>>) -> Result<usize> {
    let (mut total, mut padding) = (0_usize, 0);
    for bytes in parts {
        let bytes = bytes?;
        if bytes > 0 {
            let part = aligned(bytes)?;
            padding = part - bytes;
            total = total.checked_add(part).ok_or_else(too_large)?;
        }
    }
    // The last part needs no padding behind it.
    Ok(total - padding)
}

/// Rounds a part of a lease up, so that the next part is aligned.
pub(super) fn aligned(bytes: usize) -> Result<usize> {
    bytes
        .checked_next_multiple_of(SCRATCH_ALIGNMENT)
        .ok_or_else(too_large)
}

fn too_large() -> Error {
    Misuse::Other("the scratch of this call overflows the address space".to_owned()).into()
}

/// The call moved to `scratch`, which has [`scratch_bytes`] bytes, and its copies.
#[inline(always)]
pub(super) fn stage<'c>(
    call: &Collective<'c>,
    sides: Sides,
    scratch: Operand,
    world_size: usize,
) -> Result<(Collective<'c>, Copies)> {
    let both = match call.kind() {
        OpKind::AllReduce => false,
        kind if is_rooted(kind) => return stage_rooted(call, sides, scratch),
        _ => sides.send() && sides.recv(),
    };
    let recv_start = match both {
        true => aligned(side_bytes(call, world_size)?.0)?,
        false => 0,
    };
    let mut call = *call;
    let (send, recv) = (call.send, call.recv);
    if let (Some(one), Some(other)) = (send.window, recv.window)
        && one.window == other.window
    {
        // A part inside the whole, at another offset on each rank, which is in place only as long as the
        // whole stays where it is. A kernel that needs one side alone needs no window for it.
        (call.send.window, call.recv.window) = (None, None);
    }
    if sides.send() {
        call.send = scratch.slice(0, send.bytes)?;
    }
    if sides.recv() {
        call.recv = match both || !sides.send() {
            true => scratch.slice(recv_start, recv.bytes)?,
            // An all-reduce runs in place, on sides that are equally long.
            false => call.send,
        };
    }
    let copies = Copies {
        into: copy(sides.send(), call.send, send),
        out: copy(sides.recv(), recv, call.recv),
    };
    Ok((call, copies))
}

/// A rooted operation runs in place; a side that this rank does not have stays empty.
#[inline(never)]
fn stage_rooted<'c>(
    call: &Collective<'c>,
    sides: Sides,
    scratch: Operand,
) -> Result<(Collective<'c>, Copies)> {
    let (send, recv) = (call.send, call.recv);
    let moved = |side: Operand, staged: bool| match staged && side.bytes > 0 {
        true => scratch.slice(0, side.bytes),
        false => Ok(side),
    };
    let call = call.with_operands(moved(send, sides.send())?, moved(recv, sides.recv())?);
    let copies = Copies {
        into: copy(sides.send(), call.send, send),
        out: copy(sides.recv(), recv, call.recv),
    };
    Ok((call, copies))
}

#[inline(always)]
fn copy(staged: bool, dst: Operand, src: Operand) -> Option<Copy> {
    (staged && src.bytes > 0).then_some(Copy {
        dst: dst.addr,
        src: src.addr,
        bytes: src.bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::collective::Op;
    use crate::dtype::DType;
    use crate::reduce::ReduceOp;

    fn at(value: usize, bytes: usize) -> Operand {
        Operand::new(
            Addr::from_ptr(std::ptr::without_provenance_mut::<u8>(value)),
            bytes,
        )
    }

    fn call(op: Op<'static>, send: Operand, recv: Operand, count: usize) -> Collective<'static> {
        Collective {
            op,
            dtype: DType::U8,
            send,
            recv,
            counts: Counts::Even(count),
        }
    }

    #[test]
    fn a_part_of_a_whole_that_is_staged_names_no_window() {
        use crate::addr::{WindowId, WindowSlice};
        use crate::rank::CommId;

        let window = |id, offset| WindowSlice {
            comm: CommId::from_raw(1),
            window: WindowId(id),
            offset,
        };
        let whole = at(4096, 20).in_window(window(4, 0));
        let scratch = at(8192, 20).in_window(window(5, 0));
        for (other, named) in [(window(4, 10), None), (window(6, 0), Some(window(6, 0)))] {
            let part = at(4106, 10).in_window(other);
            let gather = call(Op::AllGather, part, whole, 10);
            let (gather, _) = stage(&gather, Sides::Recv, scratch, 2).unwrap();
            assert_eq!(gather.send.window, named);
            assert_eq!(gather.recv.window, scratch.window);
        }
    }

    #[test]
    fn all_reduce_runs_in_place_on_exactly_the_requested_bytes() {
        let call = call(
            Op::AllReduce(ReduceOp::Sum),
            at(1 << 20, 100),
            at(1 << 21, 100),
            100,
        );
        assert_eq!(scratch_bytes(&call, Sides::Both, 2).unwrap(), 100);
        let (call, copies) = stage(&call, Sides::Both, at(4096, 100), 2).unwrap();
        assert_eq!(call.send, at(4096, 100));
        assert_eq!(call.recv, at(4096, 100));
        assert_eq!(copies.into.unwrap().src.value(), 1 << 20);
        assert_eq!(copies.out.unwrap().dst.value(), 1 << 21);
    }

    #[test]
    fn rooted_operations_take_the_same_scratch_on_every_rank_and_run_in_place() {
        use crate::rank::Rank;

        let root = Rank(0);
        let (tensor, nothing, lease) = (at(1 << 20, 100), Operand::EMPTY, at(4096, 100));
        let op = ReduceOp::Sum;
        for (op, send, recv) in [
            (Op::Broadcast { root }, tensor, tensor),
            (Op::Broadcast { root }, nothing, tensor),
            (Op::Reduce { op, root }, tensor, tensor),
            (Op::Reduce { op, root }, tensor, nothing),
        ] {
            let call = call(op, send, recv, 100);
            assert_eq!(scratch_bytes(&call, Sides::Both, 2).unwrap(), 100);
            let (call, copies) = stage(&call, Sides::Both, lease, 2).unwrap();
            let staged = |side: Operand| if side.bytes > 0 { lease } else { nothing };
            assert_eq!((call.send, call.recv), (staged(send), staged(recv)));
            let copied = (copies.into.is_some(), copies.out.is_some());
            assert_eq!(copied, (send.bytes > 0, recv.bytes > 0));
        }
    }

    #[test]
    fn reduce_scatter_stages_what_it_reads_and_all_gather_what_it_writes() {
        let scatter = call(
            Op::ReduceScatter(ReduceOp::Sum),
            at(1 << 20, 200),
            at(1 << 21, 100),
            100,
        );
        let (scatter, copies) = stage(&scatter, Sides::Send, at(4096, 200), 2).unwrap();
        assert_eq!(scatter.send, at(4096, 200));
        assert_eq!(scatter.recv, at(1 << 21, 100));
        assert_eq!((copies.into.unwrap().bytes, copies.out), (200, None));
        let gather = call(Op::AllGather, at(1 << 20, 100), at(1 << 21, 200), 100);
        let (gather, copies) = stage(&gather, Sides::Recv, at(4096, 200), 2).unwrap();
        assert_eq!(gather.send, at(1 << 20, 100));
        assert_eq!((copies.into, copies.out.unwrap().bytes), (None, 200));
    }

    #[test]
    fn two_sides_of_one_lease_are_aligned_apart() {
        let scatter = call(
            Op::ReduceScatter(ReduceOp::Sum),
            at(1 << 20, 200),
            at(1 << 21, 100),
            100,
        );
        let bytes = scratch_bytes(&scatter, Sides::Both, 2).unwrap();
        assert_eq!(bytes, SCRATCH_ALIGNMENT + 100);
        let (scatter, _) = stage(&scatter, Sides::Both, at(8192, bytes), 2).unwrap();
        assert_eq!(scatter.recv, at(8192 + SCRATCH_ALIGNMENT, 100));
    }

    #[test]
    fn uneven_parts_take_the_same_scratch_and_offsets_on_every_rank() {
        let counts = [3, 5000];
        let places: Vec<_> = counts
            .iter()
            .map(|&part| {
                let (send, recv) = (at(1 << 20, part), at(1 << 21, 5003));
                let mut gather = call(Op::AllGather, send, recv, 0);
                gather.counts = Counts::Uneven(&counts);
                let bytes = scratch_bytes(&gather, Sides::Both, 2).unwrap();
                let (staged, _) = stage(&gather, Sides::Both, at(1 << 22, bytes), 2).unwrap();
                (bytes, staged.recv)
            })
            .collect();
        assert_eq!(places[0], places[1]);
    }
}
