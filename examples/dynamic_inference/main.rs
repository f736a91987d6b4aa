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
mod report;
mod trace;
mod workload;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

use crate::options::Options;
use crate::report::{Row, Run};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("wrong elements were found");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every policy and prints the figures; whether every element was right.
fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let trace = options.trace.load()?;
    let mut rows = Vec::new();
    for config in options.scratch_configs()? {
        if !options.json {
            eprintln!("running `{}` …", config.policy_name());
        }
        let totals = workload::run(&trace, &config, options.ranks, options.granule.get())?;
        rows.push(Row::new(config.policy_name(), &totals));
    }
    let run = Run {
        trace: trace.name.clone(),
        ranks: options.ranks,
        granule: options.granule.get(),
        policies: rows,
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&run)?);
    } else {
        println!("{run}");
    }
    Ok(run.policies.iter().all(|row| row.wrong_elements == 0))
}
