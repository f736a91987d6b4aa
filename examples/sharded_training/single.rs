//! What training must come to: one rank, which knows no collective, folds all micro-batches.

use std::ops::Range;
use std::sync::Arc;

use collectives_core::buffer::Buffer;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::stream::Stream;
use collectives_host::world::HostWorld;
use half::bf16;

use crate::arithmetic::{Arithmetic, Share};
use crate::data::Data;
use crate::host::Host;
use crate::layout::Layout;
use crate::model;
use crate::options::{Compute as Type, Options};
use crate::outcome::{Averages, Step};
use crate::precision::{Compute, rounded};

/// Where gradients are rounded to the type that is communicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// Nowhere: the sum stays `f32`.
    Never,
    /// As the accumulation rules have it for a sum: before it is divided.
    Sum,
    /// As they have it for a native average: after the division.
    Average,
}

impl Rounding {
    /// What gives one rank the bits of a run whose collectives did this; `None` where the backend adds in
    /// an order of its own, or some averaged and some summed.
    pub(crate) fn of(options: &Options, averages: Averages) -> Option<Self> {
        let of_bf16 = match averages {
            Averages {
                by_optimiser: 0, ..
            } => Some(Self::Average),
            Averages {
                by_collective: 0, ..
            } => Some(Self::Sum),
            _ => None,
        };
        match options.dtype {
            _ if options.exact => Some(Self::Never),
            _ if !options.start.backend.sums_in_rank_order() => None,
            Type::F32 => Some(Self::Never),
            Type::Bf16 => of_bf16,
        }
    }
}

/// Every step of a run like the ranks', computed on the host.
pub(crate) fn train(options: &Options, rounding: Rounding) -> Vec<Step> {
    train_with(options, rounding, |_| ())
}

/// The same, where `meddle` may change each step's averaged gradients.
pub(crate) fn train_with(
    options: &Options,
    rounding: Rounding,
    meddle: impl Fn(&mut [Vec<f32>]) + Sync,
) -> Vec<Step> {
    let alone = HostWorld::new(1).run(|comm| {
        let device = Arc::clone(comm.device());
        match options.dtype {
            Type::F32 => on_host::<f32>(&device, options, rounding, &meddle),
            Type::Bf16 => on_host::<bf16>(&device, options, rounding, &meddle),
        }
    });
    let mut steps = alone.into_iter();
    let steps = steps.next().expect("a world of one rank has a rank");
    steps.expect("one rank on the host has nobody to wait for")
}

fn on_host<T: Compute>(
    device: &Arc<dyn Device>,
    options: &Options,
    rounding: Rounding,
    meddle: &dyn Fn(&mut [Vec<f32>]),
) -> Result<Vec<Step>> {
    let stream = device.create_stream()?;
    let mut host = Host::new(device, shares(options), options.exact, &stream)?;
    let finish = |host: &mut Host| {
        let sums = host.gradients_mut().iter_mut().flatten();
        sums.for_each(|sum| *sum = averaged::<T>(*sum, options, rounding));
        meddle(host.gradients_mut());
        Ok(())
    };
    fold::<T, Host>(device, options, &mut host, &stream, finish)
}

/// All parameters of all layers, as one rank begins with them.
pub(crate) fn shares(options: &Options) -> Vec<Share> {
    let layers = model::layers(options).into_iter().enumerate();
    let share = |(index, layer): (usize, model::Layer)| Share {
        layer,
        masters: layer.initial(options.seed, index),
    };
    layers.map(share).collect()
}

/// Every step, with this arithmetic; `finish` makes averages of the sums of gradients.
pub(crate) fn fold<T: Compute, A: Arithmetic<T> + ?Sized>(
    device: &Arc<dyn Device>,
    options: &Options,
    arithmetic: &mut A,
    stream: &Stream,
    finish: impl Fn(&mut A) -> Result<()>,
) -> Result<Vec<Step>> {
    let data = Data::new(options.seed);
    let layouts: Vec<_> = model::layers(options)
        .iter()
        .map(|layer| Layout::new(layer.parameters(), options.ranks(), options.shards))
        .collect();
    let tensors = || -> Result<Vec<Buffer<T>>> {
        let of = |layout: &Layout| Buffer::zeroed(device, layout.parameters, stream);
        layouts.iter().map(of).collect()
    };
    let (mut parameters, mut gradients) = (tensors()?, tensors()?);
    let layers = 0..layouts.len();
    let step = |step| {
        for layer in layers.clone() {
            arithmetic.narrow(layer, &mut parameters[layer], stream)?;
        }
        let mut losses = 0.0;
        for rank in 0..options.ranks() {
            let batch = data.micro_batch(options.batch.into(), step, rank);
            arithmetic.begin(&batch, stream)?;
            for layer in layers.clone() {
                arithmetic.forward(layer, &parameters[layer], stream)?;
            }
            arithmetic.loss(stream)?;
            for layer in layers.clone().rev() {
                let gradients = &mut gradients[layer];
                arithmetic.backward(layer, &parameters[layer], gradients, stream)?;
                match rank {
                    0 => arithmetic.take(layer, gradients, None, stream)?,
                    _ => arithmetic.fold(layer, gradients, stream)?,
                }
            }
            losses += reported(arithmetic, stream)?[0];
        }
        finish(arithmetic)?;
        // Added up shard by shard, as the ranks do.
        let mut squares = None;
        for rank in 0..options.ranks() {
            let shards = layouts.iter().map(|layout| layout.owned(rank));
            arithmetic.squares(&shards.collect::<Vec<Range<usize>>>(), stream)?;
            let of_rank = reported(arithmetic, stream)?[1];
            squares = Some(squares.map_or(of_rank, |sum| sum + of_rank));
        }
        arithmetic.update(stream)?;
        let squares = squares.unwrap_or(0.0);
        Ok(Step::of_sums([losses, squares], options.start.ranks))
    };
    (0..options.steps).map(step).collect()
}

/// The last loss and squares.
fn reported<T: Compute>(
    arithmetic: &(impl Arithmetic<T> + ?Sized),
    stream: &Stream,
) -> Result<[f64; 2]> {
    let mut numbers = [0.0; 2];
    arithmetic.report().read_into(&mut numbers, stream)?;
    Ok(numbers)
}

fn averaged<T: Compute>(sum: f32, options: &Options, rounding: Rounding) -> f32 {
    let ranks = f32::from(options.start.ranks);
    match rounding {
        Rounding::Never => sum / ranks,
        Rounding::Sum => rounded::<T>(sum) / ranks,
        Rounding::Average => rounded::<T>(sum / ranks),
    }
}
