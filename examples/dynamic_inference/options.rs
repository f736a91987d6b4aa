//! The command line.

use std::error::Error;
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_examples::backend::{Ranks, Start};
use collectives_examples::scratch;

use crate::trace::Trace;

/// The policies compared when none is named.
const POLICIES: [&str; 6] = [
    "exact",
    "replace",
    "geometric",
    "geometric-class",
    "reserved",
    "arena",
];

/// Runs the collectives of an inference server through each scratch policy and compares what each
/// keeps.
#[derive(Debug, Parser)]
#[command(name = "dynamic_inference")]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) start: Start,

    /// A policy to run, by the name configuration uses; may be given several times, or several
    /// separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub(crate) policy: Vec<String>,

    /// `seed`, `server`, or a CSV file with a column `tokens` and optionally `kind` (`prefill` or
    /// `decode`), or a published trace: Azure's or BurstGPT's CSV, Mooncake's lines of JSON (.jsonl).
    #[arg(long, default_value = "seed")]
    pub(crate) trace: TraceSource,

    /// A TOML file with a `[scratch]` table; without `--policy`, only its policy is run. Variables
    /// `COLLECTIVES_SCRATCH_…` win over it.
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,

    /// Seconds that ranks which are processes may run, for each policy.
    #[arg(long, default_value_t = 900)]
    pub(crate) deadline: u64,

    /// Draws what each policy keeps after each step into this SVG file.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,

    /// Writes what rank 0 asks its scratch for into this file, which `advisor` reads. For one policy; a
    /// run that is recorded is not rehearsed.
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) record: Option<PathBuf>,

    /// Serves the trace this many times, and tells the figures of the last. What library and driver make
    /// once, however many windows there were in the rehearsal, is in those of the first.
    #[arg(long, default_value_t = NonZero::<usize>::MIN)]
    pub(crate) passes: NonZero<usize>,

    /// Prints JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Options {
    /// How the ranks are started.
    pub(crate) fn ranks(&self) -> Ranks {
        let deadline = Duration::from_secs(self.deadline);
        self.start.ranks().with_deadline(deadline)
    }

    /// One configuration for each row. `reserved` is told the largest request of the trace, where
    /// the configuration does not say otherwise.
    pub(crate) fn scratch_configs(
        &self,
        trace: &Trace,
    ) -> Result<Vec<ScratchConfig>, Box<dyn Error>> {
        let base = scratch::configured(self.config.as_deref())?;
        let chosen = base.policy.is_some() || base.largest_request()?.is_some();
        if self.policy.is_empty() && (self.config.is_some() || chosen) {
            return Ok(vec![base]);
        }
        let named = self.policy.iter().map(String::as_str);
        let names: Vec<_> = match self.policy.is_empty() {
            true => POLICIES.to_vec(),
            false => named.collect(),
        };
        names
            .into_iter()
            .map(|name| {
                let mut config = base.clone();
                config.policy = Some(name.to_owned());
                if name == "reserved" && config.largest_request()?.is_none() {
                    config.max_request = Some(ByteSize::new(trace.largest_request()));
                }
                config.validate()?;
                Ok(config)
            })
            .collect()
    }
}

impl AsMut<Start> for Options {
    fn as_mut(&mut self) -> &mut Start {
        &mut self.start
    }
}

/// Where the requests come from.
#[derive(Clone, Debug)]
pub(crate) enum TraceSource {
    Seed,
    Server,
    File(PathBuf),
}

impl FromStr for TraceSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "seed" => Ok(Self::Seed),
            "server" => Ok(Self::Server),
            path if [".csv", ".jsonl", ".json"]
                .iter()
                .any(|end| path.ends_with(end)) =>
            {
                Ok(Self::File(path.into()))
            }
            other => Err(format!(
                "`{other}` is neither `seed`, `server` nor a .csv or .jsonl file"
            )),
        }
    }
}

impl TraceSource {
    pub(crate) fn load(&self) -> Result<Trace, Box<dyn Error>> {
        match self {
            Self::Seed => Ok(Trace::seed()),
            Self::Server => Ok(Trace::server()?),
            Self::File(path) => Trace::from_csv(path),
        }
    }
}
