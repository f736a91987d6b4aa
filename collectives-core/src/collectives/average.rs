//! Averages of gradients: natively where that is right, and as a sum that the caller scales.

use super::Collectives;
use super::operation::Operands;
use crate::collective::{Collective, Counts, Op};
use crate::communicator::Communicator;
use crate::error::Result;
use crate::path::{Averaging, OpReport, PathTable};
use crate::rank::Rank;
use crate::reduce::ReduceOp;
use crate::scratch::ScratchAllocator;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// What an averaging call did, and what it left to its caller.
#[must_use = "where the call summed, the caller divides"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Averaged {
    /// The call.
    pub report: OpReport,
    /// What the caller must divide every element by; `None` where they are averages already.
    pub divide_by: Option<usize>,
}

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// [`Collectives::reduce_scatter_v`] of the average over ranks, or of their sum.
    ///
    /// Some libraries have symmetric kernels that sum and none that average, so that frameworks
    /// force a sum and scale. Which of the two this call does is decided by
    /// [`Collectives::set_averaging`] and the backend's table alone, so it is the same on all ranks
    /// and for a call that is captured; [`Averaged::divide_by`] says it. Scaling is left to the
    /// caller, who has a pass over the elements anyway, in which it costs nothing.
    ///
    /// An average divides in the accumulator and is rounded once; a sum in a 16-bit type is
    /// rounded, and may overflow, before it is divided.
    ///
    /// # Errors
    ///
    /// As [`Collectives::reduce_scatter_v`].
    pub fn reduce_scatter_average(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        counts: &[usize],
        stream: &Stream,
    ) -> Result<Averaged> {
        let sums = match self.averaging {
            Averaging::Auto => self.only_sums(send, recv, counts),
            Averaging::Native => false,
            Averaging::SumThenScale => true,
        };
        let op = if sums {
            ReduceOp::Sum
        } else {
            ReduceOp::Average
        };
        Ok(Averaged {
            report: self.reduce_scatter_v(send, recv, counts, op, stream)?,
            divide_by: sums.then_some(self.world_size),
        })
    }

    fn only_sums(
        &self,
        send: &(impl Tensor + ?Sized),
        recv: &(impl Tensor + ?Sized),
        counts: &[usize],
    ) -> bool {
        // Types that differ are refused by the call itself.
        let Ok(operands) = Operands::of(Some(send), Some(recv)) else {
            return false;
        };
        let sum = operands.call(Op::ReduceScatter(ReduceOp::Sum), Counts::Uneven(counts));
        let table = &self.comm.capabilities().paths;
        only_sums(table, &sum, self.rank, self.world_size)
    }
}

/// Whether symmetric kernels serve this sum and not the average of the same elements.
fn only_sums(table: &PathTable, sum: &Collective<'_>, rank: Rank, world_size: usize) -> bool {
    let average = Collective {
        op: Op::ReduceScatter(ReduceOp::Average),
        ..*sum
    };
    let serves = |call| table.rule(call, rank, world_size).is_ok();
    serves(sum) && !serves(&average)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::addr::Operand;
    use crate::collective::OpKind;
    use crate::dtype::DType;
    use crate::path::{PathRule, Sides};

    #[rstest]
    #[case::only_a_sum(&[0], DType::F32, true)]
    #[case::both(&[0, 4], DType::F32, false)]
    #[case::only_an_average(&[4], DType::F32, false)]
    #[case::another_type(&[0], DType::F64, false)]
    #[case::no_kernel(&[], DType::F32, false)]
    fn a_sum_is_taken_where_only_it_has_a_kernel(
        #[case] reductions: &'static [u8],
        #[case] dtype: DType,
        #[case] expected: bool,
    ) {
        let table = PathTable(vec![PathRule {
            op: OpKind::ReduceScatter,
            dtypes: &[DType::F32],
            reductions,
            world: 2..=8,
            bytes: 0..=usize::MAX,
            needs: Sides::Send,
            stage_from: 0,
            stage_from_captured: 0,
            kernel: "k",
            forced: false,
        }]);
        let sum = Collective {
            op: Op::ReduceScatter(ReduceOp::Sum),
            dtype,
            send: Operand::EMPTY,
            recv: Operand::EMPTY,
            counts: Counts::Uneven(&[3, 2]),
        };
        assert_eq!(only_sums(&table, &sum, Rank(0), 2), expected);
    }
}
