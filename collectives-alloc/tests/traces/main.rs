//! What each policy keeps on ten kinds of workload, and how often it registers while serving.
//!
//! `cargo test -p collectives-alloc --test traces -- --nocapture` prints the table that is in
//! `docs/measurements.md`. Nothing here depends on the machine.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod workloads;

use std::fmt::Write;

use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_alloc::registry;
use collectives_alloc::replay::{Replay, Totals};
use collectives_alloc::trace::{Call, Event, Outcome};

use workloads::{Workload, all};

const GRANULE: usize = 2 << 20;
const POLICIES: [&str; 6] = [
    "exact",
    "geometric-class",
    "geometric",
    "replace",
    "reserved",
    "arena",
];

/// Every size is used eagerly when it first comes, then captured, so that nothing that a policy made
/// can ever go: the worst case.
fn events(workload: &Workload, reserve: Option<usize>) -> Vec<Event> {
    let mut events = Vec::new();
    let done = Outcome::Done;
    events.extend(reserve.map(|bytes| {
        let outcome = done;
        Event::new(0, Call::Reserve { bytes, outcome })
    }));
    let mut sequence = 1;
    for &bytes in &workload.first_uses() {
        for capture in [None, Some(u32::try_from(sequence).unwrap())] {
            let call = Call::Acquire {
                bytes,
                stream: 0,
                capture,
                outcome: Outcome::Hit,
                generation: None,
            };
            events.push(Event::new(sequence, call));
            events.push(Event::new(sequence, Call::Release));
            sequence += 1;
        }
    }
    events
}

fn replayed(policy: &str, workload: &Workload) -> Totals {
    let mut config = ScratchConfig::with_policy(policy);
    let known = (policy == "reserved").then(|| workload.largest());
    config.max_request = known.map(ByteSize::new);
    let made = registry::snapshot().build_policy(&config).unwrap();
    let replay = Replay {
        policy: &*made,
        options: &config.options(),
        granule: GRANULE,
        overhead: 0,
    };
    replay.run(&events(workload, known))
}

#[expect(clippy::cast_precision_loss, reason = "ratios for people to read")]
fn ratio(kept: usize, largest: usize) -> f64 {
    kept as f64 / largest.next_multiple_of(GRANULE) as f64
}

#[test]
// invariants 1 to 4 and 51
fn what_policies_keep_on_every_workload_stays_within_their_bounds() {
    let mut table = String::from("| workload | sizes | largest |");
    for policy in POLICIES {
        write!(table, " `{policy}` |").unwrap();
    }
    writeln!(table, "\n|---|--:|--:|{}", "--:|".repeat(POLICIES.len())).unwrap();
    let mut worst = [(0.0_f64, 0); POLICIES.len()];
    for workload in all() {
        let largest = workload.largest();
        let (name, sizes) = (workload.name, workload.first_uses().len());
        let mebibytes = largest.next_multiple_of(GRANULE) >> 20;
        write!(table, "| {name} | {sizes} | {mebibytes} MiB |").unwrap();
        for (policy, worst) in POLICIES.into_iter().zip(&mut worst) {
            let totals = replayed(policy, &workload);
            let kept = ratio(totals.mapped_bytes, largest);
            let growths = totals.growths;
            write!(table, " {kept:.2}, {growths} |").unwrap();
            *worst = (worst.0.max(kept), worst.1.max(growths));
            let slots = usize::try_from(totals.registrations).unwrap();
            let bytes = totals.mapped_bytes;
            let text = format!("{name}: {policy} keeps {bytes}, {kept:.3}");
            match policy {
                "arena" => {
                    let most = (largest + largest / 8).next_multiple_of(GRANULE) + GRANULE;
                    assert!(bytes <= most, "{text}");
                }
                "reserved" => {
                    assert_eq!(bytes, largest.next_multiple_of(GRANULE), "{text}");
                    assert_eq!(growths, 0, "{text}");
                }
                "geometric" => assert!(bytes < 4 * largest + slots * GRANULE, "{text}"),
                "geometric-class" => assert!(bytes <= 4 * largest + slots * GRANULE, "{text}"),
                _ => {}
            }
        }
        table.push('\n');
    }
    write!(table, "| worst | | |").unwrap();
    for (kept, growths) in worst {
        write!(table, " {kept:.2}, {growths} |").unwrap();
    }
    println!("{table}");
}
