//! Blocking calls on host slices.

use super::Collectives;
use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::error::Result;
use crate::path::OpReport;
use crate::rank::Rank;
use crate::reduce::ReduceOp;
use crate::scratch::ScratchAllocator;

/// Every call blocks until the result is in the slice. Slices are copied to the device and back
/// where host memory is not the device's. Counts are of elements; counts, roots and lengths are checked as those of
/// the call of the same name on tensors are, before anything is enqueued. All ranks make the same calls in
/// the same order.
///
/// ```
/// use collectives_core::collectives::Collectives;
/// use collectives_core::communicator::Communicator;
/// use collectives_core::error::Result;
/// use collectives_core::scratch::ScratchAllocator;
///
/// /// Every rank's bytes, in rank order, of which each rank has another number.
/// fn collect<C: Communicator, A: ScratchAllocator>(
///     collectives: &mut Collectives<C, A>,
///     mine: &[u8],
/// ) -> Result<Vec<u8>> {
///     let mut lengths = vec![0; collectives.world_size()];
///     collectives.all_gather_host(&[mine.len() as u64], &mut lengths)?;
///     let counts: Vec<_> = lengths.iter().map(|&length| length as usize).collect();
///     let mut all = vec![0; counts.iter().sum()];
///     collectives.all_gather_v_host(mine, &mut all, &counts)?;
///     Ok(all)
/// }
/// ```
///
/// # Errors
///
/// As the call of the same name on tensors, and the asynchronous error of the operation.
#[expect(
    clippy::missing_errors_doc,
    reason = "the errors are common to all operations and said once, above"
)]
impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// [`Collectives::all_reduce`] on a host slice.
    pub fn all_reduce_host<T: Element>(
        &mut self,
        values: &mut [T],
        op: ReduceOp,
    ) -> Result<OpReport> {
        self.scope(|scope| scope.all_reduce(values, op))
    }

    /// [`Collectives::all_reduce_into`] on host slices.
    pub fn all_reduce_into_host<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        op: ReduceOp,
    ) -> Result<OpReport> {
        self.scope(|scope| scope.all_reduce_into(send, recv, op))
    }

    /// [`Collectives::broadcast`] on a host slice.
    pub fn broadcast_host<T: Element>(&mut self, values: &mut [T], root: Rank) -> Result<OpReport> {
        self.scope(|scope| scope.broadcast(values, root))
    }

    /// [`Collectives::reduce`] on a host slice; that of a rank which is not the root keeps its values.
    pub fn reduce_host<T: Element>(
        &mut self,
        values: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<OpReport> {
        self.scope(|scope| scope.reduce(values, op, root))
    }

    /// [`Collectives::reduce_scatter`] on host slices.
    pub fn reduce_scatter_host<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        op: ReduceOp,
    ) -> Result<OpReport> {
        self.scope(|scope| scope.reduce_scatter(send, recv, op))
    }

    /// [`Collectives::reduce_scatter_v`] on host slices.
    pub fn reduce_scatter_v_host<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<OpReport> {
        self.scope(|scope| scope.reduce_scatter_v(send, recv, counts, op))
    }

    /// [`Collectives::all_gather`] on host slices.
    pub fn all_gather_host<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<OpReport> {
        self.scope(|scope| scope.all_gather(send, recv))
    }

    /// [`Collectives::all_gather_v`] on host slices.
    pub fn all_gather_v_host<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
    ) -> Result<OpReport> {
        self.scope(|scope| scope.all_gather_v(send, recv, counts))
    }

    /// [`Collectives::all_to_all`] on host slices.
    pub fn all_to_all_host<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<OpReport> {
        self.scope(|scope| scope.all_to_all(send, recv))
    }

    /// [`Collectives::all_to_all_v`] on host slices.
    pub fn all_to_all_v_host<T: Element>(
        &mut self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<OpReport> {
        self.scope(|scope| scope.all_to_all_v(send, send_counts, recv, recv_counts))
    }

    /// [`Collectives::gather`] on host slices; only the root passes `recv`.
    pub fn gather_host<T: Element>(
        &mut self,
        send: &[T],
        recv: Option<&mut [T]>,
        root: Rank,
    ) -> Result<OpReport> {
        self.scope(|scope| scope.gather(send, recv, root))
    }

    /// [`Collectives::scatter`] on host slices; only the root passes `send`.
    pub fn scatter_host<T: Element>(
        &mut self,
        send: Option<&[T]>,
        recv: &mut [T],
        root: Rank,
    ) -> Result<OpReport> {
        self.scope(|scope| scope.scatter(send, recv, root))
    }

    /// [`Collectives::send`] of a host slice; blocks until the slice may be used again.
    ///
    /// Of two ranks that exchange messages, one receives first.
    pub fn send_host<T: Element>(&mut self, values: &[T], to: Rank) -> Result<OpReport> {
        self.scope(|scope| scope.send(values, to))
    }

    /// [`Collectives::recv`] into a host slice.
    pub fn recv_host<T: Element>(&mut self, values: &mut [T], from: Rank) -> Result<OpReport> {
        self.scope(|scope| scope.recv(values, from))
    }

    /// Blocks until every rank has come here.
    pub fn barrier_host(&mut self) -> Result<()> {
        self.scope(|scope| scope.barrier())
    }
}
