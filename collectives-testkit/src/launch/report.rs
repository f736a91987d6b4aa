//! How a world of processes fared.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use collectives_core::rank::Rank;

use super::output::{Line, Stream};
use super::{DEADLINE_PASSED, PANICKED};

/// Every rank's end, and all that was printed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The ranks, in order.
    pub ranks: Vec<RankReport>,
    /// What they printed, in the order it arrived.
    pub output: Vec<Line>,
}

/// How one rank fared.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankReport {
    /// The rank.
    pub rank: Rank,
    /// Its process, which is gone.
    pub pid: u32,
    /// How the process ended.
    pub exit: Exit,
    /// What its body returned.
    pub result: Option<Vec<u8>>,
    /// The error that its body returned, or why it ended itself.
    pub error: Option<String>,
    /// The messages of its panics, with the place.
    pub panics: Vec<String>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal, of whomever.
    Signal(i32),
    /// The parent killed it: its deadline had passed, or others had failed long ago.
    Killed,
}

impl Report {
    /// Whether every rank returned a result.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.ranks.iter().all(RankReport::is_ok)
    }

    /// The results in rank order, if every rank returned one.
    #[must_use]
    pub fn results(&self) -> Option<Vec<&[u8]>> {
        let results = self.ranks.iter().filter(|rank| rank.is_ok());
        let results: Vec<_> = results.filter_map(|rank| rank.result.as_deref()).collect();
        (results.len() == self.ranks.len()).then_some(results)
    }

    /// The lines that a rank printed to one stream.
    pub fn lines(&self, rank: Rank, stream: Stream) -> impl Iterator<Item = &str> {
        let lines = self.output.iter();
        lines
            .filter(move |line| line.rank == rank && line.stream == stream)
            .map(|line| line.text.as_str())
    }
}

impl RankReport {
    /// Whether the rank returned a result.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.exit == Exit::Code(0) && self.result.is_some()
    }
}

impl Exit {
    pub(super) fn new(status: ExitStatus, killed: bool) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(_)) if killed => Self::Killed,
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(DEADLINE_PASSED) => f.write_str("ended itself after its deadline"),
            Self::Code(PANICKED) => f.write_str("panicked"),
            Self::Code(code) => write!(f, "exited with {code}"),
            Self::Signal(signal) => write!(f, "died of signal {signal}"),
            Self::Killed => f.write_str("was killed, because it would not end"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rank in &self.ranks {
            write!(f, "rank {} {}", rank.rank, rank.exit)?;
            if let Some(error) = &rank.error {
                write!(f, ": {error}")?;
            }
            for panic in &rank.panics {
                write!(f, ": {panic}")?;
            }
            writeln!(f)?;
        }
        self.output
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}
