//! What a rank does: it joins the others, computes somewhere, and trains.

mod captured;
mod rank;
mod streams;

use std::error::Error;
use std::sync::Arc;

use collectives_core::collectives::Collectives;
use collectives_core::device::Device;
#[cfg(target_os = "linux")]
use collectives_core::error::Misuse;
use collectives_core::error::Result;
use collectives_core::stream::Stream;
use collectives_examples::backend::{Gauge, Joined};
use half::bf16;

use self::rank::Trainer;
use self::streams::Streams;
use crate::arithmetic::{Arithmetic, Share};
#[cfg(target_os = "linux")]
use crate::cuda::Cuda;
use crate::host::Host;
use crate::layout::Layout;
use crate::model::Layer;
use crate::options::{Compute as Type, Options, Place};
use crate::outcome::{Outcome, Step};
use crate::precision::Compute;
use crate::single;

/// Trains on all ranks, and gives what each saw, unless another process gets that.
pub(crate) fn train_all(options: &Options) -> Result<Option<Vec<Outcome>>, Box<dyn Error>> {
    let rank = |joined| train(joined, options);
    options.start.backend.run(&options.started(), 0, rank)
}

/// Trains on this rank.
pub(crate) fn train(joined: Joined, options: &Options) -> Result<Outcome> {
    match options.dtype {
        Type::F32 => train_in::<f32>(joined, options),
        Type::Bf16 => train_in::<bf16>(joined, options),
    }
}

fn train_in<T: Compute>(joined: Joined, options: &Options) -> Result<Outcome> {
    let Joined { comm, gauge, .. } = joined;
    let config = options.scratch_config()?;
    let on = Collectives::new(config.decorate(comm), config.build()?);
    let device = Arc::clone(on.device());
    let (rank, ranks) = (on.rank().index(), on.world_size());
    let mut shares = single::shares(options);
    let layout = |layer: Layer| Layout::new(layer.parameters(), ranks, options.shards);
    let layouts: Vec<_> = shares.iter().map(|share| layout(share.layer)).collect();
    for (share, layout) in shares.iter_mut().zip(&layouts) {
        share.masters = share.masters[layout.owned(rank)].to_vec();
    }
    let mut streams = Streams::new(&*device)?;
    let arithmetic = arithmetic::<T>(options, &device, &*gauge, shares, &streams.compute)?;
    let trainer = Trainer::new(on, arithmetic, layouts, options, &streams.compute)?;
    let mut outcome = trainer.train(&mut streams)?;
    if rank == 0 && options.exact && options.place() != Place::Host {
        outcome.reference = Some(reference::<T>(options, &device, &*gauge)?);
    }
    outcome.kept.left_bytes = gauge.mapped_bytes();
    Ok(outcome)
}

/// The arithmetic that was asked for, all but [`Arithmetic::narrow`] of which comes on one stream.
fn arithmetic<T: Compute>(
    options: &Options,
    device: &Arc<dyn Device>,
    gauge: &dyn Gauge,
    shares: Vec<Share>,
    stream: &Stream,
) -> Result<Box<dyn Arithmetic<T>>> {
    #[cfg(not(target_os = "linux"))]
    let _ = gauge;
    match options.place() {
        Place::Host => Ok(Box::new(Host::new(device, shares, options.exact, stream)?)),
        #[cfg(target_os = "linux")]
        Place::Cuda => {
            let none = || Misuse::Other("this backend has no GPU to compute on".to_owned());
            let gpu = gauge.gpu().ok_or_else(none)?;
            let (batch, exact) = (options.batch.into(), options.exact);
            let cuda = Cuda::<T>::new(device, gpu, shares, batch, exact, stream)?;
            Ok(Box::new(cuda))
        }
    }
}

/// One rank that folds all micro-batches with the same arithmetic, on the same device.
fn reference<T: Compute>(
    options: &Options,
    device: &Arc<dyn Device>,
    gauge: &dyn Gauge,
) -> Result<Vec<Step>> {
    let stream = device.create_stream()?;
    let shares = single::shares(options);
    let layers = shares.len();
    let mut whole = arithmetic::<T>(options, device, gauge, shares, &stream)?;
    single::fold(device, options, &mut *whole, &stream, |sums| {
        (0..layers).try_for_each(|layer| sums.divide(layer, options.ranks(), &stream))
    })
}
