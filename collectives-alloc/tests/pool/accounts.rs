//! Names, digests and counters, which people and other ranks rely on.

use collectives_alloc::arena::Arena;
use collectives_alloc::exact::Exact;
use collectives_alloc::geometric::Geometric;
use collectives_alloc::geometric_class::GeometricClass;
use collectives_alloc::policy::{Ask, Decision, Policy, SlotView, best_fit};
use collectives_alloc::pool::Pool;
use collectives_alloc::replace::Replace;
use collectives_alloc::reserved::Reserved;
use collectives_core::error::{Error, ErrorKind, Field, Refusal};
use collectives_core::path::Reason;
use collectives_core::rank::Rank;
use collectives_core::scratch::{Request, ScratchAllocator};
use rstest::rstest;

use crate::mock::{GRANULE, MockComm, alone, world};
use crate::{MIB, acquire, geometric, kind, options, pool, replace, touch};

fn policies() -> Vec<(&'static str, Box<dyn Policy>)> {
    vec![
        ("exact", Box::new(Exact::new())),
        ("replace", Box::new(Replace::new(2.0).unwrap())),
        ("replace", Box::new(Replace::new(3.0).unwrap())),
        ("geometric", Box::new(Geometric::new(2.0).unwrap())),
        ("geometric", Box::new(Geometric::new(3.0).unwrap())),
        ("geometric-class", Box::new(GeometricClass::new(1).unwrap())),
        ("geometric-class", Box::new(GeometricClass::new(2).unwrap())),
        ("reserved", Box::new(Reserved::new(MIB, 2.0).unwrap())),
        ("reserved", Box::new(Reserved::new(2 * MIB, 2.0).unwrap())),
        ("reserved", Box::new(Reserved::new(MIB, 3.0).unwrap())),
        ("arena", Box::new(Arena::new(1.0).unwrap())),
        ("arena", Box::new(Arena::new(2.0).unwrap())),
    ]
}

#[test]
fn policies_and_their_pools_have_the_names_that_configuration_uses() {
    for (name, policy) in policies() {
        assert_eq!(policy.name(), name);
        assert_eq!(Pool::new(policy, options(|_| {})).name(), name);
    }
}

#[test]
fn policies_that_decide_differently_have_different_digests() {
    let digests: Vec<_> = policies()
        .iter()
        .map(|(_, policy)| policy.digest())
        .collect();
    for (index, digest) in digests.iter().enumerate() {
        assert!(!digests[..index].contains(digest), "{digests:x?}");
        // What a digest that was left out would be.
        assert!(*digest > 1, "{digests:x?}");
    }
}

#[test]
fn of_equal_slots_the_oldest_is_the_best_fit() {
    let slots = [4096, 8192, 4096].map(|capacity| SlotView {
        capacity,
        leased: false,
    });
    assert_eq!(best_fit(&slots, 4000), Some(0));
    assert_eq!(best_fit(&slots[1..], 4000), Some(1));
    // A slot of every byte there is fits too.
    let whole = [SlotView {
        capacity: usize::MAX,
        leased: false,
    }];
    assert_eq!(best_fit(&whole, 1), Some(0));
}

#[test]
fn a_class_whose_granules_overflow_is_refused() {
    let policy = GeometricClass::new(4).unwrap();
    let ask = |bytes| Ask {
        bytes,
        granule: 1 << 62,
        overhead: 0,
    };
    let top = 7 << 61;
    assert_eq!(policy.class(top), Some(top));
    assert_eq!(policy.decide(&[], &ask(top)), Decision::Refuse);
    assert!(matches!(
        policy.decide(&[], &ask(1 << 61)),
        Decision::Grow { .. }
    ));
}

#[test]
fn the_bound_of_a_pool_is_that_of_its_policy_for_the_largest_request() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        assert_eq!(
            pool.stats().promised_bound,
            None,
            "before the first request"
        );
        touch(&mut pool, comm, 3 * MIB, &stream);
        touch(&mut pool, comm, MIB, &stream);
        let expected = Geometric::default().bound(3 * MIB, GRANULE);
        assert!(expected.is_some());
        assert_eq!(pool.stats().promised_bound, expected);
    });
}

#[test]
fn what_the_policy_refuses_takes_the_ordinary_path() {
    let refused = |why| Error::new(ErrorKind::Refused { bytes: 1, why });
    let pool = geometric();
    let reason = |why| pool.fallback_reason(&refused(why));
    assert_eq!(reason(Refusal::Policy), Some(Reason::Policy));
    assert_eq!(reason(Refusal::OverCap { cap: 1 }), Some(Reason::OverCap));
}

#[test]
fn a_pool_is_closed_only_with_its_own_communicator() {
    let (mut comm, mut other) = (MockComm::alone(), MockComm::alone());
    let stream = comm.stream();
    let mut pool = geometric();
    touch(&mut pool, &mut comm, MIB, &stream);
    let error = pool.close(&mut other).unwrap_err();
    assert!(error.misuse().is_some(), "{error}");
    // Not even when there is nothing that the other one would have to know.
    assert_eq!(pool.trim(&mut comm).unwrap().slots, 1);
    let error = pool.close(&mut other).unwrap_err();
    assert!(error.misuse().is_some(), "{error}");
    touch(&mut pool, &mut comm, MIB, &stream);
    let _ = pool.close(&mut comm).unwrap();
    assert!(pool.stats().slots.is_empty());
}

#[test]
fn rounds_and_misses_are_counted_and_timed() {
    alone(|comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        let none = pool.stats();
        assert_eq!((none.agreements, none.slowest_miss_nanoseconds), (0, 0));
        for size in [1, 3, 7] {
            touch(&mut pool, comm, size * MIB, &stream);
        }
        let grown = pool.stats();
        assert!(grown.slowest_miss_nanoseconds > 0);
        assert!(grown.miss_nanoseconds >= grown.slowest_miss_nanoseconds);
        let agreed = grown.agreements;
        assert!(agreed >= 2 * grown.registrations, "{agreed} rounds");
        assert_eq!(grown.agreement_failures, 0);
        touch(&mut pool, comm, MIB, &stream);
        assert_eq!(pool.stats().agreements, agreed, "a hit");
    });
}

#[test]
fn rounds_that_fail_are_counted_one_by_one() {
    let failures = world(2, |comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        for _ in 0..3 {
            // Each rank asks for another size.
            let bytes = (1 + comm.rank()) * MIB;
            let error = acquire(&mut pool, comm, bytes, &stream).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Mismatch { .. }),
                "{error}"
            );
        }
        pool.stats().agreement_failures
    });
    assert_eq!(failures, [3, 3]);
}

#[test]
fn a_miss_beside_a_leased_slot_that_would_do_is_counted_as_busy() {
    alone(|comm| {
        let (mut pool, stream) = (pool(Exact::new(), |_| {}), comm.stream());
        let busy = |pool: &Pool| pool.stats().busy;
        touch(&mut pool, comm, 3 * MIB, &stream);
        let small = acquire(&mut pool, comm, MIB, &stream).unwrap();
        // What is free is too large for this policy, and what is leased too small.
        touch(&mut pool, comm, 2 * MIB, &stream);
        assert_eq!(busy(&pool), 0);
        let again = acquire(&mut pool, comm, MIB, &stream).unwrap();
        assert_eq!(busy(&pool), 1, "the same size is leased");
        touch(&mut pool, comm, MIB / 2, &stream);
        assert_eq!(busy(&pool), 2, "a larger one is leased");
        drop((small, again));
    });
}

#[test]
fn a_registration_after_the_seal_would_be_counted() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        pool.seal();
        assert!(acquire(&mut pool, comm, 9 * MIB, &stream).is_err());
        let stats = pool.stats();
        assert_eq!(
            (stats.registrations, stats.registrations_after_seal),
            (1, 0)
        );
    });
}

#[test]
fn the_digest_of_decisions_tells_sequences_apart() {
    let digest_after = |sizes: &[usize]| {
        alone(|comm| {
            let (mut pool, stream) = (geometric(), comm.stream());
            for size in sizes {
                touch(&mut pool, comm, size * MIB, &stream);
            }
            pool.stats().digest
        })
    };
    let all = [
        digest_after(&[]),
        digest_after(&[1]),
        digest_after(&[1, 1]),
        digest_after(&[1, 3]),
        digest_after(&[3, 1]),
    ];
    for (index, digest) in all.iter().enumerate() {
        assert!(!all[..index].contains(digest), "{all:x?}");
    }
    assert_eq!(digest_after(&[1, 3]), all[3], "and is a function of them");
}

#[test]
fn the_digest_of_decisions_tells_answers_to_the_same_requests_apart() {
    let digest_where = |first_ends: bool, second_ends: bool| {
        alone(|comm| {
            let (mut pool, stream) = (geometric(), comm.stream());
            let first = acquire(&mut pool, comm, MIB, &stream).unwrap();
            let second = acquire(&mut pool, comm, MIB, &stream).unwrap();
            let mut kept = Vec::new();
            for (lease, ends) in [(first, first_ends), (second, second_ends)] {
                if ends {
                    lease.complete().unwrap();
                } else {
                    kept.push(lease);
                }
            }
            touch(&mut pool, comm, MIB, &stream);
            pool.stats().digest
        })
    };
    // A hit on the first slot, a hit on the second, and a growth.
    let (first, second) = (digest_where(true, false), digest_where(false, true));
    let growth = digest_where(false, false);
    assert_ne!(first, second);
    assert_ne!(first, growth);
    assert_ne!(second, growth);
    assert_eq!(digest_where(true, true), first, "the oldest that fits");
}

#[test]
fn an_allocation_that_failed_names_the_bytes_that_were_missing() {
    let named = world(2, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        if comm.rank() == 1 {
            comm.leave_free(MIB);
        }
        let error = acquire(&mut pool, comm, 5 * MIB, &stream).unwrap_err();
        match error.kind() {
            ErrorKind::OutOfMemory { rank, bytes } => (rank.index(), *bytes),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(named, [(1, 6 * MIB), (1, 6 * MIB)]);
}

#[test]
fn a_backend_that_says_how_much_it_missed_is_believed_on_every_rank() {
    let kinds = world(2, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        if comm.rank() == 1 {
            comm.leave_free(0);
            comm.missing = Some(12_345);
        }
        kind(acquire(&mut pool, comm, MIB, &stream))
    });
    let (rank, bytes) = (Rank(1), 12_345);
    for kind in kinds {
        assert_eq!(kind, ErrorKind::OutOfMemory { rank, bytes });
    }
}

#[test]
fn the_limit_may_be_reached_and_not_passed() {
    alone(|comm| {
        let stream = comm.stream();
        let mut pool = Pool::new(Box::new(Exact::new()), options(|o| o.limit = Some(4 * MIB)));
        touch(&mut pool, comm, 4 * MIB, &stream);
        assert_eq!(pool.stats().mapped_bytes(), 4 * MIB);
        let error = acquire(&mut pool, comm, MIB, &stream).unwrap_err();
        let over = matches!(
            error.kind(),
            ErrorKind::Refused {
                why: Refusal::OverLimit { .. },
                ..
            }
        );
        assert!(over, "{error}");
    });
}

#[rstest]
#[case::granules_alone(0)]
#[case::tables_of_windows_too(4096)]
fn the_limit_counts_what_windows_map_and_not_what_was_asked_for(#[case] overhead: usize) {
    let window = (GRANULE + overhead).next_multiple_of(GRANULE);
    for (limit, windows) in [(2 * window, 2), (2 * window - 1, 1), (window - 1, 0)] {
        alone(|comm| {
            comm.set_overhead(overhead);
            let stream = comm.stream();
            let mut pool = Pool::new(Box::new(Exact::new()), options(|o| o.limit = Some(limit)));
            let sizes: Vec<_> = (1..=3).map(|slot| GRANULE - 4000 + 1000 * slot).collect();
            let requests: Vec<_> = sizes.iter().copied().map(Request::new).collect();
            let plan = pool.plan(comm, &requests).unwrap();
            assert_eq!((plan.registrations, plan.refused), (windows, 3 - windows));
            for (index, &bytes) in sizes.iter().enumerate() {
                if index < windows {
                    touch(&mut pool, comm, bytes, &stream);
                    continue;
                }
                let mapped = (windows + 1) * window;
                let why = Refusal::OverLimit { mapped, limit };
                let refused = kind(acquire(&mut pool, comm, bytes, &stream));
                assert_eq!(refused, ErrorKind::Refused { bytes, why });
            }
            assert_eq!(pool.stats().mapped_bytes(), windows * window);
        });
    }
}

#[test]
fn reserving_different_numbers_of_requests_is_found() {
    let kinds = world(2, |comm| {
        let mut pool = geometric();
        // The first one is alike, so that only the number tells them apart.
        let requests = [Request::new(MIB), Request::new(MIB)];
        let count = 1 + comm.rank();
        kind(pool.reserve(comm, &requests[..count]))
    });
    assert_eq!(kinds[0], kinds[1]);
    let counts = |kind: &ErrorKind| {
        let field = Field::Count;
        matches!(kind, ErrorKind::Mismatch { field: found, .. } if *found == field)
    };
    assert!(counts(&kinds[0]), "{:?}", kinds[0]);
}
