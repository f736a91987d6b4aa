//! The typed operations.

use super::Collectives;
use super::operation::{AllGather, AllReduce, Any, Operands, Operation, ReduceScatter};
use crate::collective::{Counts, Op};
use crate::communicator::Communicator;
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
        let (both, count) = (Some(&*tensor), tensor.count());
        self.call(AllReduce { op, count }, both, both, stream)
    }

    /// Writes the reduction of all ranks' `send` to every rank's `recv`; `send` keeps its contents.
    pub fn all_reduce_into(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<OpReport> {
        let count = send.count();
        self.call(AllReduce { op, count }, Some(send), Some(&*recv), stream)
    }

    /// Writes part `r` of the reduction to rank `r`'s `recv`; parts are equally long.
    pub fn reduce_scatter(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<OpReport> {
        let part = self.part_of(send, Op::ReduceScatter(op))?;
        self.call(ReduceScatter { op, part }, Some(send), Some(&*recv), stream)
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
        let (op, counts) = (Op::ReduceScatter(op), Counts::Uneven(counts));
        self.call(Any { op, counts }, Some(send), Some(&*recv), stream)
    }

    /// Writes all ranks' `send`, in rank order, to every rank's `recv`.
    pub fn all_gather(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        stream: &Stream,
    ) -> Result<OpReport> {
        let part = send.count();
        self.call(AllGather { part }, Some(send), Some(&*recv), stream)
    }

    /// [`Collectives::all_gather`] with `counts[r]` elements from rank `r`, equal on all ranks.
    pub fn all_gather_v(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        counts: &[usize],
        stream: &Stream,
    ) -> Result<OpReport> {
        let (op, counts) = (Op::AllGather, Counts::Uneven(counts));
        self.call(Any { op, counts }, Some(send), Some(&*recv), stream)
    }

    /// Replaces the tensor, on every rank, by the root's.
    pub fn broadcast(
        &mut self,
        tensor: &mut (impl Tensor + ?Sized),
        root: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let (op, counts) = (Op::Broadcast { root }, Counts::Even(tensor.count()));
        let send = (root == self.rank).then_some(&*tensor);
        self.call(Any { op, counts }, send, Some(&*tensor), stream)
    }

    /// Replaces the root's tensor by the reduction of all ranks' tensors.
    pub fn reduce(
        &mut self,
        tensor: &mut (impl Tensor + ?Sized),
        op: ReduceOp,
        root: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let (op, counts) = (Op::Reduce { op, root }, Counts::Even(tensor.count()));
        let recv = (root == self.rank).then_some(&*tensor);
        self.call(Any { op, counts }, Some(&*tensor), recv, stream)
    }

    /// Sends part `r` of `send` to rank `r`, and writes what comes from rank `r` to part `r` of
    /// `recv`; parts are equally long.
    pub fn all_to_all(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: &mut (impl Tensor + ?Sized),
        stream: &Stream,
    ) -> Result<OpReport> {
        let of = |counts| Op::AllToAll {
            recv_counts: counts,
        };
        let counts = Counts::Even(self.part_of(send, of(Counts::Even(0)))?);
        let op = of(counts);
        self.call(Any { op, counts }, Some(send), Some(&*recv), stream)
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
        self.call(Any { op, counts }, Some(send), Some(&*recv), stream)
    }

    /// Writes all ranks' `send`, in rank order, to the root's `recv`, which only the root passes.
    pub fn gather<T: Tensor + ?Sized>(
        &mut self,
        send: &(impl Tensor + ?Sized),
        recv: Option<&mut T>,
        root: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let (op, counts) = (Op::Gather { root }, Counts::Even(send.count()));
        self.call(Any { op, counts }, Some(send), recv.as_deref(), stream)
    }

    /// Writes part `r` of the root's `send`, which only the root passes, to rank `r`'s `recv`.
    pub fn scatter<T: Tensor + ?Sized>(
        &mut self,
        send: Option<&T>,
        recv: &mut (impl Tensor + ?Sized),
        root: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let (op, counts) = (Op::Scatter { root }, Counts::Even(recv.count()));
        self.call(Any { op, counts }, send, Some(&*recv), stream)
    }

    /// Sends a tensor to a rank, which receives it with [`Collectives::recv`].
    pub fn send(
        &mut self,
        tensor: &(impl Tensor + ?Sized),
        to: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let (op, counts) = (Op::Send { to }, Counts::Even(tensor.count()));
        let none = None::<&dyn Tensor>;
        self.call(Any { op, counts }, Some(tensor), none, stream)
    }

    /// Receives a tensor that a rank sends with [`Collectives::send`].
    pub fn recv(
        &mut self,
        tensor: &mut (impl Tensor + ?Sized),
        from: Rank,
        stream: &Stream,
    ) -> Result<OpReport> {
        let (op, counts) = (Op::Recv { from }, Counts::Even(tensor.count()));
        let none = None::<&dyn Tensor>;
        self.call(Any { op, counts }, none, Some(&*tensor), stream)
    }

    /// No later work on `stream` runs before every rank's stream has come here.
    pub fn barrier(&mut self, stream: &Stream) -> Result<OpReport> {
        let (op, counts) = (Op::Barrier, Counts::Even(0));
        self.run(Any { op, counts }, Operands::NONE, &mut [], stream)
    }

    fn call<O: Operation>(
        &mut self,
        operation: O,
        send: Option<&(impl Tensor + ?Sized)>,
        recv: Option<&(impl Tensor + ?Sized)>,
        stream: &Stream,
    ) -> Result<OpReport> {
        let on = match Operands::of(send, recv) {
            Ok(operands) => operands,
            Err(error) => return Err(self.refuse_op(operation.op(), error)),
        };
        match (send.and_then(Tensor::owner), recv.and_then(Tensor::owner)) {
            (Some(send), Some(recv)) if send.is(recv) => {
                self.run(operation, on, &mut [send], stream)
            }
            (Some(send), Some(recv)) => self.run(operation, on, &mut [send, recv], stream),
            (Some(one), None) | (None, Some(one)) => self.run(operation, on, &mut [one], stream),
            (None, None) => self.run(operation, on, &mut [], stream),
        }
    }

    /// Elements of one rank's part of what an operation takes apart.
    fn part_of(&mut self, tensor: &(impl Tensor + ?Sized), op: Op<'_>) -> Result<usize> {
        let (count, world_size) = (tensor.count(), self.world_size);
        if !count.is_multiple_of(world_size) {
            let error = Misuse::NotDivisible { count, world_size }.into();
            return Err(self.refuse_op(op, error));
        }
        Ok(count / world_size)
    }
}
