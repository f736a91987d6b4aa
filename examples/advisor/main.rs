//! Recommends a scratch configuration for a workload that was recorded.
//!
//! It reads the requests of a process that ran, from what
//! [`Recorded`](collectives_alloc::recorded::Recorded) wrote or from a table of sizes, and replays
//! them with every policy. It prints what each would have kept and registered, recommends a
//! configuration, and draws what was kept over time.
#![forbid(unsafe_code)]

mod advice;
mod candidate;
mod options;
mod report;
mod requests;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use collectives_examples::exit;
use collectives_examples::plot::Plot;

use crate::options::Options;

fn main() -> ExitCode {
    exit::code(run(&Options::parse()).map(|()| Vec::new()))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let requests = requests::load(options)?;
    let candidates = candidate::all(options, &requests)?;
    exit::print(report::table(&candidates))?;
    let advice = advice::give(options, &requests, &candidates)?;
    exit::print(&advice)?;
    if let Some(path) = &options.plot {
        let mut plot = Plot::new("What each policy would have kept", "requests");
        for candidate in &candidates {
            plot.line(&candidate.name, candidate.kept_after.clone());
        }
        plot.save(path)?;
    }
    if let Some(path) = &options.output {
        std::fs::write(path, &advice.toml).map_err(|error| exit::about(path, error))?;
    }
    Ok(())
}
