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
/// where host memory is not the device's.
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

    /// [`Collectives::reduce_scatter`] on host slices.
    pub fn reduce_scatter_host<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        op: ReduceOp,
    ) -> Result<OpReport> {
        self.scope(|scope| scope.reduce_scatter(send, recv, op))
    }

    /// [`Collectives::all_gather`] on host slices.
    pub fn all_gather_host<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<OpReport> {
        self.scope(|scope| scope.all_gather(send, recv))
    }

    /// [`Collectives::broadcast`] on a host slice.
    pub fn broadcast_host<T: Element>(&mut self, values: &mut [T], root: Rank) -> Result<OpReport> {
        self.scope(|scope| scope.broadcast(values, root))
    }

    /// [`Collectives::all_to_all`] on host slices.
    pub fn all_to_all_host<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<OpReport> {
        self.scope(|scope| scope.all_to_all(send, recv))
    }

    /// Blocks until every rank has come here.
    pub fn barrier_host(&mut self) -> Result<()> {
        self.scope(|scope| scope.barrier())
    }
}
