//! Misses, and what may stand in their way.

use collectives_alloc::budget::Budget;
use collectives_alloc::exact::Exact;
use collectives_alloc::geometric::Geometric;
use collectives_alloc::options::{OnMiss, Seal};
use collectives_alloc::pool::Pool;
use collectives_core::communicator::Communicator;
use collectives_core::error::{ErrorKind, MissedWhen, Misuse, Refusal, Unsupported};
use collectives_core::path::Reason;
use collectives_core::rank::Rank;
use collectives_core::scratch::{Request, SCRATCH_ALIGNMENT, ScratchAllocator};
use rstest::rstest;

use crate::mock::{Call, GRANULE, alone, world};
use crate::{MIB, acquire, balanced, geometric, kind, pool, replace, touch};

// invariants 11 and 12
#[test]
fn a_lease_is_exactly_the_request_at_the_start_of_one_window_on_every_rank() {
    let seen = world(4, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        let mut seen = Vec::new();
        for bytes in [1, 640 << 10, 3 * MIB, 5 * MIB + 1, 17] {
            let lease = acquire(&mut pool, comm, bytes, &stream).unwrap();
            let operand = lease.operand();
            let window = operand.window.unwrap();
            assert_eq!(operand.bytes, bytes);
            assert_eq!(window.comm, comm.info().id);
            assert_eq!(operand.addr.value() % SCRATCH_ALIGNMENT, 0);
            let holds = |&(start, length): &(usize, usize)| {
                start <= operand.addr.value() && operand.addr.value() + bytes <= start + length
            };
            let ranges = comm.ranges();
            assert_eq!(ranges.values().filter(|range| holds(range)).count(), 1);
            assert_eq!(
                ranges[&window.window].0 + window.offset,
                operand.addr.value()
            );
            seen.push((window.window, window.offset, lease.slot()));
            lease.complete().unwrap();
        }
        seen
    });
    assert!(seen.iter().all(|rank| *rank == seen[0]));
}

// invariant 17
#[test]
fn the_address_of_a_slot_never_changes_while_it_lives() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        let place = |pool: &mut Pool, comm: &mut _, bytes| {
            let lease = acquire(pool, comm, bytes, &stream).unwrap();
            (lease.slot(), lease.operand().addr)
        };
        let first = place(&mut pool, comm, MIB);
        let second = place(&mut pool, comm, 3 * MIB);
        place(&mut pool, comm, 9 * MIB);
        assert_eq!(place(&mut pool, comm, 2 * MIB), first);
        assert_eq!(place(&mut pool, comm, 4 * MIB), second);
    });
}

// invariant 16
#[test]
fn zero_bytes_are_refused_and_change_nothing() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        let before = pool.stats();
        let error = acquire(&mut pool, comm, 0, &stream).unwrap_err();
        assert_eq!(error.misuse(), Some(&Misuse::ZeroBytes));
        assert_eq!(pool.stats(), before);
        assert_eq!(
            kind(pool.reserve(comm, &[Request::new(0)])),
            Misuse::ZeroBytes.into()
        );
        assert!(pool.plan(comm, &[Request::new(0)]).is_err());
        assert_eq!(comm.mock.calls(), [Call::Agree], "of `reserve`");
    });
}

// invariant 16
#[test]
fn a_request_that_overflows_is_refused_and_registers_nothing() {
    alone(|comm| {
        let stream = comm.stream();
        for mut pool in [geometric(), replace(), pool(Exact::new(), |_| {})] {
            // The first call of a pool compares configurations.
            let _ = pool.reserve(comm, &[]).unwrap();
            let _ = comm.mock.calls();
            let refused = kind(acquire(&mut pool, comm, usize::MAX, &stream));
            let why = Refusal::Policy;
            assert_eq!(
                refused,
                ErrorKind::Refused {
                    bytes: usize::MAX,
                    why
                }
            );
            assert_eq!(comm.mock.calls(), []);
            balanced(&pool);
        }
    });
}

// invariant 7
#[rstest]
#[case::below(MIB - 1, true)]
#[case::at(MIB, true)]
#[case::above(MIB + 1, false)]
fn requests_above_the_cap_are_never_staged(#[case] bytes: usize, #[case] staged: bool) {
    alone(|comm| {
        let stream = comm.stream();
        let mut pool = pool(Geometric::default(), |options| options.cap = Some(MIB));
        // A slot that is large enough does not make it legal.
        touch(&mut pool, comm, MIB, &stream);
        let _ = comm.mock.calls();
        match acquire(&mut pool, comm, bytes, &stream) {
            Ok(_) => assert!(staged),
            Err(error) => {
                assert!(!staged);
                let why = Refusal::OverCap { cap: MIB };
                assert_eq!(error.kind(), &ErrorKind::Refused { bytes, why });
                assert_eq!(pool.fallback_reason(&error), Some(Reason::OverCap));
                assert_eq!(pool.stats().fallbacks, [(Reason::OverCap, 1)]);
                assert_eq!(comm.mock.calls(), [], "no round is needed");
            }
        }
        balanced(&pool);
    });
}

// invariant 7
#[test]
fn the_limit_is_never_exceeded_in_mapped_bytes_and_smaller_requests_still_work() {
    world(2, |comm| {
        let stream = comm.stream();
        let mut pool = pool(Geometric::default(), |options| {
            options.limit = Some(3 * GRANULE)
        });
        touch(&mut pool, comm, GRANULE, &stream);
        touch(&mut pool, comm, GRANULE + 1, &stream);
        let _ = comm.mock.calls();
        let refused = acquire(&mut pool, comm, 2 * GRANULE + 1, &stream);
        let (mapped, limit) = (7 * GRANULE, 3 * GRANULE);
        let expected = ErrorKind::Refused {
            bytes: 2 * GRANULE + 1,
            why: Refusal::OverLimit { mapped, limit },
        };
        assert_eq!(kind(refused), expected);
        assert_eq!(
            comm.mock.calls(),
            [],
            "nothing could be freed, so no round is needed"
        );
        touch(&mut pool, comm, 2 * GRANULE, &stream);
        assert_eq!(pool.stats().mapped_bytes(), 3 * GRANULE);
        assert!(pool.stats().peak_mapped_bytes <= limit);
        balanced(&pool);
    });
}

#[test]
fn the_limit_counts_what_a_round_frees() {
    world(2, |comm| {
        let stream = comm.stream();
        let mut pool = pool(collectives_alloc::replace::Replace::default(), |options| {
            options.limit = Some(4 * GRANULE);
        });
        touch(&mut pool, comm, GRANULE, &stream);
        touch(&mut pool, comm, 2 * GRANULE, &stream);
        // The old two granules go before four new ones come.
        touch(&mut pool, comm, 4 * GRANULE, &stream);
        let stats = pool.stats();
        assert_eq!(stats.mapped_bytes(), 4 * GRANULE);
        assert!(stats.peak_mapped_bytes <= 4 * GRANULE);
        assert!(acquire(&mut pool, comm, 4 * GRANULE + 1, &stream).is_err());
        touch(&mut pool, comm, 4 * GRANULE, &stream);
        balanced(&pool);
    });
}

// invariant 40
#[test]
fn nothing_is_registered_after_the_seal() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        pool.seal();
        let _ = comm.mock.calls();
        let missed = kind(acquire(&mut pool, comm, 3 * MIB, &stream));
        let expected = ErrorKind::NeedsReserve {
            bytes: 3 * MIB,
            domain: "shared".to_owned(),
            when: MissedWhen::Sealed,
        };
        assert_eq!(missed, expected);
        let again = pool.reserve(comm, &[Request::new(3 * MIB)]);
        assert_eq!(kind(again), Misuse::Sealed.into());
        assert_eq!(comm.mock.calls(), [Call::Agree], "of `reserve`");
        touch(&mut pool, comm, MIB, &stream);
        assert_eq!((pool.stats().registrations, pool.stats().refusals), (1, 1));
        balanced(&pool);
    });
}

#[test]
fn the_seal_can_come_by_itself_or_never() {
    alone(|comm| {
        let stream = comm.stream();
        let mut automatic = pool(Geometric::default(), |options| {
            options.seal = Seal::AfterReserve;
        });
        touch(&mut automatic, comm, MIB, &stream);
        let _ = automatic.reserve(comm, &[Request::new(3 * MIB)]).unwrap();
        assert!(acquire(&mut automatic, comm, 9 * MIB, &stream).is_err());
        let mut never = pool(Geometric::default(), |options| options.seal = Seal::Never);
        never.seal();
        touch(&mut never, comm, MIB, &stream);
    });
}

#[test]
fn a_miss_is_a_counted_fallback_where_configured() {
    alone(|comm| {
        let stream = comm.stream();
        let mut pool = pool(Geometric::default(), |options| {
            options.on_miss = OnMiss::Fallback;
            options.limit = Some(2 * GRANULE);
        });
        let over = acquire(&mut pool, comm, 5 * GRANULE, &stream).unwrap_err();
        assert_eq!(pool.fallback_reason(&over), Some(Reason::OverLimit));
        comm.leave_free(0);
        let memory = acquire(&mut pool, comm, 1, &stream).unwrap_err();
        assert_eq!(pool.fallback_reason(&memory), Some(Reason::OutOfMemory));
        pool.seal();
        let sealed = acquire(&mut pool, comm, 1, &stream).unwrap_err();
        assert_eq!(pool.fallback_reason(&sealed), Some(Reason::MissAfterSeal));
        let expected = [
            Reason::OverLimit,
            Reason::OutOfMemory,
            Reason::MissAfterSeal,
        ];
        assert_eq!(pool.stats().fallbacks, expected.map(|reason| (reason, 1)));
        assert_eq!(pool.stats().refusals, 0);
        balanced(&pool);
    });
}

// invariant 35
#[rstest]
fn out_of_memory_on_any_rank_is_the_same_error_on_all_and_smaller_works(
    #[values(0, 1, 2, 3)] poor: usize,
) {
    let kinds = world(4, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        if comm.rank() == poor {
            comm.leave_free(GRANULE);
        }
        let failed = kind(acquire(&mut pool, comm, 3 * MIB, &stream));
        assert!(
            !comm
                .mock
                .calls()
                .iter()
                .any(|call| matches!(call, Call::Register(_)))
        );
        touch(&mut pool, comm, 2 * MIB, &stream);
        assert_eq!(pool.stats().registrations, 1);
        balanced(&pool);
        failed
    });
    let expected = ErrorKind::OutOfMemory {
        rank: Rank::new(poor),
        bytes: 4 * MIB,
    };
    assert!(kinds.iter().all(|kind| *kind == expected), "{kinds:?}");
}

#[test]
fn what_was_allocated_beside_a_rank_out_of_memory_comes_back() {
    world(2, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        comm.leave_free(if comm.rank() == 0 { 0 } else { GRANULE });
        assert!(acquire(&mut pool, comm, 1, &stream).is_err());
        if comm.rank() == 1 {
            assert!(matches!(comm.mock.calls().last(), Some(Call::Free(_))));
        }
    });
}

#[test]
fn a_budget_shared_by_communicators_enters_as_an_outcome() {
    let budgets: Vec<_> = (0..2).map(|_| Budget::new(3 * GRANULE)).collect();
    let kinds = world(2, |comm| {
        let stream = comm.stream();
        let budget = &budgets[comm.rank()];
        let mut first = geometric().with_budget(budget.clone());
        touch(&mut first, comm, GRANULE, &stream);
        // On rank 1 another communicator of the same device keeps a granule.
        let other = (comm.rank() == 1).then(|| {
            alone(|comm| {
                let mut other = geometric().with_budget(budget.clone());
                touch(&mut other, comm, GRANULE, &comm.stream());
                other
            })
        });
        let failed = kind(acquire(&mut first, comm, 3 * GRANULE, &stream));
        // Given up for the second try, which failed too.
        assert_eq!(first.stats().slots, []);
        touch(&mut first, comm, GRANULE, &stream);
        drop(other);
        touch(&mut first, comm, 2 * GRANULE, &stream);
        assert_eq!(budget.spent(), 3 * GRANULE);
        let _ = first.close(comm).unwrap();
        assert_eq!(budget.spent(), 0);
        failed
    });
    assert_eq!(kinds[0], kinds[1]);
    assert!(matches!(
        kinds[0],
        ErrorKind::OutOfMemory { rank: Rank(1), .. }
    ));
}

#[test]
// invariant 35
fn a_rank_that_is_out_of_memory_makes_all_give_up_idle_slots_and_try_once_more() {
    world(3, |comm| {
        let (mut pool, stream) = (pool(Exact::new(), |_| {}), comm.stream());
        let granules = if comm.rank() == 2 { 6 } else { 100 };
        comm.leave_free(granules * GRANULE);
        touch(&mut pool, comm, GRANULE, &stream);
        touch(&mut pool, comm, 2 * GRANULE, &stream);
        let kept = acquire(&mut pool, comm, GRANULE / 2, &stream).unwrap();
        touch(&mut pool, comm, 4 * GRANULE, &stream);
        let slots = pool.stats().slots;
        assert_eq!(
            slots.iter().map(|slot| slot.generation).collect::<Vec<_>>(),
            [3, 4],
            "what is leased stays"
        );
        // Nothing idle would help, and no rank tries for ever.
        let failed = kind(acquire(&mut pool, comm, 9 * GRANULE, &stream));
        let (rank, bytes) = (Rank(2), 9 * GRANULE);
        assert_eq!(failed, ErrorKind::OutOfMemory { rank, bytes });
        assert_eq!(pool.stats().slots.len(), 1);
        touch(&mut pool, comm, 5 * GRANULE, &stream);
        kept.complete().unwrap();
        balanced(&pool);
    });
}

#[test]
fn a_null_window_is_a_reason_for_the_ordinary_path_and_is_not_tried_again() {
    world(2, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        comm.null_windows = true;
        let error = acquire(&mut pool, comm, MIB, &stream).unwrap_err();
        assert_eq!(
            error.kind(),
            &ErrorKind::Unsupported(Unsupported::NullWindow)
        );
        assert_eq!(
            pool.fallback_reason(&error),
            Some(Reason::NoSymmetricMemory)
        );
        let _ = comm.mock.calls();
        assert!(acquire(&mut pool, comm, MIB, &stream).is_err());
        assert_eq!(comm.mock.calls(), []);
        balanced(&pool);
    });
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        comm.symmetric = false;
        let error = acquire(&mut pool, comm, MIB, &stream).unwrap_err();
        assert_eq!(
            pool.fallback_reason(&error),
            Some(Reason::NoSymmetricMemory)
        );
    });
}
