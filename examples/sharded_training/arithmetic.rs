//! What is not collective: the seam between the order of a step and its numbers.
//!
//! The [trainer](crate::trainer) says when which layer is gathered, computed and scattered, and on
//! which stream. An implementation keeps masters, optimiser state and activations wherever it
//! computes, and touches the tensors of collectives only as it is told, on the stream it is told.

use std::fmt::Debug;
use std::ops::Range;

use collectives_core::buffer::Buffer;
use collectives_core::error::Result;
use collectives_core::stream::Stream;

use crate::data::Batch;
use crate::model::Layer;
use crate::precision::Compute;

/// Forward and backward passes, layer by layer, and Adam on the shards of their parameters.
///
/// Everything runs in one order, so that equal inputs give equal bits, on every rank and in every
/// run. Methods return when their work is enqueued, or done, where the implementation computes on the
/// host.
pub(crate) trait Arithmetic<T: Compute>: Debug {
    /// Takes the samples of the next forward pass. Not while the stream captures: a captured step
    /// reads the samples that were taken before its replay.
    fn begin(&mut self, batch: &Batch, stream: &Stream) -> Result<()>;

    /// Writes a shard's compute copy, rounded from its masters, and zeros as padding.
    fn narrow(&mut self, unit: usize, shard: &mut Buffer<T>, stream: &Stream) -> Result<()>;

    /// Computes a layer's outputs from those of the one before.
    fn forward(&mut self, unit: usize, parameters: &Buffer<T>, stream: &Stream) -> Result<()>;

    /// Computes the mean loss of the batch, and its gradient by the last layer's outputs.
    fn loss(&mut self, stream: &Stream) -> Result<()>;

    /// Writes the gradients of a layer's parameters, and zeros as padding, and computes those of its
    /// inputs.
    fn backward(
        &mut self,
        unit: usize,
        parameters: &Buffer<T>,
        gradients: &mut Buffer<T>,
        stream: &Stream,
    ) -> Result<()>;

    /// Takes the gradients of a shard, divided by `divide_by` if they are sums still.
    fn take(
        &mut self,
        unit: usize,
        scattered: &Buffer<T>,
        divide_by: Option<usize>,
        stream: &Stream,
    ) -> Result<()>;

    /// Adds gradients to those that were taken, as one rank does with all micro-batches.
    fn fold(&mut self, unit: usize, gradients: &Buffer<T>, stream: &Stream) -> Result<()>;

    /// Divides the gradients that were taken and added.
    fn divide(&mut self, unit: usize, by: usize, stream: &Stream) -> Result<()>;

    /// Adds up the squares of gradients, of one range of each layer.
    fn squares(&mut self, ranges: &[Range<usize>], stream: &Stream) -> Result<()>;

    /// One step of Adam along the gradients.
    fn update(&mut self, stream: &Stream) -> Result<()>;

    /// The last [loss](Arithmetic::loss), and the last [squares](Arithmetic::squares).
    fn report(&self) -> Buffer<f64>;

    /// The last layer's outputs, of every sample.
    fn outputs(&self, stream: &Stream) -> Result<Vec<f32>>;
}

/// A layer and the parameters that one rank begins with, of its shard or of all of it.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) layer: Layer,
    pub(crate) masters: Vec<f32>,
}
