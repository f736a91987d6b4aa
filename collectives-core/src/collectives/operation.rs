//! An operation as the caller writes it down, and what it works on.

use crate::addr::Operand;
use crate::collective::{Collective, Counts, Op};
use crate::dtype::DType;
use crate::error::{Misuse, Result};
use crate::reduce::ReduceOp;
use crate::tensor::Tensor;

/// An operation with its counts.
///
/// [`Collectives::run`](super::Collectives::run) is compiled once for each type of this trait. Those of
/// one operation say in their type which it is, and so nothing in that code asks for it any more.
pub(super) trait Operation {
    fn op(&self) -> Op<'_>;
    fn counts(&self) -> Counts<'_>;
}

/// Any operation.
#[derive(Clone, Copy)]
pub(super) struct Any<'c> {
    pub(super) op: Op<'c>,
    pub(super) counts: Counts<'c>,
}

/// An all-reduce.
#[derive(Clone, Copy)]
pub(super) struct AllReduce {
    pub(super) op: ReduceOp,
    pub(super) count: usize,
}

/// A reduce-scatter into parts of one length.
#[derive(Clone, Copy)]
pub(super) struct ReduceScatter {
    pub(super) op: ReduceOp,
    pub(super) part: usize,
}

/// An all-gather of parts of one length.
#[derive(Clone, Copy)]
pub(super) struct AllGather {
    pub(super) part: usize,
}

impl<'c> Any<'c> {
    /// The operation of a call.
    pub(super) const fn of(call: &Collective<'c>) -> Self {
        Self {
            op: call.op,
            counts: call.counts,
        }
    }
}

impl Operation for Any<'_> {
    #[inline(always)]
    fn op(&self) -> Op<'_> {
        self.op
    }

    #[inline(always)]
    fn counts(&self) -> Counts<'_> {
        self.counts
    }
}

impl Operation for AllReduce {
    #[inline(always)]
    fn op(&self) -> Op<'_> {
        Op::AllReduce(self.op)
    }

    #[inline(always)]
    fn counts(&self) -> Counts<'_> {
        Counts::Even(self.count)
    }
}

impl Operation for ReduceScatter {
    #[inline(always)]
    fn op(&self) -> Op<'_> {
        Op::ReduceScatter(self.op)
    }

    #[inline(always)]
    fn counts(&self) -> Counts<'_> {
        Counts::Even(self.part)
    }
}

impl Operation for AllGather {
    #[inline(always)]
    fn op(&self) -> Op<'_> {
        Op::AllGather
    }

    #[inline(always)]
    fn counts(&self) -> Counts<'_> {
        Counts::Even(self.part)
    }
}

/// Both sides of a call, and the type of their elements.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    dtype: DType,
    send: Operand,
    recv: Operand,
}

impl Operands {
    /// No side at all.
    pub(super) const NONE: Self = Self {
        dtype: DType::U8,
        send: Operand::EMPTY,
        recv: Operand::EMPTY,
    };

    /// Those of tensors with one element type.
    pub(super) fn of(
        send: Option<&(impl Tensor + ?Sized)>,
        recv: Option<&(impl Tensor + ?Sized)>,
    ) -> Result<Self> {
        let dtype = match (send.map(Tensor::dtype), recv.map(Tensor::dtype)) {
            (Some(left), Some(right)) if left != right => {
                return Err(Misuse::DTypeDiffers { left, right }.into());
            }
            (Some(dtype), _) | (None, Some(dtype)) => dtype,
            (None, None) => DType::U8,
        };
        Ok(Self {
            dtype,
            send: send.map_or(Operand::EMPTY, Tensor::operand),
            recv: recv.map_or(Operand::EMPTY, Tensor::operand),
        })
    }

    /// Those of a call.
    pub(super) const fn of_call(call: &Collective<'_>) -> Self {
        Self {
            dtype: call.dtype,
            send: call.send,
            recv: call.recv,
        }
    }

    /// The call of an operation on them.
    #[inline(always)]
    pub(super) fn call<'c>(self, op: Op<'c>, counts: Counts<'c>) -> Collective<'c> {
        Collective {
            op,
            dtype: self.dtype,
            send: self.send,
            recv: self.recv,
            counts,
        }
    }
}
