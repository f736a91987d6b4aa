//! What training must come to: one rank, which knows no collective, folds all micro-batches.

use half::bf16;

use crate::adam::Adam;
use crate::data::Data;
use crate::layout::Layout;
use crate::model::{self, Layer};
use crate::options::{Average, Compute as Type, Options};
use crate::outcome::Step;
use crate::precision::{Compute, narrowed, rounded, widened};

/// Where the sum of gradients is rounded to the type that is communicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// Nowhere: the sum stays `f32`.
    Never,
    /// Once, as the accumulation rules say: a native average after its division, a sum before.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the program states a bound instead")
    )]
    ByRule,
}

/// Every step of a run like the ranks'.
pub(crate) fn train(options: &Options, rounding: Rounding) -> Vec<Step> {
    train_with(options, rounding, |_| ())
}

/// The same, where `meddle` may change each step's averaged gradients.
pub(crate) fn train_with(
    options: &Options,
    rounding: Rounding,
    meddle: impl Fn(&mut [Vec<f32>]),
) -> Vec<Step> {
    match options.dtype {
        Type::F32 => fold::<f32>(options, rounding, meddle),
        Type::Bf16 => fold::<bf16>(options, rounding, meddle),
    }
}

fn fold<T: Compute>(
    options: &Options,
    rounding: Rounding,
    meddle: impl Fn(&mut [Vec<f32>]),
) -> Vec<Step> {
    let data = Data::new(options.seed);
    let layers = model::layers(options);
    let initial = |(index, layer): (usize, &Layer)| layer.initial(options.seed, index);
    let mut masters: Vec<_> = layers
        .iter()
        .enumerate()
        .map(initial)
        .map(Adam::new)
        .collect();
    let step = |step| {
        let copies: Vec<Vec<f32>> = masters
            .iter()
            .map(|adam| widened(&narrowed::<T>(&adam.parameters)))
            .collect();
        let mut losses = 0.0;
        let mut sums: Vec<Vec<f32>> = Vec::new();
        for rank in 0..options.ranks() {
            let batch = data.micro_batch(options.batch.into(), step, rank);
            let (loss, gradients) = micro_batch::<T>(&layers, &copies, batch.inputs, &batch.labels);
            losses += loss;
            if rank == 0 {
                sums = gradients;
                continue;
            }
            let pairs = sums.iter_mut().flatten().zip(gradients.iter().flatten());
            pairs.for_each(|(sum, gradient)| *sum += gradient);
        }
        sums.iter_mut()
            .flatten()
            .for_each(|sum| *sum = averaged::<T>(*sum, options, rounding));
        meddle(&mut sums);
        let squares = squares(&layers, &sums, options);
        let gradients = sums.iter();
        masters
            .iter_mut()
            .zip(gradients)
            .for_each(|(adam, sum)| adam.step(sum));
        Step::of_sums([losses, squares], options.ranks)
    };
    (0..options.steps).map(step).collect()
}

/// The loss of one micro-batch and the gradients of all layers, as they are sent.
fn micro_batch<T: Compute>(
    layers: &[Layer],
    parameters: &[Vec<f32>],
    inputs: Vec<f32>,
    labels: &[usize],
) -> (f64, Vec<Vec<f32>>) {
    let mut outputs = vec![inputs.into_iter().map(rounded::<T>).collect::<Vec<_>>()];
    for (index, layer) in layers.iter().enumerate() {
        outputs.push(layer.forward::<T>(&parameters[index], &outputs[index]));
    }
    let (loss, mut gradient) = model::loss(&outputs[layers.len()], labels);
    let mut gradients = vec![Vec::new(); layers.len()];
    for (index, layer) in layers.iter().enumerate().rev() {
        let (of_parameters, of_inputs) = layer.backward::<T>(
            &parameters[index],
            &outputs[index],
            &outputs[index + 1],
            gradient,
        );
        gradients[index] = of_parameters.into_iter().map(rounded::<T>).collect();
        gradient = of_inputs;
    }
    (loss, gradients)
}

fn averaged<T: Compute>(sum: f32, options: &Options, rounding: Rounding) -> f32 {
    let ranks = f32::from(options.ranks);
    match (rounding, options.average) {
        (Rounding::Never, _) => sum / ranks,
        (Rounding::ByRule, Average::Sum) => rounded::<T>(sum) / ranks,
        (Rounding::ByRule, _) => rounded::<T>(sum / ranks),
    }
}

/// The squares of all gradients, added up shard by shard as the ranks do.
fn squares(layers: &[Layer], gradients: &[Vec<f32>], options: &Options) -> f64 {
    let of_rank = |rank| -> f64 {
        let shards = layers.iter().zip(gradients).flat_map(|(layer, gradients)| {
            let layout = Layout::new(layer.parameters(), options.ranks(), options.shards);
            &gradients[layout.owned(rank)]
        });
        shards.map(|&g| f64::from(g) * f64::from(g)).sum()
    };
    let mut ranks = (0..options.ranks()).map(of_rank);
    let first = ranks.next().unwrap_or(0.0);
    ranks.fold(first, |sum, of_rank| sum + of_rank)
}
