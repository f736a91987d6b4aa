//! Every policy, driven with the requests.

use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_alloc::registry;
use collectives_alloc::replay::{Replay, Totals};
use collectives_alloc::trace::{Call, Event, Outcome};
use collectives_core::error::Result;

use crate::options::Options;
use crate::requests::Requests;

/// A policy and what it came to.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) name: String,
    pub(crate) config: ScratchConfig,
    pub(crate) totals: Totals,
    /// Mapped bytes kept after each request.
    pub(crate) kept_after: Vec<usize>,
}

impl Candidate {
    /// Mapped bytes kept after the last request: a process that closes gives all of them back.
    pub(crate) fn kept(&self) -> usize {
        self.kept_after.last().copied().unwrap_or(0)
    }
}

/// All policies that the backend can have, in the order of the table.
pub(crate) fn all(options: &Options, requests: &Requests) -> Result<Vec<Candidate>> {
    let names = [
        "exact",
        "replace",
        "geometric",
        "geometric-class",
        "reserved",
        "arena",
    ];
    let names = names.into_iter();
    names
        .filter(|&name| !(options.no_aliasing && name == "arena"))
        .map(|name| {
            let mut config = ScratchConfig::with_policy(name);
            config.cap = options.cap;
            config.piece = options.piece;
            config.limit = options.limit;
            if name == "reserved" {
                let cap = options.cap.map_or(usize::MAX, ByteSize::get);
                let largest = requests.sizes(cap).into_iter().max();
                config.max_request = Some(ByteSize::new(largest.unwrap_or(1)));
            }
            run(name, config, options, requests)
        })
        .collect()
}

/// How many requests a configuration stages, once what it says of the largest is reserved.
pub(crate) fn staged(
    config: &ScratchConfig,
    options: &Options,
    requests: &Requests,
) -> Result<u64> {
    let reserved = config.largest_request()?.map(|bytes| {
        let outcome = Outcome::Done;
        let bytes = bytes.get();
        Event::new(0, Call::Reserve { bytes, outcome })
    });
    let events: Vec<_> = reserved
        .into_iter()
        .chain(requests.events.iter().cloned())
        .collect();
    let totals = replay(config, options, &events, |_, _| {})?;
    Ok(totals.hits + totals.growths)
}

fn run(
    name: &str,
    config: ScratchConfig,
    options: &Options,
    requests: &Requests,
) -> Result<Candidate> {
    let mut kept_after = Vec::new();
    let totals = replay(&config, options, &requests.events, |event, kept| {
        if matches!(event.call, Call::Acquire { .. }) {
            kept_after.push(kept);
        }
    })?;
    Ok(Candidate {
        name: name.to_owned(),
        config,
        totals,
        kept_after,
    })
}

fn replay(
    config: &ScratchConfig,
    options: &Options,
    events: &[Event],
    each: impl FnMut(&Event, usize),
) -> Result<Totals> {
    config.validate()?;
    let policy = registry::snapshot().build_policy(config)?;
    let replay = Replay {
        policy: &*policy,
        options: &config.options(),
        granule: options.granule.get(),
        overhead: 0,
    };
    Ok(replay.run_with(events, each))
}
