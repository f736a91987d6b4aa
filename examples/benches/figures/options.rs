//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use collectives_alloc::bytes::ByteSize;

use crate::row::Effort;

/// Sizes of an all-reduce unless some are named.
const SIZES: [usize; 6] = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20];

/// Measures leases, look-ups and host collectives beside what limits them and beside MPI.
#[derive(Debug, Parser)]
#[command(name = "figures")]
pub(crate) struct Options {
    /// Fewer batches, one round.
    #[arg(long)]
    pub(crate) quick: bool,

    /// Writes everything that was measured to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Sizes of the all-reduce, separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub(crate) sizes: Vec<ByteSize>,

    /// Leaves MPI out.
    #[arg(long)]
    pub(crate) no_peers: bool,

    /// Only these sections; may be given several times, or several separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    section: Vec<Section>,

    /// Ranks of the collectives, separated by commas: 2 and 4 have targets.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    pub(crate) ranks: Vec<usize>,

    /// Times that everything is measured, in turn.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// Seconds for each case to wait for a moment when nobody else uses the processors, and to
    /// repeat what was disturbed nevertheless.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    patience: u64,

    /// Makes this many hits after the set-up, and nothing else.
    #[arg(long, value_name = "N", hide = true)]
    pub(crate) spin_hits: Option<u64>,

    /// What `cargo bench` passes.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A part of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Section {
    Lease,
    Lookup,
    Host,
}

impl Options {
    /// The options, or a smoke run where nothing was said at all: that is how tests of all targets
    /// call a benchmark.
    pub(crate) fn from_command_line() -> Self {
        if std::env::args_os().len() > 1 {
            Self::parse()
        } else {
            Self::parse_from(["figures", "--quick", "--no-peers", "--sizes", "8,64KiB"])
        }
    }

    pub(crate) fn wants(&self, section: Section) -> bool {
        self.section.is_empty() || self.section.contains(&section)
    }

    pub(crate) fn sizes(&self) -> Vec<usize> {
        match self.sizes.is_empty() {
            true => SIZES.to_vec(),
            false => self.sizes.iter().map(|size| size.get()).collect(),
        }
    }

    /// Large operations take long enough to be measured less often.
    pub(crate) fn effort(&self, bytes: usize) -> Effort {
        let usual = if bytes < 16 << 20 { 5 } else { 3 };
        let quick = self.quick.then_some(1);
        Effort {
            rounds: self.rounds.or(quick).unwrap_or(usual).max(1),
            patience: self.patience(),
        }
    }

    pub(crate) const fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }
}
