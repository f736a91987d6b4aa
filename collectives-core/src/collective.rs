//! The descriptor of one collective on one rank, and the checks it passes before it is enqueued.

use std::fmt;

use crate::addr::Operand;
use crate::dtype::DType;
use crate::error::{Error, Misuse, Result};
use crate::rank::Rank;
use crate::reduce::ReduceOp;

/// Which operation, without its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum OpKind {
    /// Every rank gets the reduction of all inputs.
    AllReduce,
    /// Rank `r` gets part `r` of the reduction of all inputs.
    ReduceScatter,
    /// Every rank gets all inputs, in rank order.
    AllGather,
    /// Every rank gets the root's input.
    Broadcast,
    /// The root gets the reduction of all inputs.
    Reduce,
    /// Rank `r` gets part `r` of every input, in rank order.
    AllToAll,
    /// The root gets all inputs, in rank order.
    Gather,
    /// Rank `r` gets part `r` of the root's input.
    Scatter,
    /// One rank's half of a message.
    Send,
    /// The other half.
    Recv,
    /// No rank leaves before all have come.
    Barrier,
}

impl OpKind {
    /// The lower-case name used in errors, traces and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "all_to_all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Barrier => "barrier",
        }
    }

    /// Whether only two ranks take part.
    #[must_use]
    pub const fn is_point_to_point(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many elements belong to each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counts<'a> {
    /// The same number for every rank.
    Even(usize),
    /// One number per rank, which every rank passes alike.
    Uneven(&'a [usize]),
}

impl Counts<'_> {
    /// Elements of one rank.
    #[inline]
    #[must_use]
    pub fn of(&self, rank: Rank) -> usize {
        match self {
            Self::Even(count) => *count,
            Self::Uneven(counts) => counts.get(rank.index()).copied().unwrap_or(0),
        }
    }

    /// Elements of all ranks before this one: where its part begins.
    #[must_use]
    pub fn before(&self, rank: Rank) -> usize {
        match self {
            Self::Even(count) => count.saturating_mul(rank.index()),
            Self::Uneven(counts) => counts.iter().take(rank.index()).sum(),
        }
    }

    /// Elements of all ranks.
    ///
    /// # Errors
    ///
    /// [`Misuse::WrongCountsLength`] and [`Misuse::SizeOverflow`].
    #[inline]
    pub fn total(&self, world_size: usize, dtype: DType) -> Result<usize> {
        let overflow = |count| Misuse::SizeOverflow { count, dtype };
        match self {
            Self::Even(count) => Ok(count
                .checked_mul(world_size)
                .ok_or_else(|| overflow(*count))?),
            Self::Uneven(counts) if counts.len() != world_size => Err(Misuse::WrongCountsLength {
                expected: world_size,
                actual: counts.len(),
            }
            .into()),
            Self::Uneven(counts) => counts.iter().try_fold(0_usize, |sum, &count| {
                Ok(sum.checked_add(count).ok_or_else(|| overflow(count))?)
            }),
        }
    }
}

/// The operation with its arguments, apart from operands and counts.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Op<'a> {
    /// See [`OpKind::AllReduce`]; `counts` is `Even(elements)`.
    AllReduce(ReduceOp),
    /// See [`OpKind::ReduceScatter`]; `counts` says what each rank receives.
    ReduceScatter(ReduceOp),
    /// See [`OpKind::AllGather`]; `counts` says what each rank contributes.
    AllGather,
    /// See [`OpKind::Broadcast`]; `counts` is `Even(elements)`, only the root has a send operand.
    Broadcast {
        /// The rank that has the input.
        root: Rank,
    },
    /// See [`OpKind::Reduce`]; `counts` is `Even(elements)`, only the root has a receive operand.
    Reduce {
        /// The reduction.
        op: ReduceOp,
        /// The rank that gets the result.
        root: Rank,
    },
    /// See [`OpKind::AllToAll`]; `counts` says what this rank sends to each rank.
    AllToAll {
        /// What this rank receives from each rank.
        recv_counts: Counts<'a>,
    },
    /// See [`OpKind::Gather`]; `counts` says what each rank contributes.
    Gather {
        /// The rank that gets everything.
        root: Rank,
    },
    /// See [`OpKind::Scatter`]; `counts` says what each rank receives.
    Scatter {
        /// The rank that has everything.
        root: Rank,
    },
    /// See [`OpKind::Send`]; `counts` is `Even(elements)`.
    Send {
        /// The rank that receives.
        to: Rank,
    },
    /// See [`OpKind::Recv`]; `counts` is `Even(elements)`.
    Recv {
        /// The rank that sends.
        from: Rank,
    },
    /// See [`OpKind::Barrier`]; no operands.
    Barrier,
}

/// One collective on one rank: what a [`Submission`](crate::submission::Submission) enqueues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Collective<'a> {
    /// The operation.
    pub op: Op<'a>,
    /// The element type of both operands.
    pub dtype: DType,
    /// What this rank reads; [`Operand::EMPTY`] where it reads nothing.
    pub send: Operand,
    /// What this rank writes; [`Operand::EMPTY`] where it writes nothing.
    pub recv: Operand,
    /// Elements, as the operation counts them.
    pub counts: Counts<'a>,
}

impl<'a> Collective<'a> {
    /// A barrier.
    pub const BARRIER: Collective<'static> = Collective {
        op: Op::Barrier,
        dtype: DType::U8,
        send: Operand::EMPTY,
        recv: Operand::EMPTY,
        counts: Counts::Even(0),
    };

    /// Which operation this is.
    #[must_use]
    pub const fn kind(&self) -> OpKind {
        match self.op {
            Op::AllReduce(_) => OpKind::AllReduce,
            Op::ReduceScatter(_) => OpKind::ReduceScatter,
            Op::AllGather => OpKind::AllGather,
            Op::Broadcast { .. } => OpKind::Broadcast,
            Op::Reduce { .. } => OpKind::Reduce,
            Op::AllToAll { .. } => OpKind::AllToAll,
            Op::Gather { .. } => OpKind::Gather,
            Op::Scatter { .. } => OpKind::Scatter,
            Op::Send { .. } => OpKind::Send,
            Op::Recv { .. } => OpKind::Recv,
            Op::Barrier => OpKind::Barrier,
        }
    }

    /// The reduction, if the operation reduces.
    #[must_use]
    pub const fn reduction(&self) -> Option<ReduceOp> {
        match self.op {
            Op::AllReduce(op) | Op::ReduceScatter(op) | Op::Reduce { op, .. } => Some(op),
            _ => None,
        }
    }

    /// The root of a rooted operation, or the peer of a message.
    #[must_use]
    pub const fn root(&self) -> Option<Rank> {
        match self.op {
            Op::Broadcast { root }
            | Op::Reduce { root, .. }
            | Op::Gather { root }
            | Op::Scatter { root } => Some(root),
            Op::Send { to: peer } | Op::Recv { from: peer } => Some(peer),
            _ => None,
        }
    }

    /// The same collective on other operands.
    #[must_use]
    pub const fn with_operands(self, send: Operand, recv: Operand) -> Self {
        Self { send, recv, ..self }
    }

    /// Whether the operation moves no element on any rank, so that it is a no-op everywhere.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let none = |counts: Counts<'_>| match counts {
            Counts::Even(count) => count == 0,
            Counts::Uneven(counts) => counts.iter().all(|&count| count == 0),
        };
        match self.op {
            Op::Barrier => false,
            // A vector of one rank says nothing about the others.
            Op::AllToAll { recv_counts } => {
                matches!(
                    (self.counts, recv_counts),
                    (Counts::Even(0), Counts::Even(0))
                )
            }
            _ => none(self.counts),
        }
    }

    /// Elements this rank must send and receive.
    ///
    /// # Errors
    ///
    /// [`Misuse::WrongCountsLength`] and [`Misuse::SizeOverflow`].
    #[inline(always)]
    pub fn elements(&self, rank: Rank, world_size: usize) -> Result<(usize, usize)> {
        let total = |counts: &Counts<'_>| counts.total(world_size, self.dtype);
        let single = self.counts.of(Rank(0));
        let if_root = |root: Rank, count: usize| if root == rank { count } else { 0 };
        Ok(match self.op {
            Op::AllReduce(_) => (single, single),
            Op::ReduceScatter(_) => (total(&self.counts)?, self.counts.of(rank)),
            Op::AllGather => (self.counts.of(rank), total(&self.counts)?),
            Op::Broadcast { root } => (if_root(root, single), single),
            Op::Reduce { root, .. } => (single, if_root(root, single)),
            Op::AllToAll { recv_counts } => (total(&self.counts)?, total(&recv_counts)?),
            Op::Gather { root } => (self.counts.of(rank), if_root(root, total(&self.counts)?)),
            Op::Scatter { root } => (if_root(root, total(&self.counts)?), self.counts.of(rank)),
            Op::Send { .. } => (single, 0),
            Op::Recv { .. } => (0, single),
            Op::Barrier => (0, 0),
        })
    }

    /// Checks counts, lengths, roots, addresses, scalars and overlap, as `rank` of `world_size`
    /// would pass them.
    ///
    /// Whoever makes a [`Submission`](crate::submission::Submission) calls this first; nothing has been
    /// enqueued when it fails.
    ///
    /// # Errors
    ///
    /// The [`Misuse`] that was found.
    pub fn check(&self, rank: Rank, world_size: usize) -> Result<()> {
        self.check_inline(rank, world_size)
    }

    /// [`Collective::check`], for code in which the operation is known.
    #[inline(always)]
    pub(crate) fn check_inline(&self, rank: Rank, world_size: usize) -> Result<()> {
        let (send, recv) = match self.op {
            // Apart, because these are called most and need the least.
            Op::AllReduce(op) => {
                self.check_scalar(op)?;
                let count = self.counts.of(Rank(0));
                if self.send.same_range(self.recv) {
                    return self.check_side("send", self.send, count);
                }
                (count, count)
            }
            Op::Barrier => (0, 0),
            _ => {
                self.check_root(world_size)?;
                self.reduction()
                    .map_or(Ok(()), |op| self.check_scalar(op))?;
                self.elements(rank, world_size)?
            }
        };
        self.check_side("send", self.send, send)?;
        self.check_side("recv", self.recv, recv)?;
        if self.send.overlaps(self.recv) && !self.is_in_place(rank) {
            return Err(Misuse::Overlap.into());
        }
        Ok(())
    }

    fn check_root(&self, world_size: usize) -> Result<()> {
        match self.root() {
            Some(rank) if rank.index() >= world_size => {
                Err(Misuse::RankOutOfRange { rank, world_size }.into())
            }
            _ => Ok(()),
        }
    }

    #[inline(always)]
    fn check_scalar(&self, op: ReduceOp) -> Result<()> {
        match op {
            ReduceOp::PreMulSum(scalar) if scalar.dtype() != self.dtype => {
                Err(Misuse::DTypeDiffers {
                    left: scalar.dtype(),
                    right: self.dtype,
                }
                .into())
            }
            _ => Ok(()),
        }
    }

    #[inline(always)]
    fn check_side(&self, which: &'static str, operand: Operand, elements: usize) -> Result<()> {
        let bytes = elements.checked_mul(self.dtype.size());
        let fits = bytes == Some(operand.bytes)
            && (operand.bytes == 0 || !operand.addr.is_null())
            && operand.addr.value().checked_add(operand.bytes).is_some();
        if fits {
            return Ok(());
        }
        Err(side_misuse(self.dtype, which, operand, elements))
    }

    /// Whether the operands coincide the way this operation allows.
    ///
    /// All-reduce, reduce and broadcast allow the same range; reduce-scatter and scatter allow the
    /// receive operand to be this rank's part of the send operand; all-gather and gather the send
    /// operand to be this rank's part of the receive operand; all-to-all and messages allow none.
    #[inline(always)]
    #[must_use]
    pub fn is_in_place(&self, rank: Rank) -> bool {
        let part_of = |whole: Operand, part: Operand| {
            let start = self.counts.before(rank) * self.dtype.size();
            part.addr == whole.addr.offset(start)
        };
        match self.op {
            Op::AllReduce(_) | Op::Broadcast { .. } | Op::Reduce { .. } => {
                self.send.same_range(self.recv)
            }
            Op::ReduceScatter(_) | Op::Scatter { .. } => part_of(self.send, self.recv),
            Op::AllGather | Op::Gather { .. } => part_of(self.recv, self.send),
            _ => false,
        }
    }
}

/// What is wrong with a side that is.
#[cold]
fn side_misuse(dtype: DType, which: &'static str, operand: Operand, elements: usize) -> Error {
    let bytes = match dtype.bytes(elements) {
        Ok(bytes) => bytes,
        Err(overflow) => return overflow,
    };
    let misuse = if operand.bytes != bytes {
        Misuse::WrongCount {
            which,
            expected: elements,
            actual: operand.bytes / dtype.size(),
        }
    } else if operand.addr.is_null() && bytes > 0 {
        Misuse::NullAddress { which, bytes }
    } else {
        Misuse::AddressOverflow { which }
    };
    misuse.into()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::addr::Addr;

    fn at(value: usize, elements: usize) -> Operand {
        Operand::new(
            Addr::from_ptr(std::ptr::without_provenance_mut::<u8>(value)),
            elements * 4,
        )
    }

    fn f32s<'a>(op: Op<'a>, send: Operand, recv: Operand, counts: Counts<'a>) -> Collective<'a> {
        Collective {
            op,
            dtype: DType::F32,
            send,
            recv,
            counts,
        }
    }

    const SUM: Op<'static> = Op::AllReduce(ReduceOp::Sum);

    #[rstest]
    #[case::all_reduce(f32s(SUM, at(64, 8), at(1024, 8), Counts::Even(8)))]
    #[case::all_reduce_in_place(f32s(SUM, at(64, 8), at(64, 8), Counts::Even(8)))]
    #[case::zero_elements_may_be_null(f32s(SUM, Operand::EMPTY, Operand::EMPTY, Counts::Even(0)))]
    #[case::gather_in_place(f32s(Op::AllGather, at(96, 4), at(64, 12), Counts::Uneven(&[8, 4])))]
    #[case::scatter_in_place(
        f32s(Op::ReduceScatter(ReduceOp::Max), at(64, 12), at(96, 4), Counts::Uneven(&[8, 4]))
    )]
    #[case::broadcast_leaf(
        f32s(Op::Broadcast { root: Rank(0) }, Operand::EMPTY, at(64, 2), Counts::Even(2))
    )]
    fn accepts(#[case] call: Collective<'_>) {
        call.check(Rank(1), 2).unwrap();
    }

    #[rstest]
    #[case::short_recv(f32s(SUM, at(64, 8), at(1024, 7), Counts::Even(8)),
        Misuse::WrongCount { which: "recv", expected: 8, actual: 7 })]
    #[case::overlap(f32s(SUM, at(64, 8), at(68, 8), Counts::Even(8)), Misuse::Overlap)]
    #[case::null(f32s(SUM, at(0, 8), at(64, 8), Counts::Even(8)),
        Misuse::NullAddress { which: "send", bytes: 32 })]
    #[case::root(f32s(Op::Broadcast { root: Rank(2) }, at(64, 1), at(64, 1), Counts::Even(1)),
        Misuse::RankOutOfRange { rank: Rank(2), world_size: 2 })]
    #[case::counts(f32s(Op::AllGather, at(64, 1), at(128, 1), Counts::Uneven(&[1])),
        Misuse::WrongCountsLength { expected: 2, actual: 1 })]
    #[case::overflow(f32s(Op::AllGather, at(64, 1), at(128, 1), Counts::Even(usize::MAX)),
        Misuse::SizeOverflow { count: usize::MAX, dtype: DType::F32 })]
    #[case::end_of_memory(
        f32s(SUM, at(usize::MAX - 7, 2), at(usize::MAX - 7, 2), Counts::Even(2)),
        Misuse::AddressOverflow { which: "send" })]
    #[case::wrong_part(f32s(Op::AllGather, at(64, 4), at(64, 12), Counts::Uneven(&[8, 4])),
        Misuse::Overlap)]
    fn refuses(#[case] call: Collective<'_>, #[case] expected: Misuse) {
        assert_eq!(
            call.check(Rank(1), 2).unwrap_err().misuse(),
            Some(&expected)
        );
    }
}
