//! How long a world in which nothing happens is waited for.
//!
//! A slow machine is no failure: what counts is not how long a case takes, but how long none of its ranks
//! has done anything. A case that does something for ever ends too, after ten times as long.

use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many times as long as in stillness a case may take in all.
const IN_ALL: u32 = 10;

/// Where it is seen that the ranks of a world do something.
#[derive(Clone, Debug)]
pub(crate) enum Pulse {
    /// They are threads, and count here.
    Threads(Arc<AtomicU64>),
    /// They are processes, and note in this file.
    Processes(Arc<File>),
}

impl Pulse {
    /// What differs once a rank has done something.
    fn now(&self) -> u64 {
        match self {
            Self::Threads(beats) => beats.load(Ordering::Relaxed),
            Self::Processes(file) => hash(file),
        }
    }
}

fn hash(file: &File) -> u64 {
    let mut hasher = DefaultHasher::new();
    let (mut part, mut at) = ([0; 4096], 0);
    // What cannot be read does not change.
    while let Ok(read @ 1..) = file.read_at(&mut part, at) {
        hasher.write(&part[..read]);
        at += read as u64;
    }
    hasher.finish()
}

/// Why a world is waited for no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Nothing happened for so long.
    Still(Duration),
    /// It took so long in all.
    InAll(Duration),
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Still(limit) => write!(f, "nothing happened for {limit:?}"),
            Self::InAll(limit) => write!(f, "it took {limit:?}, and went on"),
        }
    }
}

/// How long one world has been waited for.
#[derive(Debug)]
pub(crate) struct Patience {
    pulse: Pulse,
    limit: Duration,
    looked: Instant,
    seen: u64,
    still: Duration,
    in_all: Duration,
}

impl Patience {
    /// For a world in which nothing may happen for at most so long.
    pub(crate) fn new(pulse: Pulse, limit: Duration) -> Self {
        Self {
            seen: pulse.now(),
            pulse,
            limit,
            looked: Instant::now(),
            still: Duration::ZERO,
            in_all: Duration::ZERO,
        }
    }

    /// How long to wait before the next look.
    pub(crate) fn tick(&self) -> Duration {
        (self.limit / 20).clamp(Duration::from_millis(5), Duration::from_millis(500))
    }

    /// Looks whether something has happened since the last time, after about a tick.
    pub(crate) fn look(&mut self) -> Option<Over> {
        let now = Instant::now();
        let waited = now.duration_since(self.looked);
        self.looked = now;
        self.note(self.pulse.now(), waited)
    }

    fn note(&mut self, pulse: u64, waited: Duration) -> Option<Over> {
        // Where the machine had no time for this thread, it had none for the ranks.
        let waited = waited.min(2 * self.tick());
        self.in_all += waited;
        self.still = match pulse == self.seen {
            true => self.still + waited,
            false => Duration::ZERO,
        };
        self.seen = pulse;
        let all = self.limit * IN_ALL;
        match () {
            () if self.still >= self.limit => Some(Over::Still(self.limit)),
            () if self.in_all >= all => Some(Over::InAll(all)),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const TICK: Duration = Duration::from_millis(500);

    fn patience() -> Patience {
        Patience::new(Pulse::Threads(Arc::default()), LIMIT)
    }

    /// Ticks until it is over, where the world does something at those of which the function says so.
    fn ticks(happens: impl Fn(u32) -> bool) -> (u32, Over) {
        let (mut patience, mut pulse) = (patience(), 0);
        for tick in 1.. {
            pulse += u64::from(happens(tick));
            if let Some(over) = patience.note(pulse, TICK) {
                return (tick, over);
            }
        }
        unreachable!("the ticks do not end");
    }

    #[test]
    fn a_world_that_does_nothing_has_its_limit() {
        assert_eq!(patience().tick(), TICK);
        assert_eq!(ticks(|_| false), (20, Over::Still(LIMIT)));
    }

    #[test]
    fn a_world_that_does_something_has_it_anew() {
        assert_eq!(ticks(|tick| tick == 15), (35, Over::Still(LIMIT)));
        let often = |tick| tick % 19 == 0 && tick < 100;
        assert_eq!(ticks(often), (95 + 20, Over::Still(LIMIT)));
    }

    #[test]
    fn a_world_that_never_ends_is_not_waited_for_for_ever() {
        assert_eq!(ticks(|_| true), (200, Over::InAll(10 * LIMIT)));
        assert_eq!(ticks(|tick| tick % 19 == 0).0, 200);
    }

    #[test]
    fn time_that_this_process_did_not_have_is_not_counted() {
        let mut patience = patience();
        for _ in 0..9 {
            assert_eq!(patience.note(0, Duration::from_secs(3600)), None);
        }
        assert_eq!(patience.note(0, 2 * TICK), Some(Over::Still(LIMIT)));
    }

    #[test]
    fn a_thread_s_beat_and_a_process_s_note_are_seen() {
        let beats = Arc::new(AtomicU64::new(0));
        let pulse = Pulse::Threads(Arc::clone(&beats));
        let before = pulse.now();
        beats.fetch_add(1, Ordering::Relaxed);
        assert_ne!(pulse.now(), before);

        let path = std::env::temp_dir().join(format!("kit-pulse-{}", std::process::id()));
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        let file = Arc::new(options.open(&path).unwrap());
        let pulse = Pulse::Processes(Arc::clone(&file));
        let mut seen = vec![pulse.now()];
        // The note of a rank beyond the first part that is read, too.
        for (at, byte) in [(0, 1), (0, 2), (5000, 1), (5000, 2)] {
            file.write_all_at(&[byte], at).unwrap();
            let now = pulse.now();
            assert!(!seen.contains(&now), "{byte} at {at} is not seen");
            assert_eq!(pulse.now(), now);
            seen.push(now);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
