//! A recorded trace replays to exactly the totals of the pool that it was recorded on.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rstest::rstest;

use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::{DomainMode, OnMiss, Seal};
use collectives_alloc::recorded::Recorded;
use collectives_alloc::registry;
use collectives_alloc::replay::{Replay, Totals};
use collectives_alloc::trace::{self, Call, Event, HEADER, Outcome};
use collectives_core::scratch::{Lease, Request, ScratchAllocator};

use crate::mock::{GRANULE, MockComm, alone};

#[expect(
    dead_code,
    reason = "shared with the tests of the pool, which use all of it"
)]
#[path = "pool/mock.rs"]
mod mock;

/// An output that the test keeps a hold of.
#[derive(Clone, Debug, Default)]
struct Tape(Arc<Mutex<Vec<u8>>>);

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Tape {
    fn events(&self) -> Vec<Event> {
        trace::read(&**self.0.lock().unwrap()).unwrap()
    }
}

type Scratch = Recorded<Box<dyn ScratchAllocator>>;

fn record(config: &ScratchConfig) -> (Scratch, Tape) {
    let tape = Tape::default();
    (Recorded::new(config.build().unwrap(), tape.clone()), tape)
}

fn replay(config: &ScratchConfig, events: &[Event]) -> Totals {
    let policy = registry::snapshot().build_policy(config).unwrap();
    let replay = Replay {
        policy: &*policy,
        options: &config.options(),
        granule: GRANULE,
        overhead: 0,
    };
    replay.run(events)
}

#[derive(Clone, Debug)]
enum Action {
    /// Request, on one of two streams; the lease ends later if it is kept.
    Eager(usize, usize, bool),
    /// Requests in one capture, then an eager one on the other stream before it ends.
    Captured(usize, Vec<usize>, usize),
    /// The oldest lease that was kept ends.
    End,
    Reserve(Vec<usize>),
    Trim,
    Seal,
}

fn act(comm: &mut MockComm, scratch: &mut Scratch, actions: &[Action]) {
    let streams = [comm.stream(), comm.stream()];
    let mut kept: Vec<Lease> = Vec::new();
    let mut graphs = Vec::new();
    for action in actions {
        match action {
            Action::Eager(bytes, stream, keep) => {
                let capture = comm.capture(&streams[*stream]);
                match scratch.acquire(comm, Request::new(*bytes), &streams[*stream], capture) {
                    Ok(lease) if *keep => kept.push(lease),
                    Ok(lease) => lease.complete().unwrap(),
                    Err(_) => {}
                }
            }
            Action::Captured(stream, requests, eager) => {
                let captured = &streams[*stream];
                let mock = Arc::clone(&comm.mock);
                mock.begin(captured);
                let mut known = false;
                for &bytes in requests {
                    let capture = comm.capture(captured);
                    if let Ok(lease) = scratch.acquire(comm, Request::new(bytes), captured, capture)
                    {
                        lease.complete().unwrap();
                        known = true;
                    }
                }
                if known {
                    let capture = comm.capture(&streams[1 - stream]);
                    drop(scratch.acquire(
                        comm,
                        Request::new(*eager),
                        &streams[1 - stream],
                        capture,
                    ));
                }
                graphs.push(mock.end(captured));
            }
            Action::End if !kept.is_empty() => drop(kept.remove(0)),
            Action::End => {}
            Action::Reserve(requests) => {
                let requests: Vec<_> = requests.iter().map(|&bytes| Request::new(bytes)).collect();
                let _ = scratch.reserve(comm, &requests);
            }
            Action::Trim => {
                let _ = scratch.trim(comm).unwrap();
            }
            Action::Seal => scratch.seal(),
        }
    }
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        1..4 * GRANULE,
        (1_usize..12).prop_map(|granules| granules * GRANULE)
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let sizes = || prop::collection::vec(size(), 0..4);
    prop_oneof![
        8 => (size(), 0_usize..2, any::<bool>())
            .prop_map(|(bytes, stream, keep)| Action::Eager(bytes, stream, keep)),
        4 => (0_usize..2, sizes(), size())
            .prop_map(|(stream, requests, eager)| Action::Captured(stream, requests, eager)),
        4 => Just(Action::End),
        2 => sizes().prop_map(Action::Reserve),
        2 => Just(Action::Trim),
        1 => Just(Action::Seal),
    ]
}

prop_compose! {
    fn config()(
        policy in prop::sample::select(
            vec!["exact", "replace", "geometric", "geometric-class", "reserved"]),
        growth in prop::option::of(1.1_f64..4.0),
        classes in prop::option::of(1_u32..5),
        max_request in size(),
        cap in prop::option::of(size()),
        limit in prop::option::of((1_usize..40).prop_map(|granules| granules * GRANULE)),
        seal in prop::sample::select(vec![Seal::Never, Seal::Explicit, Seal::AfterReserve]),
        on_miss in prop::sample::select(vec![OnMiss::Error, OnMiss::Fallback]),
        domain in prop::sample::select(
            vec![DomainMode::Shared, DomainMode::Stream, DomainMode::Graph]),
    ) -> ScratchConfig {
        let mut config = ScratchConfig::default();
        config.policy = Some(policy.to_owned());
        config.growth = growth;
        config.classes_per_octave = classes;
        config.max_request = Some(ByteSize::new(max_request));
        config.cap = cap.map(ByteSize::new);
        config.limit = limit.map(ByteSize::new);
        config.seal = seal;
        config.on_miss = on_miss;
        config.domain = domain;
        config
    }
}

proptest! {
    #[test]
    fn a_trace_replays_to_the_same_totals(
        config in config(),
        actions in prop::collection::vec(action(), 0..30),
    ) {
        let (recorded, replayed, trace) = alone(|comm| {
            let (mut scratch, tape) = record(&config);
            act(comm, &mut scratch, &actions);
            let events = tape.events();
            (Totals::from(&scratch.stats()), replay(&config, &events), events)
        });
        prop_assert_eq!(replayed, recorded, "{:#?}", trace);
    }
}

#[test]
fn the_lines_say_what_happened() {
    let config =
        ScratchConfig::from_toml("[scratch]\nagree_deadline = '20s'\ncap = '64MiB'").unwrap();
    let text = alone(|comm| {
        let (mut scratch, tape) = record(&config);
        let stream = comm.stream();
        scratch
            .reserve(comm, &[Request::new(4096), Request::new(8192)])
            .unwrap();
        let capture = comm.capture(&stream);
        let first = scratch
            .acquire(comm, Request::new(4096), &stream, capture)
            .unwrap();
        let second = scratch
            .acquire(comm, Request::new(4096), &stream, capture)
            .unwrap();
        drop(first);
        second.complete().unwrap();
        let mock = Arc::clone(&comm.mock);
        mock.begin(&stream);
        let capture = comm.capture(&stream);
        let captured = scratch
            .acquire(comm, Request::new(100), &stream, capture)
            .unwrap();
        captured.complete().unwrap();
        scratch
            .acquire(comm, Request::new(32 << 20), &stream, capture)
            .unwrap_err();
        drop(mock.end(&stream));
        scratch.seal();
        let capture = comm.capture(&stream);
        scratch
            .acquire(comm, Request::new(128 << 20), &stream, capture)
            .unwrap_err();
        scratch
            .acquire(comm, Request::new(0), &stream, capture)
            .unwrap_err();
        let _ = scratch.trim(comm).unwrap();
        let _ = scratch.close(comm).unwrap();
        scratch.flush().unwrap();
        String::from_utf8(tape.0.lock().unwrap().clone()).unwrap()
    });
    let lines = [
        HEADER,
        "0,reserve,4096,,,done,",
        "0,reserve,8192,,,done,",
        "1,acquire,4096,0,,hit,1",
        "2,acquire,4096,0,,grow,2",
        "1,release,,,,,",
        "2,release,,,,,",
        "3,acquire,100,0,0,hit,1",
        "3,release,,,,,",
        "4,acquire,33554432,0,0,refused,",
        "5,seal,,,,done,",
        "6,acquire,134217728,0,,fallback,",
        "7,trim,,,,done,",
        "8,close,,,,done,",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
}

#[rstest]
#[case(OnMiss::Error, Outcome::Failed)]
#[case(OnMiss::Fallback, Outcome::FailedFallback)]
fn running_out_of_memory_is_no_rule(#[case] on_miss: OnMiss, #[case] expected: Outcome) {
    let mut config = ScratchConfig::default();
    config.on_miss = on_miss;
    let (recorded, replayed, events) = alone(|comm| {
        let (mut scratch, tape) = record(&config);
        comm.leave_free(2 * GRANULE);
        let sizes = [GRANULE, 9 * GRANULE, GRANULE];
        act(
            comm,
            &mut scratch,
            &sizes.map(|bytes| Action::Eager(bytes, 0, false)),
        );
        let events = tape.events();
        (
            Totals::from(&scratch.stats()),
            replay(&config, &events),
            events,
        )
    });
    let outcomes: Vec<_> = events.iter().filter_map(outcome).collect();
    assert_eq!(outcomes, [Outcome::Grow, expected, Outcome::Grow]);
    // A replay does not know that the idle slot was given up, and keeps it.
    assert_eq!((recorded.registrations, replayed.registrations), (2, 1));
    assert_eq!((recorded.deregistrations, replayed.deregistrations), (1, 0));
    assert_eq!((replayed.growths, replayed.hits), (1, 1));
    let failures = |totals: &Totals| (totals.requests, totals.fallbacks, totals.refusals);
    assert_eq!(failures(&replayed), failures(&recorded));
    assert_eq!(replayed.mapped_bytes, recorded.mapped_bytes);
}

fn outcome(event: &Event) -> Option<Outcome> {
    match event.call {
        Call::Acquire { outcome, .. } => Some(outcome),
        _ => None,
    }
}

#[test]
fn another_policy_gives_other_totals_for_the_same_trace() {
    let exact = ScratchConfig::from_toml("[scratch]\npolicy = 'exact'").unwrap();
    let sizes = [
        1, 8, 64, 128, 256, 64, 101, 150, 192, 230, 300, 350, 410, 480, 505, 570,
    ];
    let events = alone(|comm| {
        let (mut scratch, tape) = record(&exact);
        let requests = sizes.map(|tokens: usize| tokens.next_multiple_of(64) * 10240);
        act(
            comm,
            &mut scratch,
            &requests.map(|bytes| Action::Eager(bytes, 0, false)),
        );
        tape.events()
    });
    let geometric = ScratchConfig::default();
    let (kept, would_keep) = (replay(&exact, &events), replay(&geometric, &events));
    assert_eq!(kept.requests, would_keep.requests);
    assert!(would_keep.registrations < kept.registrations);
    assert!(would_keep.capacity_bytes < kept.capacity_bytes);
}

/// Fails after some bytes.
#[derive(Debug)]
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(left) = self.0.checked_sub(bytes.len()) else {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the disk is full",
            ));
        };
        self.0 = left;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_stops_the_trace_and_nothing_else() {
    let config = ScratchConfig::default();
    alone(|comm| {
        let mut scratch = Recorded::new(config.build().unwrap(), Full(HEADER.len() + 1));
        scratch.flush().unwrap();
        let stream = comm.stream();
        let capture = comm.capture(&stream);
        let lease = scratch
            .acquire(comm, Request::new(4096), &stream, capture)
            .unwrap();
        lease.complete().unwrap();
        for _ in 0..2 {
            let error = scratch.flush().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        assert_eq!(scratch.stats().requests, 1);
        assert_eq!(scratch.into_inner().stats().growths, 1);
    });
}
