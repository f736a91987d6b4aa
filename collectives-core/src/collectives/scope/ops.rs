//! The operations on host slices.

use super::HostScope;
use crate::collective::{Counts, Op};
use crate::collectives::Collectives;
use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::error::{Misuse, Result};
use crate::path::OpReport;
use crate::rank::Rank;
use crate::reduce::ReduceOp;
use crate::scratch::ScratchAllocator;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// What a call that is refused before its counts are looked at is told of as.
const ALL_TO_ALL: Op<'_> = Op::AllToAll {
    recv_counts: Counts::Even(0),
};

/// Every call returns once it is enqueued; results are in the slices when the scope has ended. Counts are of
/// elements, and a call is checked as the one of the same name on tensors is, before it is enqueued.
///
/// # Errors
///
/// As the call of the same name on tensors, and [`Misuse::HostSliceInCapture`].
#[expect(
    clippy::missing_errors_doc,
    reason = "the errors are common to all operations and said once, above"
)]
impl<'env, C: Communicator, A: ScratchAllocator> HostScope<'_, 'env, C, A> {
    /// [`Collectives::all_reduce`] on a host slice.
    pub fn all_reduce<T: Element>(
        &mut self,
        values: &'env mut [T],
        op: ReduceOp,
    ) -> Result<OpReport> {
        self.in_out(Op::AllReduce(op), values, |collectives, tensor, stream| {
            collectives.all_reduce(tensor, op, stream)
        })
    }

    /// [`Collectives::all_reduce_into`] on host slices.
    pub fn all_reduce_into<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        op: ReduceOp,
    ) -> Result<OpReport> {
        self.both(
            Op::AllReduce(op),
            send,
            recv,
            |collectives, send, recv, stream| collectives.all_reduce_into(send, recv, op, stream),
        )
    }

    /// [`Collectives::broadcast`] on a host slice.
    pub fn broadcast<T: Element>(&mut self, values: &'env mut [T], root: Rank) -> Result<OpReport> {
        self.in_out(
            Op::Broadcast { root },
            values,
            |collectives, tensor, stream| collectives.broadcast(tensor, root, stream),
        )
    }

    /// [`Collectives::reduce`] on a host slice; that of a rank which is not the root keeps its values.
    pub fn reduce<T: Element>(
        &mut self,
        values: &'env mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<OpReport> {
        self.in_out(
            Op::Reduce { op, root },
            values,
            |collectives, tensor, stream| collectives.reduce(tensor, op, root, stream),
        )
    }

    /// [`Collectives::reduce_scatter`] on host slices.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        op: ReduceOp,
    ) -> Result<OpReport> {
        self.both(
            Op::ReduceScatter(op),
            send,
            recv,
            |collectives, send, recv, stream| collectives.reduce_scatter(send, recv, op, stream),
        )
    }

    /// [`Collectives::reduce_scatter_v`] on host slices.
    pub fn reduce_scatter_v<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<OpReport> {
        self.both(
            Op::ReduceScatter(op),
            send,
            recv,
            |collectives, send, recv, stream| {
                collectives.reduce_scatter_v(send, recv, counts, op, stream)
            },
        )
    }

    /// [`Collectives::all_gather`] on host slices.
    pub fn all_gather<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
    ) -> Result<OpReport> {
        self.both(
            Op::AllGather,
            send,
            recv,
            |collectives, send, recv, stream| collectives.all_gather(send, recv, stream),
        )
    }

    /// [`Collectives::all_gather_v`] on host slices.
    pub fn all_gather_v<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
        counts: &[usize],
    ) -> Result<OpReport> {
        self.both(
            Op::AllGather,
            send,
            recv,
            |collectives, send, recv, stream| collectives.all_gather_v(send, recv, counts, stream),
        )
    }

    /// [`Collectives::all_to_all`] on host slices.
    pub fn all_to_all<T: Element>(
        &mut self,
        send: &'env [T],
        recv: &'env mut [T],
    ) -> Result<OpReport> {
        self.both(ALL_TO_ALL, send, recv, |collectives, send, recv, stream| {
            collectives.all_to_all(send, recv, stream)
        })
    }

    /// [`Collectives::all_to_all_v`] on host slices.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &'env [T],
        send_counts: &[usize],
        recv: &'env mut [T],
        recv_counts: &[usize],
    ) -> Result<OpReport> {
        self.both(ALL_TO_ALL, send, recv, |collectives, send, recv, stream| {
            collectives.all_to_all_v(send, send_counts, recv, recv_counts, stream)
        })
    }

    /// [`Collectives::gather`] on host slices; only the root passes `recv`.
    pub fn gather<T: Element>(
        &mut self,
        send: &'env [T],
        recv: Option<&'env mut [T]>,
        root: Rank,
    ) -> Result<OpReport> {
        self.across(
            Op::Gather { root },
            Some(send),
            recv,
            |collectives, send, recv, stream| collectives.gather(there(send)?, recv, root, stream),
        )
    }

    /// [`Collectives::scatter`] on host slices; only the root passes `send`.
    pub fn scatter<T: Element>(
        &mut self,
        send: Option<&'env [T]>,
        recv: &'env mut [T],
        root: Rank,
    ) -> Result<OpReport> {
        self.across(
            Op::Scatter { root },
            send,
            Some(recv),
            |collectives, send, recv, stream| collectives.scatter(send, there(recv)?, root, stream),
        )
    }

    /// [`Collectives::send`] of a host slice.
    ///
    /// Messages are enqueued one after another: of two ranks that exchange some, one receives first.
    /// [`Collectives::group`] has messages that meet in any order.
    pub fn send<T: Element>(&mut self, values: &'env [T], to: Rank) -> Result<OpReport> {
        self.across(
            Op::Send { to },
            Some(values),
            None,
            |collectives, send, _, stream| collectives.send(there(send)?, to, stream),
        )
    }

    /// [`Collectives::recv`] into a host slice.
    pub fn recv<T: Element>(&mut self, values: &'env mut [T], from: Rank) -> Result<OpReport> {
        self.across(
            Op::Recv { from },
            None,
            Some(values),
            |collectives, _, recv, stream| collectives.recv(there(recv)?, from, stream),
        )
    }

    /// [`Collectives::barrier`] among the scope's calls.
    pub fn barrier(&mut self) -> Result<()> {
        self.collectives.barrier(self.stream).map(drop)
    }

    fn both<T: Element>(
        &mut self,
        op: Op<'_>,
        send: &'env [T],
        recv: &'env mut [T],
        call: impl FnOnce(
            &mut Collectives<C, A>,
            &dyn Tensor,
            &mut dyn Tensor,
            &Stream,
        ) -> Result<OpReport>,
    ) -> Result<OpReport> {
        self.across(
            op,
            Some(send),
            Some(recv),
            |collectives, send, recv, stream| call(collectives, there(send)?, there(recv)?, stream),
        )
    }
}

/// A side that was passed.
fn there<T>(side: Option<T>) -> Result<T> {
    side.ok_or_else(|| Misuse::Other("a slice that was passed is missing".to_owned()).into())
}
