//! What scratch calls take, before they are made.

use super::{Collectives, staged};
use crate::collective::{Collective, Counts, Op};
use crate::communicator::Communicator;
use crate::dtype::DType;
use crate::error::Result;
use crate::path::Sides;
use crate::scratch::{Plan, Request, ScratchAllocator};

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// The scratch one call would take at most, as a request to plan or reserve; `None` if it
    /// would not be staged whatever its operands. For a call that is staged
    /// [in pieces](ScratchAllocator::splitting) that is one piece.
    ///
    /// `count` counts as the operation does: elements for an all-reduce, elements per rank for a
    /// reduce-scatter or an all-gather. It is the same on all ranks.
    ///
    /// # Errors
    ///
    /// [`Misuse::SizeOverflow`](crate::error::Misuse::SizeOverflow).
    pub fn request_for(&self, op: Op<'_>, dtype: DType, count: usize) -> Result<Option<Request>> {
        let call = without_operands(op, dtype, Counts::Even(count));
        let Some((needs, whole)) = self.most_scratch(&call)? else {
            return Ok(None);
        };
        let bytes = match self.cut(&call, needs, whole) {
            Some(_) => self.splitting.piece,
            None => whole,
        };
        Ok((bytes > 0).then_some(Request::new(bytes)))
    }

    /// The scratch that a [group](Collectives::group) of such calls would take at most, which is one lease for
    /// all of them; `None` if none would be staged whatever its operands.
    ///
    /// Operations come in the order in which they are added, with their counts as in [`Collective`]. A group is
    /// never staged in pieces, so this may be more than one.
    ///
    /// ```
    /// use collectives_core::collective::{Counts, Op};
    /// use collectives_core::collectives::Collectives;
    /// use collectives_core::communicator::Communicator;
    /// use collectives_core::dtype::DType;
    /// use collectives_core::error::Result;
    /// use collectives_core::reduce::ReduceOp;
    /// use collectives_core::scratch::ScratchAllocator;
    ///
    /// /// Two buckets of gradients that are summed together never miss from now on.
    /// fn prime<C: Communicator, A: ScratchAllocator>(
    ///     collectives: &mut Collectives<C, A>,
    ///     buckets: [usize; 2],
    /// ) -> Result<()> {
    ///     let sum = |count| (Op::AllReduce(ReduceOp::Sum), DType::Bf16, Counts::Even(count));
    ///     let request = collectives.request_for_group(buckets.map(sum))?;
    ///     collectives.reserve(request.as_slice()).map(drop)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Misuse::SizeOverflow`](crate::error::Misuse::SizeOverflow) and
    /// [`Misuse::WrongCountsLength`](crate::error::Misuse::WrongCountsLength).
    pub fn request_for_group<'a>(
        &self,
        calls: impl IntoIterator<Item = (Op<'a>, DType, Counts<'a>)>,
    ) -> Result<Option<Request>> {
        let parts = calls.into_iter().map(|(op, dtype, counts)| {
            let call = without_operands(op, dtype, counts);
            let scratch = self.most_scratch(&call)?;
            Ok(scratch.map_or(0, |(_, bytes)| bytes))
        });
        let bytes = staged::together(parts)?;
        Ok((bytes > 0).then_some(Request::new(bytes)))
    }

    /// Makes every call of this operation, type and count a hit from now on; collective. Nothing is reserved for a
    /// call that is never staged.
    ///
    /// `count` is that of [`Collectives::request_for`], and the same on all ranks.
    ///
    /// ```
    /// use collectives_core::collective::Op;
    /// use collectives_core::collectives::Collectives;
    /// use collectives_core::communicator::Communicator;
    /// use collectives_core::dtype::DType;
    /// use collectives_core::error::Result;
    /// use collectives_core::reduce::ReduceOp;
    /// use collectives_core::scratch::ScratchAllocator;
    ///
    /// /// Primes the largest sum of a model, and forbids scratch beyond it.
    /// fn prime<C: Communicator, A: ScratchAllocator>(
    ///     collectives: &mut Collectives<C, A>,
    ///     most_tokens: usize,
    ///     hidden: usize,
    /// ) -> Result<()> {
    ///     let sum = Op::AllReduce(ReduceOp::Sum);
    ///     collectives.reserve_for(sum, DType::Bf16, most_tokens * hidden)?;
    ///     collectives.seal();
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Collectives::request_for`], at once, and those of [`Collectives::reserve`].
    pub fn reserve_for(&mut self, op: Op<'_>, dtype: DType, count: usize) -> Result<Plan> {
        let request = self.request_for(op, dtype, count)?;
        self.reserve(request.as_slice())
    }

    /// The sides that a call's kernel needs in windows, and the scratch for all of them; `None` if it has no
    /// such kernel.
    fn most_scratch(&self, call: &Collective<'_>) -> Result<Option<(Sides, usize)>> {
        call.dtype
            .bytes(call.counts.total(self.world_size, call.dtype)?)?;
        let table = &self.comm.capabilities().paths;
        let Ok(rule) = table.rule(call, self.rank, self.world_size) else {
            return Ok(None);
        };
        let bytes = staged::scratch_bytes(call, rule.needs, self.world_size)?;
        Ok(Some((rule.needs, bytes)))
    }
}

fn without_operands<'a>(op: Op<'a>, dtype: DType, counts: Counts<'a>) -> Collective<'a> {
    Collective {
        op,
        dtype,
        counts,
        ..Collective::BARRIER
    }
}
