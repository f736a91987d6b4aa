//! Rewrites a call so that it runs in a scratch slot: pure arithmetic on operands.

use crate::addr::{Addr, Operand};
use crate::collective::{Collective, Counts, OpKind};
use crate::error::{Error, Misuse, Result};
use crate::path::Sides;
use crate::scratch::SCRATCH_ALIGNMENT;

/// A copy in stream order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) dst: Addr,
    pub(super) src: Addr,
    pub(super) bytes: usize,
}

/// A call that runs on exactly the requested bytes of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Staged<'c> {
    pub(super) call: Collective<'c>,
    pub(super) copy_in: Option<Copy>,
    pub(super) copy_out: Option<Copy>,
}

/// Scratch bytes of a call: equal on all ranks, also where ranks have parts of different length.
///
/// An all-reduce runs in place in one range, since its sides are equally long; other operations
/// give each staged side its own.
pub(super) fn scratch_bytes(
    call: &Collective<'_>,
    sides: Sides,
    world_size: usize,
) -> Result<usize> {
    let (send, recv) = side_bytes(call, world_size)?;
    if call.kind() == OpKind::AllReduce {
        return Ok(send);
    }
    match (sides.send(), sides.recv()) {
        (true, true) => aligned(send)?.checked_add(recv).ok_or_else(too_large),
        (true, false) => Ok(send),
        (false, _) => Ok(recv),
    }
}

/// The longest send and receive operand any rank has.
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
        OpKind::AllReduce => Ok((part, part)),
        // No other operation has symmetric kernels, and so none is staged.
        _ => Ok((call.send.bytes, call.recv.bytes)),
    }
}

/// Rounds a piece of a lease up, so that the next piece is aligned.
pub(super) fn aligned(bytes: usize) -> Result<usize> {
    bytes
        .checked_next_multiple_of(SCRATCH_ALIGNMENT)
        .ok_or_else(too_large)
}

fn too_large() -> Error {
    Misuse::Other("the scratch of this call overflows the address space".to_owned()).into()
}

/// The call on `scratch`, which has [`scratch_bytes`] bytes.
pub(super) fn stage<'c>(
    call: Collective<'c>,
    sides: Sides,
    scratch: Operand,
    world_size: usize,
) -> Result<Staged<'c>> {
    let both = sides.send() && sides.recv() && call.kind() != OpKind::AllReduce;
    let recv_start = match both {
        true => aligned(side_bytes(&call, world_size)?.0)?,
        false => 0,
    };
    let send = match sides.send() {
        true => scratch.slice(0, call.send.bytes)?,
        false => call.send,
    };
    let recv = match sides.recv() {
        true => scratch.slice(recv_start, call.recv.bytes)?,
        false => call.recv,
    };
    Ok(Staged {
        copy_in: sides
            .send()
            .then(|| copy(send, call.send))
            .filter(|copy| copy.bytes > 0),
        copy_out: sides
            .recv()
            .then(|| copy(call.recv, recv))
            .filter(|copy| copy.bytes > 0),
        call: call.with_operands(send, recv),
    })
}

fn copy(dst: Operand, src: Operand) -> Copy {
    Copy {
        dst: dst.addr,
        src: src.addr,
        bytes: src.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn all_reduce_runs_in_place_on_exactly_the_requested_bytes() {
        let call = call(
            Op::AllReduce(ReduceOp::Sum),
            at(1 << 20, 100),
            at(1 << 21, 100),
            100,
        );
        assert_eq!(scratch_bytes(&call, Sides::Both, 2).unwrap(), 100);
        let staged = stage(call, Sides::Both, at(4096, 100), 2).unwrap();
        assert_eq!(staged.call.send, at(4096, 100));
        assert_eq!(staged.call.recv, at(4096, 100));
        assert_eq!(staged.copy_in.unwrap().src.value(), 1 << 20);
        assert_eq!(staged.copy_out.unwrap().dst.value(), 1 << 21);
    }

    #[test]
    fn reduce_scatter_stages_what_it_reads_and_all_gather_what_it_writes() {
        let scatter = call(
            Op::ReduceScatter(ReduceOp::Sum),
            at(1 << 20, 200),
            at(1 << 21, 100),
            100,
        );
        let staged = stage(scatter, Sides::Send, at(4096, 200), 2).unwrap();
        assert_eq!(staged.call.recv, at(1 << 21, 100));
        assert_eq!(
            (staged.copy_in.unwrap().bytes, staged.copy_out),
            (200, None)
        );
        let gather = call(Op::AllGather, at(1 << 20, 100), at(1 << 21, 200), 100);
        let staged = stage(gather, Sides::Recv, at(4096, 200), 2).unwrap();
        assert_eq!(staged.call.send, at(1 << 20, 100));
        assert_eq!(
            (staged.copy_in, staged.copy_out.unwrap().bytes),
            (None, 200)
        );
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
        let staged = stage(scatter, Sides::Both, at(8192, bytes), 2).unwrap();
        assert_eq!(staged.call.recv, at(8192 + SCRATCH_ALIGNMENT, 100));
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
                let staged = stage(gather, Sides::Both, at(1 << 22, bytes), 2).unwrap();
                (bytes, staged.call.recv)
            })
            .collect();
        assert_eq!(places[0], places[1]);
    }
}
