//! The command line.

use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_examples::backend::{self, Backend, Ranks};

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
    /// What the ranks run on.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: Backend,

    /// Ranks: 1 to 32.
    #[arg(long, default_value_t = 4, value_parser = parse_ranks)]
    pub(crate) ranks: usize,

    /// A policy to run, by the name configuration uses; may be given several times, or several
    /// separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub(crate) policy: Vec<String>,

    /// `seed`, `server`, or a CSV file with a column `tokens` and optionally `kind` (`prefill` or
    /// `decode`).
    #[arg(long, default_value = "seed")]
    pub(crate) trace: TraceSource,

    /// Bytes that symmetric memory is mapped in multiples of, where the backend lets one choose: a
    /// power of two, at least 4 KiB.
    #[arg(long, default_value = "2MiB", value_parser = parse_granule)]
    pub(crate) granule: ByteSize,

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

    /// Runs as one of the ranks that a launcher started, mpirun, srun or torchrun for example, which also
    /// says how many there are. Rank 0 prints.
    #[arg(long)]
    pub(crate) launched: bool,

    /// Prints JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Options {
    /// The command line, and the number of ranks that a launcher started.
    pub(crate) fn from_command_line() -> Result<Self, Box<dyn Error>> {
        let mut options = Self::parse();
        #[cfg(target_os = "linux")]
        if options.launched {
            options.ranks = parse_ranks(&backend::world_size()?.to_string())?;
        }
        Ok(options)
    }

    pub(crate) fn ranks(&self) -> Ranks {
        let deadline = Duration::from_secs(self.deadline);
        Ranks::new(self.ranks, self.granule.get())
            .with_deadline(deadline)
            .launched(self.launched)
    }

    /// One configuration for each row. `reserved` is told the largest request of the trace, where
    /// the configuration does not say otherwise.
    pub(crate) fn scratch_configs(
        &self,
        trace: &Trace,
    ) -> Result<Vec<ScratchConfig>, Box<dyn Error>> {
        let base = match &self.config {
            Some(path) => ScratchConfig::from_toml_file(path)?,
            None => ScratchConfig::default(),
        };
        let base = base.overridden_by_env()?;
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

fn parse_ranks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(ranks @ 1..=32) => Ok(ranks),
        // The oracle's sums stay exact in bf16 up to 32 ranks.
        _ => Err("must be a number from 1 to 32".to_owned()),
    }
}

fn parse_granule(text: &str) -> Result<ByteSize, String> {
    let granule: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    match granule.get() {
        bytes if bytes >= 4096 && bytes.is_power_of_two() => Ok(granule),
        _ => Err("must be a power of two of at least 4 KiB".to_owned()),
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
            path if path.ends_with(".csv") => Ok(Self::File(path.into())),
            other => Err(format!(
                "`{other}` is neither `seed`, `server` nor a .csv file"
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
