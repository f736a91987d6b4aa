//! The collectives of a tensor-parallel inference server under changing prompt lengths.
//!
//! First decode batches are captured as graphs, in ascending size. Then prefills of changing length
//! come, two all-reduces each, as two layers would make them; after every prefill all graphs are
//! replayed with refilled inputs, on the stream of the eager work and on another. Every policy sees
//! the same calls, all staged through its scratch, and every element of every result is compared
//! with an oracle that uses none of the collectives.
#![forbid(unsafe_code)]

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
use collectives_core::env::World;
use collectives_core::error::{Error as CollectiveError, ErrorKind, Result as CollectiveResult};
use collectives_examples::plot::Plot;
use collectives_examples::{backend, exit};

use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Row, Run};
use crate::workload::Job;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    backend::dispatch(rank);
    let options = backend::command_line::<Options>();
    exit::code(options.and_then(|options| run(&options)))
}

/// Runs every policy and prints the figures; what is wrong with them.
fn run(options: &Options) -> Result<Vec<String>, Box<dyn Error>> {
    let trace = options.trace.load()?;
    let title = format!("Trace {}: what each policy keeps", trace.name);
    let mut plot = Plot::new(title, "steps");
    let mut rows = Vec::new();
    let configs = options.scratch_configs(&trace)?;
    if options.record.is_some() && configs.len() > 1 {
        return Err("a recording is of one policy; say which with --policy".into());
    }
    for (index, config) in configs.into_iter().enumerate() {
        let progress = match options.json {
            true => Progress::hidden(),
            false => Progress::new(config.policy_name(), trace.steps() * options.passes.get()),
        };
        let job = Job {
            trace: &trace,
            config: &config,
            record: options.record.as_deref(),
            passes: options.passes,
            progress: &progress,
        };
        let serve = |joined| workload::serve(joined, &job);
        let outcomes = options.start.backend.run(&options.ranks(), index, serve);
        progress.clear();
        let Some(outcomes) = outcomes? else { continue };
        if let Some(rank) = outcomes.first() {
            plot.line(config.policy_name(), rank.kept_after.clone());
        }
        rows.push(Row::new(config.policy_name(), &trace, &outcomes)?);
    }
    if rows.is_empty() {
        // Another rank has the figures.
        return Ok(Vec::new());
    }
    let run = Run {
        backend: options.start.backend.name(),
        trace: trace.name,
        ranks: options.start.ranks.into(),
        policies: rows,
    };
    if options.json {
        exit::print(serde_json::to_string_pretty(&run)?)?;
    } else {
        exit::print(&run)?;
    }
    if let Some(path) = &options.plot {
        plot.save(path)?;
    }
    Ok(run.faults())
}

/// A rank that is a process: the same command line, and the number of one of its configurations.
#[cfg(target_os = "linux")]
fn rank(world: &World) -> CollectiveResult<Vec<u8>> {
    let wrong = |error: Box<dyn Error>| CollectiveError::new(ErrorKind::System(error.to_string()));
    let options = Options::parse();
    let trace = options.trace.load().map_err(wrong)?;
    let configs = options.scratch_configs(&trace).map_err(wrong)?;
    let config = configs.get(backend::job()?);
    let config = config.ok_or_else(|| wrong("there is no such configuration".into()))?;
    let job = Job {
        trace: &trace,
        config,
        record: options.record.as_deref(),
        passes: options.passes,
        progress: &Progress::hidden(),
    };
    let serve = |joined| workload::serve(joined, &job);
    backend::serve(options.start.backend, &options.ranks(), world, serve)
}
