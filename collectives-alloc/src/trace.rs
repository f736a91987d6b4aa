//! A trace of everything asked of an allocator, as text that people and spreadsheets read.
//!
//! [`Recorded`](crate::recorded::Recorded) writes it, [`read`] reads it, and
//! [`Replay`](crate::replay::Replay) drives a policy with it.
//!
//! ```text
//! sequence,call,bytes,stream,capture,outcome,generation
//! 0,reserve,8388608,,,done,
//! 1,acquire,10240,0,,hit,1
//! 1,release,,,,,
//! 2,acquire,20480,0,0,hit,1
//! ```
//!
//! `sequence` numbers calls; the requests of one `reserve` share a number, and a `release` has that
//! of its `acquire`. `stream` and `capture` are ordinals in the order of first use; `capture` is
//! empty for an eager call. `generation` is the slot that was leased.

use std::fmt;
use std::io::{self, BufRead, Write};

use collectives_core::error::{Error, Result};

use self::row::Row;

mod row;

/// The first line of every trace.
pub const HEADER: &str = "sequence,call,bytes,stream,capture,outcome,generation";

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The number of the call.
    pub sequence: u64,
    /// The call.
    pub call: Call,
}

/// A call of an allocator, or the end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// A request.
    Acquire {
        /// Bytes requested.
        bytes: usize,
        /// The stream, by the order of first use.
        stream: u32,
        /// The capture, if there was one, by the order of first use.
        capture: Option<u32>,
        /// What became of it.
        outcome: Outcome,
        /// The generation of the slot, where there is one.
        generation: Option<u64>,
    },
    /// The end of the lease that the call with this number returned.
    Release,
    /// One request of a `reserve`.
    Reserve {
        /// Bytes requested; zero also stands for a call without requests.
        bytes: usize,
        /// What became of the whole call.
        outcome: Outcome,
    },
    /// `seal`.
    Seal,
    /// `trim`.
    Trim(Outcome),
    /// `close`.
    Close(Outcome),
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It succeeded; for calls that lease nothing.
    Done,
    /// A slot that existed was leased.
    Hit,
    /// A slot was registered and leased.
    Grow,
    /// A rule refused, and the ordinary path was taken.
    Fallback,
    /// A rule refused: cap, limit, policy, seal, or a miss in a capture.
    Refused,
    /// It failed for a reason that no rule gives: memory, a peer, a deadline.
    Failed,
    /// It failed so, and the ordinary path was taken.
    FailedFallback,
}

impl Outcome {
    const ALL: [Self; 7] = [
        Self::Done,
        Self::Hit,
        Self::Grow,
        Self::Fallback,
        Self::Refused,
        Self::Failed,
        Self::FailedFallback,
    ];

    /// What an `acquire` can come to.
    const OF_ACQUIRE: &[Self] = Self::ALL.split_at(1).1;

    /// What every other call can come to.
    const OF_OTHERS: &[Self] = &[Self::Done, Self::Refused, Self::Failed];

    /// The name in a trace.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Hit => "hit",
            Self::Grow => "grow",
            Self::Fallback => "fallback",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::FailedFallback => "failed-fallback",
        }
    }

    /// Whether a slot was leased.
    #[must_use]
    pub const fn is_leased(self) -> bool {
        matches!(self, Self::Hit | Self::Grow)
    }
}

impl Event {
    /// A line.
    #[must_use]
    pub const fn new(sequence: u64, call: Call) -> Self {
        Self { sequence, call }
    }
}

impl fmt::Display for Event {
    /// The line, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sequence = self.sequence;
        match self.call {
            Call::Acquire {
                bytes,
                stream,
                capture,
                outcome,
                generation,
            } => {
                let maybe = |number: Option<u64>| number.map_or(String::new(), |n| n.to_string());
                let (capture, generation) = (maybe(capture.map(u64::from)), maybe(generation));
                let outcome = outcome.name();
                write!(
                    f,
                    "{sequence},acquire,{bytes},{stream},{capture},{outcome},{generation}"
                )
            }
            Call::Release => write!(f, "{sequence},release,,,,,"),
            Call::Reserve { bytes, outcome } => {
                write!(f, "{sequence},reserve,{bytes},,,{},", outcome.name())
            }
            Call::Seal => write!(f, "{sequence},seal,,,,done,"),
            Call::Trim(outcome) => write!(f, "{sequence},trim,,,,{},", outcome.name()),
            Call::Close(outcome) => write!(f, "{sequence},close,,,,{},", outcome.name()),
        }
    }
}

/// Reads a trace.
///
/// # Errors
///
/// [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config) that names line, column and
/// field of the first thing that is wrong.
pub fn read(input: impl BufRead) -> Result<Vec<Event>> {
    let mut lines = input.lines().enumerate().map(|(index, line)| {
        let number = index + 1;
        let unreadable = |error: io::Error| Error::config(format!("trace, line {number}: {error}"));
        line.map(|line| (number, line)).map_err(unreadable)
    });
    let header = lines.next().transpose()?;
    if header.is_none_or(|(_, line)| line.trim_end() != HEADER) {
        return Err(Error::config(format!(
            "trace, line 1, column 1: a trace begins with the header `{HEADER}`"
        )));
    }
    lines
        .map(|line| {
            let (number, line) = line?;
            Row::new(number, line.trim_end_matches('\r'))?.event()
        })
        .collect()
}

/// Writes a trace.
///
/// # Errors
///
/// Those of the output.
pub fn write(mut output: impl Write, events: &[Event]) -> io::Result<()> {
    writeln!(output, "{HEADER}")?;
    for event in events {
        writeln!(output, "{event}")?;
    }
    Ok(())
}
