//! Figures of this backend beside the same calls made by hand, as a table and as JSON.
//!
//! ```text
//! cargo bench -p collectives-nccl --bench nccl_figures -- --ranks 2,4,8 --json figures.json
//! ```
//!
//! Ranks are processes, each on the next GPU, in turn. All variants of a size run in one process, one
//! after another in every round, so that what disturbs one disturbs all, and within rounds each follows
//! each other one equally often; a figure is a median, and a difference the median of differences within
//! rounds. What is made by hand runs twice: what lies between the two is the spread, below which no
//! difference means anything.
//!
//! | option | meaning | default |
//! |---|---|---|
//! | `--ranks 2,4,8` | world sizes | 2 |
//! | `--rounds N` | alternations | 216 |
//! | `--sizes 16,8192` | bytes of an all-reduce of bf16 | 16 B to 64 MiB |
//! | `--parts calls,growth,units` | what is measured: all-reduce beside the same by hand; growing scratch, by policy; all-gather and reduce-scatter of the units of a sharded model beside plain NCCL | everything |
//! | `--calibrate` | `Auto` goes by `Collectives::calibrate`, not by the table | |
//! | `--json FILE` | also writes everything there | |

mod driver;
mod growth;
mod host;
mod options;
mod point;
mod rank;
mod registration;
mod report;
mod turns;
mod units;
mod variant;

use std::process::ExitCode;
use std::time::Duration;

use collectives_core::env::World;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_nccl::setup::check_platform;
use collectives_testkit::launch::{Launch, dispatch};

use crate::options::{Options, SETTINGS};
use crate::report::Report;

const BODY: &str = "nccl-figures";

fn main() -> ExitCode {
    dispatch(&[(BODY, body)]);
    let options = match Options::from_args() {
        Ok(options) => options,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = check_platform() {
        println!("skipped: {error}");
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut reports = Vec::new();
    for &ranks in &options.ranks {
        // What the ranks share a GPU with; a value that is set already stays.
        let report = Launch::new(BODY, ranks)
            .deadline(Duration::from_secs(280))
            .var(SETTINGS, serde_json::to_string(options)?)
            .run()?;
        let Some(results) = report.results() else {
            return Err(report.to_string().into());
        };
        let report: Report = serde_json::from_slice(results[0])?;
        println!("{report}");
        reports.push(report);
        if let Some(path) = &options.json {
            std::fs::write(path, serde_json::to_vec_pretty(&reports)?)?;
        }
    }
    Ok(())
}

fn body(world: &World) -> Result<Vec<u8>> {
    let failed = |text: String| Error::new(ErrorKind::System(text));
    let options = Options::from_settings().map_err(failed)?;
    let report = rank::measure(world, &options)?;
    serde_json::to_vec(&report).map_err(|error| failed(error.to_string()))
}
