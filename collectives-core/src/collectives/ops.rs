//! The typed operations.

use super::{Collectives, describe};
use crate::collective::{Collective, Counts, Op};
use crate::communicator::Communicator;
use crate::dtype::DType;
use crate::error::{Misuse, Result};
use crate::path::OpReport;
use crate::rank::Rank;
use crate::reduce::ReduceOp;
use crate::scratch::ScratchAllocator;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// Every operation returns once its work is enqueued on `stream`; results are there for later work
/// on the stream. Counts, types, roots and overlap are checked before anything is enqueued.
///
/// # Errors
///
/// [`Misuse`] for a call that is wrong on this rank; [`ErrorKind::Mismatch`] where the backend
/// compares calls and ranks disagree; scratch errors as [`ScratchAllocator::acquire`] says;
/// [`ErrorKind::FallbackForbidden`]; and what [`Communicator::enqueue`] says. Unless
/// [`Error::poisons`], the communicator works on.
///
/// [`ErrorKind::Mismatch`]: crate::error::ErrorKind::Mismatch
/// [`ErrorKind::FallbackForbidden`]: crate::error::ErrorKind::FallbackForbidden
/// [`Error::poisons`]: crate::error::Error::poisons
#[expect(
    clippy::missing_errors_doc,
    reason = "the errors are common to all operations and said once, above"
)]
impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// Replaces the tensor, on every rank, by the reduction of all ranks' tensors.
    pub fn all_reduce(
        &mut self,
        tensor: &mut (impl Tensor + ?Sized),
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(tensor.count());
        let both = Some(&*tensor);
        self.call(Op::AllReduce(op), both, both, counts, stream)
    }

    /// Writes the reduction of all ranks' `send` to every rank's `recv`; `send` keeps its contents.
    pub fn all_reduce_into(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(send.count());
        self.call(Op::AllReduce(op), Some(send), Some(&*recv), counts, stream)
    }

    /// Writes part `r` of the reduction to rank `r`'s `recv`; parts are equally long.
    pub fn reduce_scatter(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(self.part_of(send)?);
        self.call(
            Op::ReduceScatter(op),
            Some(send),
            Some(&*recv),
            counts,
            stream,
        )
    }

    /// [`Collectives::reduce_scatter`] with `counts[r]` elements for rank `r`, equal on all ranks.
    pub fn reduce_scatter_v(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        counts: &[usize],
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Uneven(counts);
        self.call(
            Op::ReduceScatter(op),
            Some(send),
            Some(&*recv),
            counts,
            stream,
        )
    }

    /// Writes all ranks' `send`, in rank order, to every rank's `recv`.
    pub fn all_gather(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(send.count());
        self.call(Op::AllGather, Some(send), Some(&*recv), counts, stream)
    }

    /// [`Collectives::all_gather`] with `counts[r]` elements from rank `r`, equal on all ranks.
    pub fn all_gather_v(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        counts: &[usize],
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Uneven(counts);
        self.call(Op::AllGather, Some(send), Some(&*recv), counts, stream)
    }

    /// Replaces the tensor, on every rank, by the root's.
    pub fn broadcast(
        &mut self,
        tensor: &mut (impl Tensor + ?Sized),
        root: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(tensor.count());
        let send = (root == self.rank).then_some(&*tensor);
        self.call(Op::Broadcast { root }, send, Some(&*tensor), counts, stream)
    }

    /// Replaces the root's tensor by the reduction of all ranks' tensors.
    pub fn reduce(
        &mut self,
        tensor: &mut (impl Tensor + ?Sized),
        op: ReduceOp,
        root: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(tensor.count());
        let recv = (root == self.rank).then_some(&*tensor);
        self.call(
            Op::Reduce { op, root },
            Some(&*tensor),
            recv,
            counts,
            stream,
        )
    }

    /// Sends part `r` of `send` to rank `r`, and writes what comes from rank `r` to part `r` of
    /// `recv`; parts are equally long.
    pub fn all_to_all(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(self.part_of(send)?);
        let op = Op::AllToAll {
            recv_counts: counts,
        };
        self.call(op, Some(send), Some(&*recv), counts, stream)
    }

    /// [`Collectives::all_to_all`] with parts of any length: `send_counts[r]` elements go to rank
    /// `r`, `recv_counts[r]` come from it. What one rank sends the other must expect.
    pub fn all_to_all_v(
        &mut self,
        send: &(impl Tensor + ?Sized),
        send_counts: &[usize],
        recv: &mut (impl Tensor + ?Sized),
        recv_counts: &[usize],
        stream: &Stream,
    ) -> Result<OpReport> {
        let op = Op::AllToAll {
            recv_counts: Counts::Uneven(recv_counts),
        };
        let counts = Counts::Uneven(send_counts);
        self.call(op, Some(send), Some(&*recv), counts, stream)
    }

    /// Writes all ranks' `send`, in rank order, to the root's `recv`, which only the root passes.
    pub fn gather<T: Tensor + ?Sized>(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: Option<&mut T>,
        root: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(send.count());
        self.call(
            Op::Gather { root },
            Some(send),
            recv.as_deref(),
            counts,
            stream,
        )
    }

    /// Writes part `r` of the root's `send`, which only the root passes, to rank `r`'s `recv`.
    pub fn scatter<T: Tensor + ?Sized>(
        &mut self,
        send: Option<&T>,
        recv: &mut (impl Tensor + ?Sized),
        root: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(recv.count());
        self.call(Op::Scatter { root }, send, Some(&*recv), counts, stream)
    }

    /// Sends a tensor to a rank, which receives it with [`Collectives::recv`].
    pub fn send(
        &mut self,
        tensor: &(impl Tensor + ?Sized),
        to: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(tensor.count());
        self.call(
            Op::Send { to },
            Some(tensor),
            None::<&dyn Tensor>,
            counts,
            stream,
        )
    }

    /// Receives a tensor that a rank sends with [`Collectives::send`].
    pub fn recv(
        &mut self,
        tensor: &mut (impl Tensor + ?Sized),
        from: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let counts = Counts::Even(tensor.count());
        self.call(
            Op::Recv { from },
            None::<&dyn Tensor>,
            Some(&*tensor),
            counts,
            stream,
        )
    }

    /// No later work on `stream` runs before every rank's stream has come here.
    pub fn barrier(&mut self, stream: &Stream) -> Result<OpReport> {
        self.run(Collective::BARRIER, &mut [], stream)
    }

    fn call(
        &mut self,
        op: Op<'_>,
        send: Option<&(impl Tensor + ?Sized)>,
        recv: Option<&(impl Tensor + ?Sized)>,
        counts: Counts<'_>,
        stream: &Stream,
    ) -> Result<OpReport> {
        let dtype = common_dtype(send, recv)?;
        let call = describe(op, send, recv, dtype, counts);
        match (send.and_then(Tensor::owner), recv.and_then(Tensor::owner)) {
            (Some(send), Some(recv)) if send.is(recv) => self.run(call, &mut [send], stream),
            (Some(send), Some(recv)) => self.run(call, &mut [send, recv], stream),
            (Some(one), None) | (None, Some(one)) => self.run(call, &mut [one], stream),
            (None, None) => self.run(call, &mut [], stream),
        }
    }

    pub(super) fn part_of(&self, tensor: &(impl Tensor + ?Sized)) -> Result<usize> {
        let (count, world_size) = (tensor.count(), self.world_size);
        if !count.is_multiple_of(world_size) {
            return Err(Misuse::NotDivisible { count, world_size }.into());
        }
        Ok(count / world_size)
    }
}

/// The element type both tensors have; bytes if there is none.
pub(super) fn common_dtype(
    send: Option<&(impl Tensor + ?Sized)>,
    recv: Option<&(impl Tensor + ?Sized)>,
) -> Result<DType> {
    match (send.map(Tensor::dtype), recv.map(Tensor::dtype)) {
        (Some(left), Some(right)) if left != right => {
            Err(Misuse::DTypeDiffers { left, right }.into())
        }
        (Some(dtype), _) | (None, Some(dtype)) => Ok(dtype),
        (None, None) => Ok(DType::U8),
    }
}
