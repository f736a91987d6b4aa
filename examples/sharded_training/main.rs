//! A training run whose parameters are sharded over ranks.
//!
//! A small perceptron learns which of two spirals a point belongs to. Each rank owns a shard of
//! every layer, with the state of its optimiser. For the forward and the backward pass a layer's
//! parameters are gathered, the next one's while this one computes; gradients are averaged and
//! scattered while the layer before computes its own. One rank that knows no collective folds the
//! same micro-batches in rank order, and every step is compared with it: bit for bit in f32, within a
//! bound in bf16, and where sums are made exact, bit for bit on every backend.
//!
//! The [`trainer`] has the order of a step, and an [`arithmetic`] its numbers: the host's, or a GPU's,
//! where a whole step can be captured as one graph.
#![deny(unsafe_code)]

mod adam;
mod arithmetic;
#[cfg(target_os = "linux")]
mod cuda;
mod data;
mod exact;
mod host;
mod layout;
mod model;
mod options;
mod outcome;
mod precision;
mod report;
mod single;
mod tensors;
#[cfg(test)]
mod tests;
mod trainer;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use collectives_core::env::World;
use collectives_core::error::Result as CollectiveResult;
use collectives_examples::{backend, exit};

use crate::options::Options;
use crate::report::Run;
use crate::single::Rounding;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    backend::dispatch(rank);
    let options = backend::command_line::<Options>();
    exit::code(options.and_then(|options| {
        options.check()?;
        run(&options)
    }))
}

/// Trains, compares and prints the figures; what is wrong with them.
fn run(options: &Options) -> Result<Vec<String>, Box<dyn Error>> {
    let Some(outcomes) = trainer::train_all(options)? else {
        // Another rank has the figures.
        return Ok(Vec::new());
    };
    let first = outcomes.first().ok_or("there are no ranks")?;
    let rounding = Rounding::of(options, first.averages).unwrap_or(Rounding::Never);
    let reference = first.reference.clone();
    let single = reference.unwrap_or_else(|| single::train(options, rounding));
    let layers = model::layers(options).into_iter();
    let parameters = layers.map(model::Layer::parameters).sum();
    let run = Run::new(options, parameters, &outcomes, &single)?;
    if options.json {
        exit::print(serde_json::to_string_pretty(&run)?)?;
    } else {
        exit::print(&run)?;
    }
    if let Some(path) = &options.plot {
        run.plot(&single).save(path)?;
    }
    Ok(run.faults())
}

/// A rank that is a process, with the same command line.
#[cfg(target_os = "linux")]
fn rank(world: &World) -> CollectiveResult<Vec<u8>> {
    let options = Options::parse();
    let train = |joined| trainer::train(joined, &options);
    backend::serve(options.start.backend, &options.started(), world, train)
}
