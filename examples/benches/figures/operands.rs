//! The tensors of one rank in one batch, what is written to them before, and what must come out.

use collectives_core::buffer::Buffer;
use collectives_core::collective::{Collective, Counts, Op, OpKind};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::Element;
use collectives_core::error::{Misuse, Result};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::stream::StreamRef;
use collectives_core::submission::Submission;
use collectives_core::tensor::{RawTensor, Tensor};
use half::bf16;

use crate::case::{Case, Shape};

/// An element type that is measured.
pub(crate) trait Value: Element {
    /// A small integer.
    fn of(value: u8) -> Self;
}

impl Value for f32 {
    fn of(value: u8) -> Self {
        Self::from(value)
    }
}

impl Value for bf16 {
    fn of(value: u8) -> Self {
        Self::from(value)
    }
}

/// Checks calls and enqueues them, as a caller without a handle does.
///
/// # Safety
///
/// As for [`Communicator::enqueue`], for the operands.
pub(crate) unsafe fn enqueue(
    comm: &mut impl Communicator,
    calls: &[Collective<'_>],
    stream: &StreamRef,
) -> Result<()> {
    let submission = Submission::checked(comm, calls, stream)?;
    // SAFETY: By the caller; the calls were checked.
    unsafe { comm.enqueue(&submission) }
}

/// What one operation reads and writes.
///
/// All-reduce, all-gather and broadcast work in place; a reduce-scatter writes to a buffer of its
/// own.
#[derive(Debug)]
pub(crate) struct Operands<T> {
    pub(crate) send: T,
    pub(crate) recv: T,
}

/// The operands of all operations of a batch.
#[derive(Debug)]
pub(crate) struct Batch<T> {
    pub(crate) all: Vec<Operands<T>>,
    case: Case,
    rank: Rank,
}

/// Elements of the two buffers that a batch is cut from.
pub(crate) fn lengths(case: &Case, shape: Shape) -> (usize, usize) {
    let whole = case.stride() / case.dtype.size() * shape.operations;
    match case.operation {
        OpKind::ReduceScatter => (whole, whole / case.ranks),
        _ => (whole, 0),
    }
}

impl<T: Value> Batch<Buffer<T>> {
    /// Cuts a batch from a buffer, and from another for results that are not in place.
    pub(crate) fn cut(
        case: &Case,
        shape: Shape,
        rank: Rank,
        main: &Buffer<T>,
        results: Option<&Buffer<T>>,
    ) -> Result<Self> {
        let count = case.elements();
        let part = count / case.ranks;
        let stride = case.stride() / size_of::<T>();
        let one = |operation: usize| {
            let start = operation * stride;
            let whole = main.slice(start..start + count)?;
            let own = start + part * rank.index();
            let (send, recv) = match (case.operation, results) {
                (OpKind::AllGather, _) => (main.slice(own..own + part)?, whole),
                (OpKind::ReduceScatter, Some(results)) => {
                    let start = start / case.ranks;
                    (whole, results.slice(start..start + part)?)
                }
                _ => (whole.clone(), whole),
            };
            Ok(Operands { send, recv })
        };
        Ok(Self {
            all: (0..shape.operations).map(one).collect::<Result<_>>()?,
            case: *case,
            rank,
        })
    }
}

impl<T: Tensor> Batch<T> {
    /// The same memory by its addresses only, as a framework would pass it.
    pub(crate) fn raw(&self) -> Batch<RawTensor> {
        let raw = |tensor: &T| {
            // SAFETY: Callers keep the tensors for as long as they use the addresses, each rank
            // uses its own, on one stream, and all ranks cut theirs alike.
            unsafe { RawTensor::new(tensor.operand(), tensor.dtype()) }
        };
        let pairs = self.all.iter().map(|pair| Operands {
            send: raw(&pair.send),
            recv: raw(&pair.recv),
        });
        Batch {
            all: pairs.collect(),
            case: self.case,
            rank: self.rank,
        }
    }

    /// Writes this rank's inputs, so that peers have to fetch them anew.
    pub(crate) fn rewrite<V: Value>(&self, batch: usize) {
        let input = V::of(self.input(batch, self.rank.index()));
        if self.case.operation == OpKind::Broadcast && self.rank != Rank(0) {
            return;
        }
        for pair in &self.all {
            let operand = pair.send.operand();
            let elements = operand.bytes / size_of::<V>();
            // SAFETY: It is memory of a host device, aligned for any element, and nothing uses it:
            // the last batch has finished on all ranks and the next has not begun.
            let elements =
                unsafe { std::slice::from_raw_parts_mut(operand.addr.as_ptr::<V>(), elements) };
            elements.fill(input);
        }
    }

    /// Compares the first, a middle and the last element of every result.
    pub(crate) fn check<V: Value>(&self, batch: usize) -> Result<()> {
        for pair in &self.all {
            let operand = pair.recv.operand();
            let elements = operand.bytes / size_of::<V>();
            // SAFETY: As in `rewrite`.
            let elements =
                unsafe { std::slice::from_raw_parts(operand.addr.as_ptr::<V>(), elements) };
            for index in [0, elements.len() / 2, elements.len().saturating_sub(1)] {
                let expected = V::of(self.expected(batch, index));
                if elements
                    .get(index)
                    .is_some_and(|element| *element != expected)
                {
                    let text = format!("{}: a wrong element in batch {batch}", self.case);
                    return Err(Misuse::Other(text).into());
                }
            }
        }
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, reason = "ranks are few")]
    fn input(&self, batch: usize, rank: usize) -> u8 {
        (1 + rank + batch % 3) as u8
    }

    fn expected(&self, batch: usize, index: usize) -> u8 {
        match self.case.operation {
            OpKind::AllReduce | OpKind::ReduceScatter => (0..self.case.ranks)
                .map(|rank| self.input(batch, rank))
                .sum(),
            OpKind::AllGather => {
                let part = self.case.elements() / self.case.ranks;
                self.input(batch, index / part)
            }
            _ => self.input(batch, 0),
        }
    }

    /// The descriptors for `enqueue`.
    pub(crate) fn calls(&self) -> Vec<Collective<'static>> {
        let describe = |pair: &Operands<T>| {
            let (send, recv) = (pair.send.operand(), pair.recv.operand());
            let root = Rank(0);
            let part = self.case.elements() / self.case.ranks;
            let (op, counts) = match self.case.operation {
                OpKind::ReduceScatter => (Op::ReduceScatter(ReduceOp::Sum), part),
                OpKind::AllGather => (Op::AllGather, part),
                OpKind::Broadcast => (Op::Broadcast { root }, self.case.elements()),
                _ => (Op::AllReduce(ReduceOp::Sum), self.case.elements()),
            };
            let sends = self.case.operation != OpKind::Broadcast || self.rank == root;
            let call = Collective {
                op,
                dtype: self.case.dtype,
                send,
                recv,
                counts: Counts::Even(counts),
            };
            match sends {
                true => call,
                false => call.with_operands(collectives_core::addr::Operand::EMPTY, recv),
            }
        };
        self.all.iter().map(describe).collect()
    }
}
