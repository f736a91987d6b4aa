//! What a plan says is what `reserve` does: all of it, or nothing.

use collectives_alloc::budget::Budget;
use collectives_alloc::exact::Exact;
use collectives_alloc::geometric::Geometric;
use collectives_alloc::geometric_class::GeometricClass;
use collectives_alloc::options::Options;
use collectives_alloc::policy::Policy;
use collectives_alloc::pool::Pool;
use collectives_alloc::replace::Replace;
use collectives_alloc::reserved::Reserved;
use collectives_core::error::{ErrorKind, Misuse, Refusal};
use collectives_core::rank::Rank;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::stats::Stats;
use proptest::prelude::*;
use rstest::rstest;

use crate::mock::{Call, GRANULE, MockComm, alone, world};
use crate::{MIB, acquire, kind, options, pool, touch};

/// A policy by its number.
fn policy(which: usize) -> Box<dyn Policy> {
    match which {
        0 => Box::new(Exact::new()),
        1 => Box::new(Geometric::default()),
        2 => Box::new(Replace::default()),
        3 => Box::new(GeometricClass::default()),
        _ => Box::new(Reserved::new(3 * MIB, 2.0).unwrap()),
    }
}

const POLICIES: usize = 5;

fn spends(call: &Call) -> bool {
    matches!(
        call,
        Call::Allocate(_) | Call::Register(_) | Call::Retire(_) | Call::Free(_)
    )
}

/// Fails unless `reserve` does what the plan says; whether it served all.
fn comes_true(pool: &mut Pool, comm: &mut MockComm, requests: &[Request]) -> bool {
    let before = pool.stats();
    let _ = comm.mock.calls();
    let plan = pool.plan(comm, requests).unwrap();
    assert_eq!(comm.mock.calls(), [], "a plan is free");
    match pool.reserve(comm, requests) {
        Ok(made) => {
            assert_eq!(made, plan);
            assert_eq!(made.mapped_bytes, pool.stats().mapped_bytes());
            let registered = pool.stats().registrations - before.registrations;
            assert_eq!(registered, made.registrations as u64);
            true
        }
        Err(error) => {
            assert!(plan.refused > 0, "{error}, and {plan:?}");
            let spent = comm.mock.calls().into_iter().filter(spends);
            assert_eq!(spent.collect::<Vec<_>>(), [], "{error}");
            let generations = |stats: Stats| stats.slots.into_iter().map(|slot| slot.generation);
            assert!(generations(pool.stats()).eq(generations(before)));
            false
        }
    }
}

#[rstest]
#[case::limit(|options: &mut Options| options.limit = Some(2 * GRANULE), 9 * MIB)]
#[case::windows(|options: &mut Options| options.max_windows = Some(1), 9 * MIB)]
#[case::cap(|options: &mut Options| options.cap = Some(2 * GRANULE), 9 * MIB)]
#[case::address_space(|_: &mut Options| {}, usize::MAX)]
fn one_request_that_is_refused_keeps_all_from_being_registered(
    #[case] rule: fn(&mut Options),
    #[case] second: usize,
    #[values(0, 1, 3)] which: usize,
) {
    world(2, |comm| {
        let mut pool = Pool::new(policy(which), options(rule));
        let requests = [MIB, second].map(Request::new);
        let plan = pool.plan(comm, &requests).unwrap();
        assert_eq!((plan.refused, plan.registrations), (1, 1));
        assert!(!comes_true(&mut pool, comm, &requests));
        assert!(comes_true(&mut pool, comm, &requests[..1]));
    });
}

#[test]
fn after_the_seal_what_is_there_may_be_reserved_and_what_is_not_is_refused() {
    alone(|comm| {
        let mut pool = pool(Geometric::default(), |_| {});
        assert!(comes_true(&mut pool, comm, &[Request::new(MIB)]));
        pool.seal();
        let requests = [MIB, 9 * MIB].map(Request::new);
        let plan = pool.plan(comm, &requests).unwrap();
        assert_eq!((plan.refused, plan.registrations), (1, 0));
        assert!(!comes_true(&mut pool, comm, &requests));
        assert_eq!(kind(pool.reserve(comm, &requests)), Misuse::Sealed.into());
        assert!(comes_true(&mut pool, comm, &requests[..1]));
        assert!(comes_true(&mut pool, comm, &[]));
    });
}

#[test]
fn a_backend_without_windows_is_no_surprise_after_a_plan() {
    alone(|comm| {
        comm.symmetric = false;
        let mut pool = pool(Geometric::default(), |_| {});
        assert!(!comes_true(&mut pool, comm, &[Request::new(MIB)]));
        assert!(comes_true(&mut pool, comm, &[]));
    });
}

#[test]
fn a_budget_that_any_rank_lacks_refuses_a_reservation_on_all_before_anything_is_spent() {
    let kinds = world(3, |comm| {
        // The first that lacks it is named, and not the poorest.
        let granules = [9, 3, 2][comm.rank()];
        let budget = Budget::new(granules * GRANULE);
        let mut pool = pool(Exact::new(), |_| {}).with_budget(budget.clone());
        let requests = [GRANULE, 3 * GRANULE].map(Request::new);
        let refused = pool.plan(comm, &requests).unwrap().refused;
        assert_eq!(refused > 0, comm.rank() > 0, "as this rank knows");
        let _ = comm.mock.calls();
        let failed = kind(pool.reserve(comm, &requests));
        assert_eq!(comm.mock.calls(), [Call::Agree]);
        assert_eq!(budget.spent(), 0);
        let _ = pool.reserve(comm, &requests[..1]).unwrap();
        failed
    });
    let (rank, bytes) = (Rank(1), 3 * GRANULE);
    let expected = ErrorKind::OutOfMemory { rank, bytes };
    assert_eq!(kinds, [(); 3].map(|()| expected.clone()));
}

#[test]
fn a_budget_is_planned_with_what_idle_slots_would_give_back() {
    alone(|comm| {
        let (budget, stream) = (Budget::new(4 * GRANULE), comm.stream());
        let mut pool = pool(Exact::new(), |_| {}).with_budget(budget.clone());
        touch(&mut pool, comm, GRANULE, &stream);
        // What is idle goes, and then there is room.
        assert!(comes_true(&mut pool, comm, &[Request::new(4 * GRANULE)]));
        assert_eq!(budget.spent(), 4 * GRANULE);
        // Not so while it is leased, and not for what was asked for together with it.
        let lease = acquire(&mut pool, comm, 4 * GRANULE, &stream).unwrap();
        assert!(!comes_true(&mut pool, comm, &[Request::new(GRANULE)]));
        lease.complete().unwrap();
        let both = [4 * GRANULE, GRANULE].map(Request::new);
        assert!(!comes_true(&mut pool, comm, &both));
        assert_eq!(budget.spent(), 4 * GRANULE);
    });
}

#[test]
fn memory_that_runs_out_on_the_way_is_no_success() {
    let kinds = world(2, |comm| {
        let mut pool = pool(Exact::new(), |_| {});
        if comm.rank() == 1 {
            comm.leave_free(3 * GRANULE);
        }
        // The first slot is given up for the second, and would be missed.
        let requests = [GRANULE, 3 * GRANULE].map(Request::new);
        let failed = kind(pool.reserve(comm, &requests));
        assert_eq!(pool.stats().slots.len(), 1);
        let _ = pool.reserve(comm, &requests[1..]).unwrap();
        failed
    });
    let (rank, bytes) = (Rank(1), 3 * GRANULE);
    let expected = ErrorKind::OutOfMemory { rank, bytes };
    assert_eq!(kinds, [expected.clone(), expected]);
}

#[test]
fn a_slot_that_another_rank_holds_is_found_before_anything_is_spent() {
    let kinds = world(2, |comm| {
        let stream = comm.stream();
        let mut pool = Pool::new(
            Box::new(Replace::default()),
            options(|options| options.limit = Some(3 * GRANULE)),
        );
        touch(&mut pool, comm, GRANULE, &stream);
        let graph = (comm.rank() == 1).then(|| {
            comm.mock.begin(&stream);
            touch(&mut pool, comm, GRANULE, &stream);
            comm.mock.end(&stream)
        });
        let requests = [Request::new(3 * GRANULE)];
        let refused = pool.plan(comm, &requests).unwrap().refused;
        assert_eq!(refused, usize::from(comm.rank() == 1), "as this rank knows");
        let _ = comm.mock.calls();
        let failed = kind(pool.reserve(comm, &requests));
        assert_eq!(comm.mock.calls(), [Call::Agree]);
        drop(graph);
        let _ = pool.reserve(comm, &requests).unwrap();
        failed
    });
    let (mapped, limit) = (4 * GRANULE, 3 * GRANULE);
    let (bytes, why) = (3 * GRANULE, Refusal::OverLimit { mapped, limit });
    let expected = ErrorKind::Refused { bytes, why };
    assert_eq!(kinds, [expected.clone(), expected]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_a_plan_says_comes_true(
        which in 0..POLICIES,
        limit in prop::option::of(1..24_usize),
        max_windows in prop::option::of(1..5_usize),
        budget in prop::option::of(1..24_usize),
        used in prop::collection::vec((1..10_usize, any::<bool>(), any::<bool>()), 0..5),
        requests in prop::collection::vec(prop::collection::vec(1..12_usize, 0..4), 1..4),
        sealed in any::<bool>(),
    ) {
        world(2, |comm| {
            let stream = comm.stream();
            let rules = options(|options| {
                options.limit = limit.map(|granules| granules * GRANULE);
                options.max_windows = max_windows;
            });
            let mut pool = Pool::new(policy(which), rules);
            if let Some(granules) = budget {
                pool = pool.with_budget(Budget::new(granules * GRANULE));
            }
            let (mut leases, mut graphs) = (Vec::new(), Vec::new());
            for &(size, leased, captured) in &used {
                let Ok(lease) = acquire(&mut pool, comm, size * MIB, &stream) else {
                    continue;
                };
                if leased {
                    leases.push(lease);
                } else {
                    lease.complete().unwrap();
                }
                if captured {
                    comm.mock.begin(&stream);
                    drop(acquire(&mut pool, comm, size * MIB, &stream));
                    graphs.push(comm.mock.end(&stream));
                }
            }
            let last = requests.len() - 1;
            for (turn, sizes) in requests.iter().enumerate() {
                if sealed && turn == last {
                    pool.seal();
                }
                let requests: Vec<_> = sizes.iter().map(|size| Request::new(size * MIB)).collect();
                if comes_true(&mut pool, comm, &requests) && leases.is_empty() {
                    let registrations = pool.stats().registrations;
                    for request in requests {
                        touch(&mut pool, comm, request.bytes, &stream);
                    }
                    assert_eq!(pool.stats().registrations, registrations, "all are hits");
                }
                // What is held changes from turn to turn.
                leases.pop();
                graphs.pop();
            }
        });
    }
}
