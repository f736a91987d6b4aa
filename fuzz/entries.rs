//! What is fuzzed: every reader of text or bytes that come from outside.
//!
//! Each entry takes any bytes and panics where a promise is broken. The targets in `fuzz_targets` give
//! them to libFuzzer; `collectives-alloc/tests/fuzz.rs` includes this file and drives the same entries
//! with the seeds and what proptest makes of them, on any toolchain.

use std::str;

use collectives_alloc::config::ScratchConfig;
use collectives_alloc::env::PREFIX;
use collectives_alloc::policy::{Ask, Decision, SlotView};
use collectives_alloc::registry;
use collectives_alloc::replay::{Replay, Totals};
use collectives_alloc::trace::{self, Event};
use collectives_core::agreement::Record;
use collectives_core::error::{Error, ErrorKind};

/// A configuration in TOML.
pub fn config(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    match ScratchConfig::from_toml(text) {
        Ok(config) => accepted(&config),
        Err(error) => refused(&error),
    }
}

/// A configuration in the environment, a line a variable; the prefix is put before every name.
pub fn environment(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let vars = text.lines().filter_map(|line| line.split_once('='));
    match ScratchConfig::from_vars(vars.map(|(name, value)| (format!("{PREFIX}{name}"), value))) {
        Ok(config) => accepted(&config),
        Err(error) => refused(&error),
    }
}

/// A trace, and its replay by every policy.
pub fn trace(data: &[u8]) {
    let events = match trace::read(data) {
        Ok(events) => events,
        Err(error) => return refused(&error),
    };
    let mut written = Vec::new();
    trace::write(&mut written, &events).expect("memory takes every byte");
    let again = trace::read(&written[..]).expect("what was written can be read");
    assert_eq!(again, events, "a trace reads back as it was written");
    for config in policies() {
        replayed(&config, &events);
    }
}

/// What one rank tells the others in an agreement.
pub fn record(data: &[u8]) {
    if let Ok(record) = Record::decode(data) {
        let again = Record::decode(&record.encode()).expect("what was encoded can be decoded");
        assert_eq!(again.facts(), record.facts(), "facts survive");
        Record::check_equal(&[record, again]).expect("a record is equal to itself");
    }
}

/// A configuration that was read is valid, writes itself, and makes an allocator or says why not.
fn accepted(config: &ScratchConfig) {
    config.validate().expect("what was read is valid");
    let text = config.to_toml().expect("what was read can be written");
    let again = ScratchConfig::from_toml(&text).expect("what was written can be read");
    let twice = again.to_toml().expect("what was read can be written");
    assert_eq!(twice, text, "a configuration reads back as it was written");
    assert_eq!(again.options(), config.options(), "and means the same");
    if let Err(error) = config.build() {
        return refused(&error);
    }
    let Ok(policy) = registry::snapshot().build_policy(config) else {
        return;
    };
    // Whatever the numbers, a policy answers, and its answer keeps its contract.
    let mut slots = Vec::new();
    for bytes in [1, 4096, 1 << 20, 5 << 30, usize::MAX / 2, usize::MAX] {
        let ask = Ask {
            bytes,
            granule: 2 << 20,
            overhead: 256,
        };
        match policy.decide(&slots, &ask) {
            Decision::Hit(index) => {
                let slot: &SlotView = &slots[index];
                assert!(!slot.leased && slot.capacity >= bytes, "a hit fits");
            }
            Decision::Grow { capacity, retire } => {
                assert!(capacity >= bytes, "a new slot fits");
                if retire {
                    slots.clear();
                }
                slots.push(SlotView {
                    capacity,
                    leased: false,
                });
            }
            _ => {}
        }
    }
}

/// What is refused says so in one line, and is a mistake in the configuration.
fn refused(error: &Error) {
    assert!(
        matches!(error.kind(), ErrorKind::Config(_)),
        "not a mistake in the configuration: {error}"
    );
    let text = error.to_string();
    assert!(!text.contains(char::is_control), "not one line: {text:?}");
}

fn policies() -> impl Iterator<Item = ScratchConfig> {
    let named = [
        "exact",
        "replace",
        "geometric",
        "geometric-class",
        "reserved",
    ];
    let texts = named.into_iter().flat_map(|name| {
        let bound = if name == "reserved" {
            "max_request = \"64MiB\"\n"
        } else {
            ""
        };
        [
            "",
            "limit = \"256MiB\"\non_miss = \"fallback\"",
            "cap = \"1MiB\"",
        ]
        .map(|more| format!("[scratch]\npolicy = \"{name}\"\n{bound}{more}"))
    });
    texts.map(|text| ScratchConfig::from_toml(&text).expect("this is a configuration"))
}

/// A replay counts every request once, and ends where it said it was.
fn replayed(config: &ScratchConfig, events: &[Event]) {
    let policy = registry::snapshot()
        .build_policy(config)
        .expect("the policy is registered");
    let options = config.options();
    let replay = Replay {
        policy: &*policy,
        options: &options,
        granule: 2 << 20,
        overhead: 256,
    };
    let totals: Totals = replay.run(events);
    let outcomes = totals.hits + totals.growths + totals.fallbacks + totals.refusals;
    assert_eq!(outcomes, totals.requests, "{totals:?}");
    assert!(
        totals.mapped_bytes <= totals.peak_mapped_bytes
            && totals.capacity_bytes <= totals.mapped_bytes,
        "{totals:?}"
    );
    if let Some(limit) = options.limit {
        assert!(totals.peak_mapped_bytes <= limit, "{totals:?}");
    }
    assert_eq!(replay.run(events), totals, "a replay is a function");
}
