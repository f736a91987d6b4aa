//! What the collectives read and write.
//!
//! Neighbouring layers take turns in two buffers of each kind, so that the next layer's parameters
//! come while this layer's are in use, and the previous layer's gradients go while this layer's are
//! made. Each is memory of its own: uses of one memory are ordered with each other, of two are not.

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;

use crate::layout::Layout;
use crate::precision::Compute;

#[derive(Debug)]
pub(crate) struct TrainingTensors<T: Compute> {
    rank: usize,
    gathered: [Buffer<T>; 2],
    gradients: [Buffer<T>; 2],
    /// Where shards are not kept inside the whole.
    apart: Option<Apart<T>>,
}

#[derive(Debug)]
struct Apart<T: Compute> {
    shards: [Buffer<T>; 2],
    scattered: [Buffer<T>; 2],
}

impl<T: Compute> TrainingTensors<T> {
    /// Tensors for all layouts: in symmetric memory, which is collective, or in ordinary memory.
    pub(crate) fn new<C: Communicator, A: ScratchAllocator>(
        on: &mut Collectives<C, A>,
        layouts: &[Layout],
        in_place: bool,
        pooled: bool,
        stream: &Stream,
    ) -> Result<Self> {
        let longest = |of: fn(&Layout) -> usize| layouts.iter().map(of).max().unwrap_or(1);
        let (whole, shard) = (longest(Layout::total), longest(Layout::largest));
        let mut pair = |count| -> Result<_> {
            let mut one = || match pooled {
                true => on.symmetric_buffer(count),
                false => Buffer::zeroed(on.device(), count, stream),
            };
            Ok([one()?, one()?])
        };
        let (gathered, gradients) = (pair(whole)?, pair(whole)?);
        let apart = match in_place {
            true => None,
            false => Some(Apart {
                shards: pair(shard)?,
                scattered: pair(shard)?,
            }),
        };
        Ok(Self {
            rank: on.rank().index(),
            gathered,
            gradients,
            apart,
        })
    }

    /// All parameters of a layer.
    pub(crate) fn gathered(&self, layer: usize, layout: &Layout) -> Result<Buffer<T>> {
        self.gathered[layer % 2].slice(..layout.total())
    }

    /// This rank's parameters of a layer.
    pub(crate) fn shard(&self, layer: usize, layout: &Layout) -> Result<Buffer<T>> {
        match &self.apart {
            None => self.gathered[layer % 2].slice(layout.shard(self.rank)),
            Some(apart) => apart.shards[layer % 2].slice(..layout.counts[self.rank]),
        }
    }

    /// The gradients of all parameters of a layer, of this rank's samples.
    pub(crate) fn gradients(&self, layer: usize, layout: &Layout) -> Result<Buffer<T>> {
        self.gradients[layer % 2].slice(..layout.total())
    }

    /// The gradients of this rank's parameters of a layer, of all ranks' samples.
    pub(crate) fn scattered(&self, layer: usize, layout: &Layout) -> Result<Buffer<T>> {
        match &self.apart {
            None => self.gradients[layer % 2].slice(layout.shard(self.rank)),
            Some(apart) => apart.scattered[layer % 2].slice(..layout.counts[self.rank]),
        }
    }

    /// Bytes that a device maps in multiples of for each of these, as `mapped` says.
    pub(crate) fn mapped(&self, mapped: impl Fn(usize) -> usize) -> usize {
        let apart = self.apart.iter();
        let apart = apart.flat_map(|apart| apart.shards.iter().chain(&apart.scattered));
        let all = self.gathered.iter().chain(&self.gradients).chain(apart);
        all.filter(|buffer| buffer.window().is_some())
            .map(|buffer| mapped(buffer.len() * size_of::<T>()))
            .sum()
    }
}
