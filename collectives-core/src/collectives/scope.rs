//! Asynchronous calls on host slices, inside a scope that waits for them at its end.

mod ops;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::Collectives;
use crate::buffer::Buffer;
use crate::collective::Op;
use crate::communicator::Communicator;
use crate::device::Device;
use crate::dtype::Element;
use crate::error::{Misuse, Result};
use crate::path::OpReport;
use crate::scratch::ScratchAllocator;
use crate::stream::Stream;
use crate::tensor::{RawTensor, Tensor};

/// Copies a result from the device into its slice.
type ReadBack<'env> = Box<dyn FnOnce(&Stream) -> Result<()> + 'env>;

/// Lets host slices be used asynchronously until the scope ends.
///
/// Slices borrowed for `'env` stay borrowed until the scope has waited for all work on them, which
/// it does also when its closure fails or panics.
pub struct HostScope<'s, 'env, C: Communicator, A: ScratchAllocator> {
    collectives: &'s mut Collectives<C, A>,
    stream: &'s Stream,
    /// What must be read back at the end, where host memory is not the device's.
    returns: Vec<ReadBack<'env>>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// Runs `body` with calls on host slices that may overlap in time, and waits for all of them.
    ///
    /// Calls run in the order they are made, on a stream of their own. All ranks make the same ones in
    /// the same order.
    ///
    /// ```
    /// use collectives_core::collectives::Collectives;
    /// use collectives_core::communicator::Communicator;
    /// use collectives_core::error::Result;
    /// use collectives_core::reduce::ReduceOp;
    /// use collectives_core::scratch::ScratchAllocator;
    ///
    /// fn step<C: Communicator, A: ScratchAllocator>(
    ///     collectives: &mut Collectives<C, A>,
    ///     loss: &mut [f32],
    ///     mine: &[u64],
    ///     all: &mut [u64],
    ///     counts: &[usize],
    /// ) -> Result<()> {
    ///     collectives.scope(|scope| {
    ///         scope.all_reduce(loss, ReduceOp::Average)?;
    ///         scope.all_gather_v(mine, all, counts)?;
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The first error of `body`, of the wait, or of reading results back.
    pub fn scope<'env, R>(
        &mut self,
        body: impl FnOnce(&mut HostScope<'_, 'env, C, A>) -> Result<R>,
    ) -> Result<R> {
        let stream = match self.host_stream.take() {
            Some(stream) => stream,
            None => self.device.create_stream()?,
        };
        let device = Arc::clone(&self.device);
        let (result, waited) = {
            // Waits also when `body` unwinds: nothing may touch the slices afterwards.
            let wait = Wait(&*device, &stream);
            let mut scope = HostScope {
                collectives: self,
                stream: &stream,
                returns: Vec::new(),
                env: PhantomData,
            };
            let result = body(&mut scope);
            let returns = std::mem::take(&mut scope.returns);
            let waited = wait.finish().and_then(|()| {
                returns
                    .into_iter()
                    .try_for_each(|read_back| read_back(&stream))
            });
            (result, waited)
        };
        // A stream keeps its asynchronous error, so one that failed is of no more use.
        self.host_stream = waited.is_ok().then_some(stream);
        let result = result?;
        waited?;
        Ok(result)
    }
}

struct Wait<'a>(&'a dyn Device, &'a Stream);

impl Wait<'_> {
    fn finish(self) -> Result<()> {
        let waited = self.0.synchronize(self.1);
        std::mem::forget(self);
        waited
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.synchronize(self.1) {
            tracing::error!(%error, "work on host slices failed");
        }
    }
}

impl<'env, C: Communicator, A: ScratchAllocator> HostScope<'_, 'env, C, A> {
    fn in_out<T: Element>(
        &mut self,
        op: Op<'_>,
        values: &'env mut [T],
        call: impl FnOnce(&mut Collectives<C, A>, &mut dyn Tensor, &Stream) -> Result<OpReport>,
    ) -> Result<OpReport> {
        self.refuse_capture(op)?;
        if self.collectives.device.is_host() {
            let mut tensor = slice_mut(values);
            return call(self.collectives, &mut tensor, self.stream);
        }
        let device = Arc::clone(&self.collectives.device);
        let mut buffer = self.copied(op, &device, values)?;
        let report = call(self.collectives, &mut buffer, self.stream)?;
        self.returns
            .push(Box::new(move |stream| buffer.read_into(values, stream)));
        Ok(report)
    }

    /// A call on two slices, or on whichever of them this rank passes.
    fn across<T: Element>(
        &mut self,
        op: Op<'_>,
        send: Option<&'env [T]>,
        recv: Option<&'env mut [T]>,
        call: impl FnOnce(
            &mut Collectives<C, A>,
            Option<&dyn Tensor>,
            Option<&mut dyn Tensor>,
            &Stream,
        ) -> Result<OpReport>,
    ) -> Result<OpReport> {
        self.refuse_capture(op)?;
        if self.collectives.device.is_host() {
            let source = send.map(slice);
            let mut target = recv.map(slice_mut);
            let source = source.as_ref().map(|source| -> &dyn Tensor { source });
            let target = target.as_mut().map(|target| -> &mut dyn Tensor { target });
            return call(self.collectives, source, target, self.stream);
        }
        let device = Arc::clone(&self.collectives.device);
        let source = send
            .map(|values| self.copied(op, &device, values))
            .transpose()?;
        let source = source.as_ref().map(|source| -> &dyn Tensor { source });
        let Some(recv) = recv else {
            return call(self.collectives, source, None, self.stream);
        };
        let mut target = self.copied(op, &device, recv)?;
        let report = call(self.collectives, source, Some(&mut target), self.stream)?;
        self.returns
            .push(Box::new(move |stream| target.read_into(recv, stream)));
        Ok(report)
    }

    /// The slice on the device; where that fails, the call is refused.
    fn copied<T: Element>(
        &mut self,
        op: Op<'_>,
        device: &Arc<dyn Device>,
        values: &[T],
    ) -> Result<Buffer<T>> {
        Buffer::from_slice(device, values, self.stream)
            .map_err(|error| self.collectives.refuse_op(op, error))
    }

    /// The scope's own stream captures only if somebody made it join a capture.
    fn refuse_capture(&mut self, op: Op<'_>) -> Result<()> {
        let error = match self.collectives.device.capture_state(self.stream) {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => Misuse::HostSliceInCapture.into(),
            Err(error) => error,
        };
        Err(self.collectives.refuse_op(op, error))
    }
}

fn slice<T: Element>(values: &[T]) -> RawTensor {
    // SAFETY: The slice is borrowed for the scope's `'env`, which the scope outlasts by waiting, and it
    // is only read.
    unsafe { RawTensor::from_ptr(values.as_ptr().cast_mut(), values.len()) }
}

fn slice_mut<T: Element>(values: &mut [T]) -> RawTensor {
    // SAFETY: The slice is borrowed for the scope's `'env`, and the scope waits for all work on
    // its stream before it ends; the borrow keeps everybody else away.
    unsafe { RawTensor::from_ptr(values.as_mut_ptr(), values.len()) }
}

impl<C: Communicator, A: ScratchAllocator> fmt::Debug for HostScope<'_, '_, C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostScope")
            .field("collectives", &self.collectives)
            .field("pending", &self.returns.len())
            .finish_non_exhaustive()
    }
}
