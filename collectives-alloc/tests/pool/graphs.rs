//! Slots that graphs own.

use collectives_alloc::geometric::Geometric;
use collectives_alloc::options::{DomainMode, OnMiss};
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::{CaptureFault, ErrorKind, Field, MissedWhen};
use collectives_core::path::Reason;
use collectives_core::scratch::{Request, ScratchAllocator};
use rstest::rstest;

use crate::mock::{Call, GRANULE, MockComm, MockGraph, alone, world};
use crate::{MIB, acquire, balanced, geometric, kind, pool, replace, touch};

fn is_collective(call: &Call) -> bool {
    matches!(call, Call::Agree | Call::Register(_) | Call::Retire(_))
}

fn capture(
    pool: &mut collectives_alloc::pool::Pool,
    comm: &mut MockComm,
    bytes: usize,
) -> MockGraph {
    let _ = pool.reserve(comm, &[Request::new(bytes)]).unwrap();
    let stream = comm.stream();
    comm.mock.begin(&stream);
    touch(pool, comm, bytes, &stream);
    comm.mock.end(&stream)
}

// invariants 21 and 22
#[test]
fn a_claimed_slot_keeps_address_and_bytes_until_its_last_graph_is_gone() {
    world(2, |comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        let graph = capture(&mut pool, comm, MIB);
        let clone = graph.duplicate();
        let before = comm.ranges();
        for size in [3, 9, 20, 50] {
            touch(&mut pool, comm, size * MIB, &stream);
        }
        let (window, range) = before.first_key_value().unwrap();
        assert_eq!(comm.ranges().get(window), Some(range));
        drop(graph);
        touch(&mut pool, comm, 120 * MIB, &stream);
        assert!(comm.ranges().contains_key(window), "a clone still owns it");
        assert_eq!(
            pool.stats().slots.len(),
            2,
            "only the claimed one and the last are kept"
        );
        drop(clone);
        touch(&mut pool, comm, 260 * MIB, &stream);
        assert!(!comm.ranges().contains_key(window));
        assert_eq!(pool.stats().slots.len(), 1);
        balanced(&pool);
    });
}

// invariant 21
#[test]
fn every_graph_that_captures_a_slot_owns_it() {
    alone(|comm| {
        let mut pool = replace();
        let first = capture(&mut pool, comm, MIB);
        let second = capture(&mut pool, comm, MIB);
        assert_eq!((first.owned(), second.owned()), (1, 1));
        let stream = comm.stream();
        touch(&mut pool, comm, 3 * MIB, &stream);
        drop(first);
        assert_eq!(pool.trim(comm).unwrap().held_bytes, GRANULE);
        drop(second);
        assert_eq!(pool.trim(comm).unwrap().held_bytes, 0);
    });
}

// invariant 38
#[test]
fn bytes_come_back_at_the_next_collective_point_after_the_graph_died_on_the_last_rank() {
    let orders = world(3, |comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        let mut graphs: Vec<_> = [1, 3, 7, 15]
            .map(|size| Some(capture(&mut pool, comm, size * MIB)))
            .into();
        touch(&mut pool, comm, 31 * MIB, &stream);
        let _ = comm.mock.calls();
        // Graphs die in another order on every rank.
        for turn in 0..4 {
            let dies = (turn * (1 + comm.rank()) + comm.rank()) % 4;
            let dies = if comm.rank() == 1 { 3 - turn } else { dies };
            graphs[dies] = None;
            let _ = pool.trim(comm).unwrap();
            touch(&mut pool, comm, 31 * MIB, &stream);
        }
        graphs.clear();
        let _ = pool.trim(comm).unwrap();
        let retired = |call: &Call| matches!(call, Call::Retire(_));
        comm.mock
            .calls()
            .into_iter()
            .filter(retired)
            .collect::<Vec<_>>()
    });
    assert!(orders.iter().all(|order| *order == orders[0]), "{orders:?}");
}

#[test]
fn a_slot_stays_while_a_graph_of_any_rank_owns_it() {
    world(3, |comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        let graph = capture(&mut pool, comm, MIB);
        touch(&mut pool, comm, 3 * MIB, &stream);
        let graph = (comm.rank() == 2).then_some(graph);
        let trimmed = pool.trim(comm).unwrap();
        assert_eq!((trimmed.slots, trimmed.held_bytes), (1, GRANULE));
        drop(graph);
        let trimmed = pool.trim(comm).unwrap();
        assert_eq!(
            (trimmed.slots, trimmed.mapped_bytes, trimmed.held_bytes),
            (1, GRANULE, 0)
        );
    });
}

// invariant 25
#[test]
fn a_claim_ends_when_the_device_collects_and_not_in_the_destructor() {
    alone(|comm| {
        let mut pool = replace();
        let graph = capture(&mut pool, comm, MIB);
        let _ = comm.mock.calls();
        drop(graph);
        assert_eq!(comm.mock.calls(), []);
        comm.mock.collect();
        assert_eq!(pool.trim(comm).unwrap().slots, 1);
    });
}

#[test]
fn a_claim_blocks_no_lease() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        let graph = capture(&mut pool, comm, MIB);
        assert_eq!(touch(&mut pool, comm, MIB, &stream), 1);
        assert_eq!(pool.stats().registrations, 1);
        drop(graph);
    });
}

// invariants 23 and 24
#[rstest]
#[case::error(OnMiss::Error, None)]
#[case::fallback(OnMiss::Fallback, Some(Reason::MissInCapture))]
fn a_miss_in_capture_says_what_to_reserve_and_leaves_the_capture_valid(
    #[case] on_miss: OnMiss,
    #[case] reason: Option<Reason>,
) {
    world(2, |comm| {
        let stream = comm.stream();
        let mut pool = pool(Geometric::default(), |options| options.on_miss = on_miss);
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        comm.mock.begin(&stream);
        touch(&mut pool, comm, MIB, &stream);
        let _ = comm.mock.calls();
        let error = acquire(&mut pool, comm, 3 * MIB, &stream).unwrap_err();
        assert_eq!(comm.mock.calls(), [], "no round, and nothing is enqueued");
        let expected = ErrorKind::NeedsReserve {
            bytes: 3 * MIB,
            domain: "shared".to_owned(),
            when: MissedWhen::Capturing,
        };
        assert_eq!(error.kind(), &expected);
        for needle in ["3145728", "shared", "reserve"] {
            assert!(error.to_string().contains(needle), "{error}");
        }
        assert_eq!(pool.fallback_reason(&error), reason);
        touch(&mut pool, comm, MIB, &stream);
        assert_eq!(comm.mock.end(&stream).owned(), 1);
        // Afterwards it is an ordinary miss.
        touch(&mut pool, comm, 3 * MIB, &stream);
        balanced(&pool);
    });
}

// invariant 23
#[test]
fn nothing_is_registered_retired_or_allocated_while_a_known_stream_captures_on_any_rank() {
    world(2, |comm| {
        let (mut pool, stream, other) = (replace(), comm.stream(), comm.stream());
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        let captures = comm.rank() == 1;
        if captures {
            comm.mock.begin(&stream);
        }
        touch(&mut pool, comm, MIB, &stream);
        let _ = comm.mock.calls();
        let missed = kind(acquire(&mut pool, comm, 3 * MIB, &other));
        assert!(matches!(
            missed,
            ErrorKind::NeedsReserve {
                when: MissedWhen::Capturing,
                ..
            }
        ));
        assert!(pool.reserve(comm, &[Request::new(3 * MIB)]).is_err());
        let fault = CaptureFault::WindowChange;
        assert_eq!(kind(pool.trim(comm)), ErrorKind::Capture(fault));
        let calls = comm.mock.calls();
        let only_rounds = calls.iter().filter(|call| is_collective(call));
        assert!(
            only_rounds.clone().all(|call| *call == Call::Agree),
            "{calls:?}"
        );
        let graph = captures.then(|| comm.mock.end(&stream));
        touch(&mut pool, comm, 3 * MIB, &other);
        drop(graph);
    });
}

#[test]
fn a_domain_per_graph_takes_reserved_slots_over_and_gives_them_back_with_the_graph() {
    world(2, |comm| {
        let stream = comm.stream();
        let mut pool = pool(Geometric::default(), |options| {
            options.domain = DomainMode::Graph;
        });
        let first = capture(&mut pool, comm, MIB);
        let second = capture(&mut pool, comm, MIB);
        let slots = pool.stats().slots;
        assert_eq!(slots.iter().filter(|slot| slot.claimed).count(), 2);
        assert_eq!(
            touch(&mut pool, comm, MIB, &stream),
            3,
            "eager uses have slots of their own"
        );
        drop(first);
        // Any later miss frees what the dead graph had.
        touch(&mut pool, comm, 3 * MIB, &stream);
        let left: Vec<_> = pool
            .stats()
            .slots
            .iter()
            .map(|slot| slot.generation)
            .collect();
        assert_eq!(left, [2, 3, 4]);
        comm.mock.begin(&stream);
        let missed = kind(acquire(&mut pool, comm, 5 * MIB, &stream));
        assert!(
            matches!(missed, ErrorKind::NeedsReserve { ref domain, .. } if domain == "graph #3")
        );
        drop(comm.mock.end(&stream));
        drop(second);
        let deferred = pool.close(comm).unwrap();
        assert_eq!(deferred.windows, 0);
        assert_eq!(comm.symmetric().unwrap().window_count(), 0);
    });
}

#[test]
fn a_capture_that_took_no_scratch_is_known_once_the_pool_is_told() {
    world(2, |comm| {
        let (mut pool, stream, other) = (replace(), comm.stream(), comm.stream());
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        let capture = comm.mock.begin(&stream);
        pool.note_capture(&*comm.mock, capture, &stream);
        let fault = ErrorKind::Capture(CaptureFault::WindowChange);
        assert_eq!(kind(pool.trim(comm)), fault);
        let missed = ErrorKind::NeedsReserve {
            bytes: 3 * MIB,
            domain: "shared".to_owned(),
            when: MissedWhen::Capturing,
        };
        assert_eq!(kind(pool.reserve(comm, &[Request::new(3 * MIB)])), missed);
        assert_eq!(kind(acquire(&mut pool, comm, 3 * MIB, &other)), missed);
        // What is there may be asked for.
        let plan = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        assert_eq!(plan.registrations, 0);
        drop(comm.mock.end(&stream));
        touch(&mut pool, comm, 3 * MIB, &other);
        assert_eq!(pool.trim(comm).unwrap().slots, 1);
    });
}

#[test]
fn the_first_of_two_captures_of_one_slot_is_still_known_when_the_second_has_ended() {
    alone(|comm| {
        let (mut pool, first, second) = (replace(), comm.stream(), comm.stream());
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        comm.mock.begin(&first);
        touch(&mut pool, comm, MIB, &first);
        comm.mock.begin(&second);
        touch(&mut pool, comm, MIB, &second);
        drop(comm.mock.end(&second));
        assert!(pool.reserve(comm, &[Request::new(3 * MIB)]).is_err());
        assert!(pool.trim(comm).is_err());
        drop(comm.mock.end(&first));
        assert_eq!(pool.trim(comm).unwrap().slots, 1);
    });
}

#[test]
fn a_capture_goes_on_after_a_branch_of_it_has_joined() {
    alone(|comm| {
        let (mut pool, trunk, branch) = (replace(), comm.stream(), comm.stream());
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        comm.mock.begin(&trunk);
        touch(&mut pool, comm, MIB, &trunk);
        comm.mock.fork(&trunk, &branch);
        touch(&mut pool, comm, MIB, &branch);
        drop(comm.mock.end(&branch));
        assert!(pool.trim(comm).is_err());
        drop(comm.mock.end(&trunk));
        assert!(pool.trim(comm).is_ok());
    });
}

#[test]
fn a_pool_closes_while_a_capture_goes_on_and_leaves_its_windows_alone() {
    world(2, |comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        let other = comm.stream();
        let capture = comm.mock.begin(&other);
        pool.note_capture(&*comm.mock, capture, &other);
        assert_eq!(pool.close(comm).unwrap().windows, 1);
        drop(comm.mock.end(&other));
    });
}

#[test]
fn ranks_that_captured_differently_are_told_once_and_go_on() {
    for first_call in ["trim", "reserve", "miss", "close"] {
        world(2, |comm| {
            let mut pool = pool(Geometric::default(), |options| {
                options.domain = DomainMode::Graph;
            });
            let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
            let stream = comm.stream();
            // On the other rank the capture could not begin.
            if comm.rank() == 0 {
                comm.mock.begin(&stream);
                touch(&mut pool, comm, MIB, &stream);
                drop(comm.mock.end(&stream));
            }
            if first_call == "close" {
                assert_eq!(pool.close(comm).unwrap().windows, 0);
                return;
            }
            let told = match first_call {
                "trim" => kind(pool.trim(comm)),
                "reserve" => kind(pool.reserve(comm, &[Request::new(5 * MIB)])),
                _ => kind(acquire(&mut pool, comm, 5 * MIB, &stream)),
            };
            assert!(
                matches!(
                    told,
                    ErrorKind::Mismatch {
                        field: Field::Slots,
                        ..
                    }
                ),
                "{told:?}"
            );
            let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
            let graph = capture(&mut pool, comm, MIB);
            let claimed = pool.stats().slots.into_iter().filter(|slot| slot.claimed);
            assert_eq!(claimed.count(), 1);
            touch(&mut pool, comm, 5 * MIB, &stream);
            drop(graph);
            assert_eq!(pool.trim(comm).unwrap().held_bytes, 0);
            assert_eq!(comm.symmetric().unwrap().window_count(), 0);
            let second = capture(&mut pool, comm, MIB);
            assert_eq!(pool.close(comm).unwrap().windows, 1);
            drop(second);
            balanced(&pool);
        });
    }
}
