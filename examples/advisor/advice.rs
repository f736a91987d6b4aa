//! What to configure, and why.

use std::error::Error;
use std::fmt;

use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::Seal;

use crate::candidate::{self, Candidate};
use crate::options::Options;
use crate::report::mebibytes;
use crate::requests::Requests;

/// A configuration, and the sentence that recommends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) why: String,
    pub(crate) toml: String,
}

/// What might be recommended.
struct Offer {
    config: ScratchConfig,
    why: String,
}

/// Recommends `reserved` where the first half of the requests foretells the largest of the second,
/// and else what grows best. If that does not stage all that cap and limit let in, it is whichever
/// of the two stages more.
///
/// # Errors
///
/// Where nothing would be staged at all.
pub(crate) fn give(
    options: &Options,
    requests: &Requests,
    candidates: &[Candidate],
) -> Result<Advice, Box<dyn Error>> {
    let room = room(options);
    if let (Some(piece), Some(room)) = (options.piece, room)
        && piece.get() > room
    {
        let (piece, room) = (mebibytes(piece.get()), mebibytes(room));
        return Err(format!("nothing fits: a piece is {piece}, the limit holds {room}").into());
    }
    let cap = cap(options, room);
    let sizes = requests.sizes(cap.unwrap_or(usize::MAX));
    let largest = |sizes: &[usize]| sizes.iter().copied().max().unwrap_or(0);
    let (first, second) = sizes.split_at(sizes.len() / 2);
    let (before, after) = (largest(first), largest(second));
    if sizes.is_empty() {
        return Err(nothing_fits(options, requests).into());
    }
    let offers = match after <= before {
        true => [
            bounded(options, cap, before),
            growing(requests, candidates, before, after),
        ],
        false => [
            growing(requests, candidates, before, after),
            outgrown(options, cap, after),
        ],
    };
    let mut best: Option<(u64, Offer)> = None;
    for mut offer in offers {
        // What the limit cannot hold takes the ordinary path, and is no error.
        offer.config.cap = cap.map(ByteSize::new);
        let staged = candidate::staged(&offer.config, options, requests)?;
        if best.as_ref().is_none_or(|&(most, _)| staged > most) {
            best = Some((staged, offer));
        }
    }
    let best = best.filter(|&(staged, _)| staged > 0);
    let (staged, Offer { config, mut why }) =
        best.ok_or_else(|| nothing_fits(options, requests))?;
    let all = requests.sizes(usize::MAX).len() as u64;
    if staged < all {
        let left = all - staged;
        why += &format!(" {left} of {all} requests are not staged: cap and limit leave no room.");
    }
    let toml = config.to_toml()?;
    Ok(Advice { why, toml })
}

/// Bytes that the limit holds, in whole granules.
fn room(options: &Options) -> Option<usize> {
    let granule = options.granule.get().max(1);
    options.limit.map(|limit| limit.get() / granule * granule)
}

/// The largest request that may be staged: the cap, if the limit holds as much, or pieces of what exceeds
/// them.
fn cap(options: &Options, room: Option<usize>) -> Option<usize> {
    let cap = options.cap.map(ByteSize::get);
    match (cap, room) {
        _ if options.piece.is_some() => cap,
        (Some(cap), Some(room)) => Some(cap.min(room)),
        (one, other) => one.or(other),
    }
}

fn nothing_fits(options: &Options, requests: &Requests) -> String {
    let smallest = requests.sizes(usize::MAX).into_iter().min();
    let bound = |size: Option<ByteSize>| {
        size.map_or_else(|| "none".to_owned(), |size| mebibytes(size.get()))
    };
    format!(
        "nothing fits: the smallest request is {}, the granule {}, the cap {}, the limit {}",
        mebibytes(smallest.unwrap_or(0)),
        mebibytes(options.granule.get()),
        bound(options.cap),
        bound(options.limit)
    )
}

/// `reserved`, where the first half of the requests bounds the second.
fn bounded(options: &Options, cap: Option<usize>, largest: usize) -> Offer {
    let why = format!(
        "The largest request of the first half, {}, bounds the second half too: one slot of that \
         size, registered by `reserve` while warming up, serves all of it.",
        mebibytes(largest)
    );
    let config = reserved(options, cap, largest);
    Offer { config, why }
}

/// `reserved`, where what grows would not stage all.
fn outgrown(options: &Options, cap: Option<usize>, largest: usize) -> Offer {
    let why = format!(
        "Requests still grow, but no policy that grows stages as many of them here as one slot of \
         {}, registered by `reserve` while warming up.",
        mebibytes(largest)
    );
    let config = reserved(options, cap, largest);
    Offer { config, why }
}

fn reserved(options: &Options, cap: Option<usize>, largest: usize) -> ScratchConfig {
    let granule = options.granule.get().max(1);
    // What is mapped anyway may as well be asked for.
    let bound = largest.checked_next_multiple_of(granule).unwrap_or(largest);
    let mut config = ScratchConfig::with_policy("reserved");
    config.max_request = Some(ByteSize::new(bound.min(cap.unwrap_or(bound))));
    config.piece = options.piece;
    config.limit = options.limit;
    config.seal = Seal::AfterReserve;
    config
}

/// The policy that keeps least among those that may grow: `arena` where there is one; `replace`
/// only where nothing is captured.
fn growing(requests: &Requests, candidates: &[Candidate], first: usize, second: usize) -> Offer {
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
        "The largest request is {} in the first half, {} in the second. `{}` follows and keeps \
         least; once the largest is known, say it as `max_request`.",
        mebibytes(first),
        mebibytes(second),
        config.policy_name()
    );
    Offer { config, why }
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
        let (advice, _) = given(sizes, captured, flags).unwrap();
        ScratchConfig::from_toml(&advice.toml).unwrap()
    }

    /// The advice, and how many requests it stages; what it says if there is none.
    fn given(sizes: &[usize], captured: bool, flags: &[&str]) -> Result<(Advice, u64), String> {
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
        let advice = give(&options, &requests, &candidates).map_err(|error| error.to_string())?;
        let config = ScratchConfig::from_toml(&advice.toml).unwrap();
        let staged = candidate::staged(&config, &options, &requests).unwrap();
        Ok((advice, staged))
    }

    #[test]
    fn advice_within_a_limit_stages_all_that_the_limit_holds() {
        // 5 MiB take three granules, and a limit of 5 MiB holds two.
        let sizes = [5 * MIB, MIB, 3 * MIB, MIB];
        let (advice, staged) = given(&sizes, false, &["--limit", "5MiB"]).unwrap();
        let config = ScratchConfig::from_toml(&advice.toml).unwrap();
        assert_eq!(staged, 3);
        assert_eq!(config.cap, Some(ByteSize::new(4 * MIB)));
        let left = "1 of 4 requests are not staged";
        assert!(advice.why.contains(left), "{}", advice.why);
        // Slots that grow beside each other would need more.
        let sizes: Vec<_> = (1..=8).map(|size| size * MIB).collect();
        let flags = ["--limit", "8MiB", "--no-aliasing"];
        let (advice, staged) = given(&sizes, true, &flags).unwrap();
        assert_eq!(staged, 16, "{}", advice.why);
    }

    #[test]
    fn where_nothing_fits_that_is_said_and_nothing_recommended() {
        for flags in [["--limit", "1MiB"], ["--cap", "1KiB"]] {
            let said = given(&[MIB, 2 * MIB], false, &flags).unwrap_err();
            let begins = "nothing fits: the smallest request is 1.00 MiB";
            assert!(said.starts_with(begins), "{said}");
        }
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
    fn a_limit_is_no_cap_for_what_goes_in_pieces() {
        let sizes = [20 * MIB, 6 * MIB, 20 * MIB];
        let config = advice(&sizes, true, &["--piece", "4MiB", "--limit", "8MiB"]);
        assert_eq!(config.cap, None);
        assert_eq!(config.piece, Some(ByteSize::new(4 * MIB)));
        let refused = given(&sizes, true, &["--piece", "3MiB", "--limit", "3MiB"]);
        assert!(refused.is_err_and(|text| text.contains("a piece is 3")));
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
