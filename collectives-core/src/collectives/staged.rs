//! Rewrites a call so that it runs in a scratch slot: pure arithmetic on operands.

use crate::addr::{Addr, Operand};
use crate::collective::{Collective, OpKind};
use crate::error::{Misuse, Result};
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

/// Scratch bytes of a call whose operands have these lengths.
///
/// An all-reduce runs in place in one range, since its sides are equally long; other operations
/// give each staged side its own.
pub(super) fn scratch_bytes(
    call: &Collective<'_>,
    sides: Sides,
    send: usize,
    recv: usize,
) -> Result<usize> {
    if call.kind() == OpKind::AllReduce {
        return Ok(send);
    }
    let send = if sides.send() { send } else { 0 };
    let recv = if sides.recv() { recv } else { 0 };
    if send == 0 || recv == 0 {
        return Ok(send.max(recv));
    }
    send.checked_next_multiple_of(SCRATCH_ALIGNMENT)
        .and_then(|start| start.checked_add(recv))
        .ok_or_else(|| {
            Misuse::SizeOverflow {
                count: send,
                dtype: call.dtype,
            }
            .into()
        })
}

/// The call on `scratch`, which has [`scratch_bytes`] bytes.
pub(super) fn stage<'c>(
    call: Collective<'c>,
    sides: Sides,
    scratch: Operand,
) -> Result<Staged<'c>> {
    let shared = call.kind() == OpKind::AllReduce;
    let send = if sides.send() {
        scratch.slice(0, call.send.bytes)?
    } else {
        call.send
    };
    let recv = if sides.recv() {
        let start = match (shared, sides.send()) {
            (false, true) => call.send.bytes.next_multiple_of(SCRATCH_ALIGNMENT),
            _ => 0,
        };
        scratch.slice(start, call.recv.bytes)?
    } else {
        call.recv
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
    use crate::collective::{Counts, Op};
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
        assert_eq!(scratch_bytes(&call, Sides::Both, 100, 100).unwrap(), 100);
        let staged = stage(call, Sides::Both, at(4096, 100)).unwrap();
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
        let staged = stage(scatter, Sides::Send, at(4096, 200)).unwrap();
        assert_eq!(staged.call.recv, at(1 << 21, 100));
        assert_eq!(
            (staged.copy_in.unwrap().bytes, staged.copy_out),
            (200, None)
        );
        let gather = call(Op::AllGather, at(1 << 20, 100), at(1 << 21, 200), 100);
        let staged = stage(gather, Sides::Recv, at(4096, 200)).unwrap();
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
        let bytes = scratch_bytes(&scatter, Sides::Both, 200, 100).unwrap();
        assert_eq!(bytes, SCRATCH_ALIGNMENT + 100);
        let staged = stage(scatter, Sides::Both, at(8192, bytes)).unwrap();
        assert_eq!(staged.call.recv, at(8192 + SCRATCH_ALIGNMENT, 100));
    }
}
