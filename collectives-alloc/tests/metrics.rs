//! Statistics by the `metrics` facade: what a recorder of the process gets.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use collectives_alloc::statistics;
use collectives_core::path::Reason;
use collectives_core::rank::Rank;
use collectives_core::stats::{SlotStats, Stats};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Keeps every value under its name and labels.
#[derive(Default)]
struct Book {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
}

impl Book {
    fn counter(&self, name: &str) -> u64 {
        self.counters.lock().unwrap()[name].load(Ordering::Relaxed)
    }

    fn gauge(&self, name: &str) -> f64 {
        f64::from_bits(self.gauges.lock().unwrap()[name].load(Ordering::Relaxed))
    }
}

fn page(book: &Mutex<BTreeMap<String, Arc<AtomicU64>>>, key: &Key) -> Arc<AtomicU64> {
    let labels = key
        .labels()
        .map(|label| format!("{}={}", label.key(), label.value()));
    let labels: Vec<_> = labels.collect();
    let name = format!("{}{{{}}}", key.name(), labels.join(","));
    Arc::clone(book.lock().unwrap().entry(name).or_default())
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(page(&self.counters, key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(page(&self.gauges, key))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_recorder_gets_counters_sizes_reasons_and_octaves() {
    let slot = |generation, mapped, retired| SlotStats {
        generation,
        capacity: mapped,
        mapped,
        leased: false,
        claimed: retired,
        replays: 4,
        retired,
        arena: Some(1),
    };
    let mut stats = Stats {
        requests: 7,
        hits: 5,
        pieces: 11,
        replays: 12,
        fallbacks: vec![(Reason::OverCap, 2)],
        slots: vec![slot(1, 64, true), slot(2, 96, false)],
        promised_bound: Some(100),
        ..Stats::default()
    };
    stats.histogram.count(70);
    let book = Book::default();
    metrics::with_local_recorder(&book, || {
        statistics::report("arena", Rank(3), &stats);
        stats.hits = 9;
        statistics::report("arena", Rank(3), &stats);
    });
    let own = "policy=arena,rank=3";
    let name = |name: &str| format!("collectives_scratch_{name}{{{own}}}");
    assert_eq!(book.counter(&name("requests")), 7, "absolute, not added up");
    assert_eq!(book.counter(&name("hits")), 9);
    assert_eq!(book.counter(&name("pieces")), 11);
    assert_eq!(book.counter(&name("replays")), 12);
    let over_cap = format!("collectives_scratch_fallbacks{{{own},reason=larger than the cap}}");
    assert_eq!(book.counter(&over_cap), 2);
    let octave = format!("collectives_scratch_requests_by_size{{{own},octave=6}}");
    assert_eq!(book.counter(&octave), 1);
    let sizes = [
        "mapped_bytes",
        "address_bytes",
        "claimed_bytes",
        "headroom_bytes",
    ];
    let sizes = sizes.map(|size| book.gauge(&name(size)));
    assert_eq!(sizes, [96.0, 160.0, 64.0, 4.0]);
}
