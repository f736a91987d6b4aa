//! The collectives of a tensor-parallel inference server under changing prompt lengths.
//!
//! First decode batches are captured as graphs, in ascending size. Then prefills of changing length
//! come, two all-reduces each, as two layers would make them; after every prefill all graphs are
//! replayed with refilled inputs, on the stream of the eager work and on another. Every policy sees
//! the same calls, all staged through its scratch, and every element of every result is compared
//! with an oracle that uses none of the collectives.
#![forbid(unsafe_code)]

mod backend;
mod options;
mod oracle;
mod outcome;
mod progress;
mod report;
mod trace;
mod workload;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use collectives_examples::plot::Plot;

use crate::backend::{Backend, Job};
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Row, Run};

fn main() -> ExitCode {
    Backend::dispatch();
    match run(&Options::parse()) {
        Ok(faults) if faults.is_empty() => ExitCode::SUCCESS,
        Ok(faults) => {
            faults.iter().for_each(|fault| eprintln!("{fault}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every policy and prints the figures; what is wrong with them.
fn run(options: &Options) -> Result<Vec<String>, Box<dyn Error>> {
    let trace = options.trace.load()?;
    let title = format!("Trace {}: what each policy keeps", trace.name);
    let mut plot = Plot::new(title);
    let mut rows = Vec::new();
    for config in options.scratch_configs(&trace)? {
        let progress = match options.json {
            true => Progress::hidden(),
            false => Progress::new(config.policy_name(), trace.steps()),
        };
        let job = Job {
            options,
            trace: &trace,
            config: &config,
            progress: &progress,
        };
        let outcomes = options.backend.run(&job);
        progress.clear();
        let outcomes = outcomes?;
        if let Some(rank) = outcomes.first() {
            plot.line(config.policy_name(), rank.kept_after.clone());
        }
        rows.push(Row::new(config.policy_name(), &trace, &outcomes)?);
    }
    let run = Run {
        backend: options.backend.name(),
        trace: trace.name,
        ranks: options.ranks,
        policies: rows,
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&run)?);
    } else {
        println!("{run}");
    }
    if let Some(path) = &options.plot {
        plot.save(path)?;
    }
    Ok(run.faults())
}
