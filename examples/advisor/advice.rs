//! What to configure, and why.

use std::fmt;

use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::Seal;
use collectives_core::error::Result;

use crate::candidate::Candidate;
use crate::options::Options;
use crate::report::mebibytes;
use crate::requests::Requests;

/// A configuration, and the sentence that recommends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) why: String,
    pub(crate) toml: String,
}

/// Recommends `reserved` where the first half of the requests foretells the largest of the second,
/// and else what grows best.
pub(crate) fn give(
    options: &Options,
    requests: &Requests,
    candidates: &[Candidate],
) -> Result<Advice> {
    let cap = options.cap.map_or(usize::MAX, ByteSize::get);
    let sizes = requests.sizes(cap);
    let largest = |sizes: &[usize]| sizes.iter().copied().max().unwrap_or(0);
    let (first, second) = sizes.split_at(sizes.len() / 2);
    let (config, why) = match largest(second) <= largest(first) {
        true => reserved(options, largest(&sizes)),
        false => growing(requests, candidates, largest(first), largest(second)),
    };
    config.validate()?;
    Ok(Advice {
        why,
        toml: config.to_toml()?,
    })
}

fn reserved(options: &Options, largest: usize) -> (ScratchConfig, String) {
    let granule = options.granule.get().max(1);
    // What is mapped anyway may as well be asked for.
    let bound = largest.checked_next_multiple_of(granule).unwrap_or(largest);
    let bound = options.cap.map_or(bound, |cap| bound.min(cap.get()));
    let mut config = ScratchConfig::with_policy("reserved");
    config.max_request = Some(ByteSize::new(bound));
    config.cap = options.cap;
    config.piece = options.piece;
    config.limit = options.limit;
    config.seal = Seal::AfterReserve;
    let why = format!(
        "The largest request of the first half, {}, bounds the second half too: one slot of that \
         size, registered by `reserve` while warming up, serves all of it.",
        mebibytes(largest)
    );
    (config, why)
}

/// The policy that keeps least among those that may grow: `arena` where there is one; `replace`
/// only where nothing is captured.
fn growing(
    requests: &Requests,
    candidates: &[Candidate],
    first: usize,
    second: usize,
) -> (ScratchConfig, String) {
    let captures = requests.captures();
    let may = |candidate: &&Candidate| match &*candidate.name {
        "arena" | "geometric" => true,
        "replace" => !captures,
        _ => false,
    };
    let least = candidates.iter().filter(may).min_by_key(|candidate| {
        let totals = candidate.totals;
        (totals.refusals + totals.fallbacks, totals.peak_mapped_bytes)
    });
    let config = least.map_or_else(ScratchConfig::default, |best| best.config.clone());
    let why = format!(
        "Requests still grow: {} in the first half, {} in the second. `{}` follows them and keeps \
         least; once the largest is known, say it as `max_request`.",
        mebibytes(first),
        mebibytes(second),
        config.policy_name()
    );
    (config, why)
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.why)?;
        writeln!(f)?;
        f.write_str(&self.toml)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use collectives_alloc::trace::{Call, Event, Outcome};

    use super::*;
    use crate::candidate;

    const MIB: usize = 1 << 20;

    fn advice(sizes: &[usize], captured: bool, flags: &[&str]) -> ScratchConfig {
        let arguments = ["advisor", "x.csv"].iter().chain(flags);
        let options = Options::parse_from(arguments);
        let events = sizes.iter().zip(0..).flat_map(|(&bytes, sequence)| {
            let acquire = |capture| Call::Acquire {
                bytes,
                stream: 0,
                capture,
                outcome: Outcome::Hit,
                generation: None,
            };
            let eager = [acquire(None), Call::Release].map(|call| Event::new(3 * sequence, call));
            let last = [acquire(Some(0)), Call::Release];
            let last = last.map(|call| Event::new(3 * sequence + 1, call));
            let captures = if captured { 2 } else { 0 };
            eager.into_iter().chain(last.into_iter().take(captures))
        });
        let requests = Requests {
            events: events.collect(),
        };
        let requests = requests.leased(&options);
        let candidates = candidate::all(&options, &requests).unwrap();
        let advice = give(&options, &requests, &candidates).unwrap();
        ScratchConfig::from_toml(&advice.toml).unwrap()
    }

    #[test]
    fn what_is_kept_is_told_as_of_before_the_process_closed() {
        let options = Options::parse_from(["advisor", "x.csv"]);
        let acquire = Call::Acquire {
            bytes: 3 * MIB,
            stream: 0,
            capture: None,
            outcome: Outcome::Grow,
            generation: None,
        };
        let outcome = Outcome::Done;
        let calls = [acquire, Call::Release, Call::Close(outcome)];
        let events = calls.into_iter().zip(0..);
        let requests = Requests {
            events: events.map(|(call, at)| Event::new(at, call)).collect(),
        };
        let candidates = candidate::all(&options, &requests).unwrap();
        let kept: Vec<_> = candidates
            .iter()
            .map(|candidate| candidate.kept())
            .collect();
        assert_eq!(kept, [4 * MIB; 6]);
        assert!(candidates.iter().all(|one| one.totals.mapped_bytes == 0));
    }

    #[test]
    fn a_bound_that_holds_is_reserved() {
        let config = advice(&[5 * MIB, MIB, MIB, 5 * MIB], true, &[]);
        assert_eq!(config.policy_name(), "reserved");
        assert_eq!(config.max_request, Some(ByteSize::new(6 * MIB)));
        assert_eq!(config.seal, Seal::AfterReserve);
    }

    #[test]
    fn requests_that_still_grow_get_a_policy_that_grows() {
        let sizes: Vec<_> = (1..20).map(|size| size * MIB).collect();
        assert_eq!(advice(&sizes, true, &[]).policy_name(), "arena");
        let without = advice(&sizes, true, &["--no-aliasing"]);
        assert_eq!(without.policy_name(), "geometric");
        let eager = advice(&sizes, false, &["--no-aliasing"]);
        assert_eq!(eager.policy_name(), "replace");
    }

    #[test]
    fn a_piece_is_a_bound() {
        let sizes: Vec<_> = (1..20).map(|size| size * MIB).collect();
        let config = advice(&sizes, true, &["--piece", "4MiB"]);
        assert_eq!(config.policy_name(), "reserved");
        assert_eq!(config.max_request, Some(ByteSize::new(4 * MIB)));
        assert_eq!(config.piece, Some(ByteSize::new(4 * MIB)));
    }

    #[test]
    fn what_exceeds_the_cap_does_not_count() {
        let config = advice(&[3 * MIB, MIB, 90 * MIB], true, &["--cap", "4MiB"]);
        assert_eq!(config.max_request, Some(ByteSize::new(4 * MIB)));
        assert_eq!(config.cap, Some(ByteSize::new(4 * MIB)));
    }
}
