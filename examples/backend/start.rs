//! The options of a command line that say what ranks there are.

use std::error::Error;

use clap::{Args, Parser};
use collectives_alloc::bytes::ByteSize;

use super::{Backend, Ranks};

/// As many as any program runs: inputs whose sums are exact are made for them.
pub const MOST_RANKS: u16 = 32;

/// What ranks there are; a program flattens it into its own options.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct Start {
    /// What the ranks run on.
    #[arg(long, value_enum, default_value_t)]
    pub backend: Backend,

    /// Ranks: 1 to 32.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_RANKS)))]
    pub ranks: u16,

    /// Bytes that symmetric memory is mapped in multiples of, where the backend lets one choose: a
    /// power of two, at least 4 KiB.
    #[arg(long, default_value = "2MiB", value_parser = parse_granule)]
    pub granule: ByteSize,

    /// Runs as one of the ranks that a launcher started, mpirun, srun or torchrun for example, which also
    /// says how many there are. Rank 0 prints.
    #[arg(long)]
    pub launched: bool,
}

/// The command line, and the number of ranks that a launcher started.
///
/// # Errors
///
/// Where no launcher started ranks although it says so, or more than there may be.
pub fn command_line<O: Parser + AsMut<Start>>() -> Result<O, Box<dyn Error>> {
    let mut options = O::parse();
    #[cfg(target_os = "linux")]
    if options.as_mut().launched {
        options.as_mut().ranks = counted(super::world_size()?)?;
    }
    Ok(options)
}

impl Start {
    /// How the ranks are started.
    #[must_use]
    pub fn ranks(&self) -> Ranks {
        Ranks::new(self.ranks.into(), self.granule.get()).launched(self.launched)
    }
}

#[cfg(target_os = "linux")]
fn counted(started: usize) -> Result<u16, String> {
    let ranks = u16::try_from(started).ok();
    let ranks = ranks.filter(|ranks| (1..=MOST_RANKS).contains(ranks));
    ranks.ok_or_else(|| format!("{started} ranks were started, and 1 to {MOST_RANKS} may be"))
}

fn parse_granule(text: &str) -> Result<ByteSize, String> {
    let granule: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    match granule.get() {
        bytes if bytes >= 4096 && bytes.is_power_of_two() => Ok(granule),
        _ => Err("must be a power of two of at least 4 KiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Options {
        #[command(flatten)]
        start: Start,
    }

    #[test]
    fn what_no_program_can_run_is_refused() {
        let parse =
            |text: &str| Options::try_parse_from(["program"].into_iter().chain(text.split(' ')));
        for wrong in [
            "--ranks 0",
            "--ranks 33",
            "--granule 2048",
            "--granule 6KiB",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let start = parse("--ranks 32 --granule 4KiB").unwrap().start;
        assert_eq!((start.ranks, start.granule.get()), (32, 4096));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn ranks_that_a_launcher_started_are_counted_alike() {
        assert_eq!(counted(32), Ok(32));
        for wrong in [0, 33, 1 << 16] {
            assert!(counted(wrong).unwrap_err().contains("1 to 32"), "{wrong}");
        }
    }
}
