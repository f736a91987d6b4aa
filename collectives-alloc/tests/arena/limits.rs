//! Addresses, windows, bytes: what is refused, and how.

use collectives_alloc::budget::Budget;
use collectives_alloc::bytes::ByteSize;
use collectives_alloc::options::{OnMiss, Options};
use collectives_alloc::policy::{Ask, Decision, Policy, SlotView};
use collectives_alloc::pool::Pool;
use collectives_core::error::{ErrorKind, Refusal, Unsupported};
use collectives_core::path::{Path, Reason};
use collectives_core::rank::Rank;
use collectives_core::scratch::Request;
use collectives_host::model::DeviceModel;
use collectives_host::world::HostWorld;
use rstest::rstest;

use crate::{DEADLINE, GRANULE, Rig, arena};

/// Granules of addresses on each rank; the least counts on all.
fn poor(granules: [usize; 3]) -> impl Fn(Rank) -> DeviceModel + Sync {
    move |rank| {
        DeviceModel::new()
            .with_granule(GRANULE)
            .with_addresses(Some(granules[rank.index()] * GRANULE))
    }
}

#[test]
// invariant 53
fn live_generations_stay_within_the_addresses_of_the_poorest_rank() {
    HostWorld::new(3)
        .model(poor([100, 9, 50]))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut rig = Rig::new(comm, &arena());
            let mut graphs = Vec::new();
            for granules in [1, 2, 3] {
                rig.eager(granules * GRANULE, 0);
                graphs.push(rig.capture(granules * GRANULE));
            }
            let error = rig.try_reduce(4 * GRANULE).unwrap_err();
            let ErrorKind::Refused { why, .. } = error.kind() else {
                panic!("{error}");
            };
            let (addresses, limit) = (10 * GRANULE, 9 * GRANULE);
            assert_eq!(*why, Refusal::OverAddresses { addresses, limit });
            rig.eager(3 * GRANULE, 1);
            for graph in &mut graphs {
                rig.replay(graph, 5, &rig.stream);
            }
            // The addresses of a generation that nobody owns are free at the next collective point.
            drop(graphs.remove(1));
            rig.host.wait_for_destructors();
            rig.eager(4 * GRANULE, 2);
            assert_eq!(rig.collectives.stats().address_bytes(), 8 * GRANULE);
            assert_eq!(rig.mapped(), 4 * GRANULE);
        });
}

#[test]
fn a_fallback_for_want_of_addresses_is_counted_and_the_same_on_all_ranks() {
    HostWorld::new(3)
        .model(poor([4, 100, 100]))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut config = arena();
            config.on_miss = OnMiss::Fallback;
            let mut rig = Rig::new(comm, &config);
            rig.eager(2 * GRANULE, 0);
            let graph = rig.capture(2 * GRANULE);
            for _ in 0..3 {
                let report = rig.try_reduce(3 * GRANULE).unwrap();
                assert_eq!(
                    (report.path, report.reason),
                    (Path::Fallback, Reason::OverAddresses)
                );
            }
            let stats = rig.collectives.stats();
            assert_eq!(stats.fallbacks, [(Reason::OverAddresses, 3)]);
            // Refused alone, without asking the others.
            assert_eq!(stats.agreements, 3);
            drop(graph);
        });
}

#[test]
fn a_reservation_beyond_the_addresses_of_the_poorest_rank_registers_nothing() {
    HostWorld::new(3)
        .model(poor([100, 9, 50]))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut rig = Rig::new(comm, &arena());
            let requests = [2, 10].map(|granules| Request::new(granules * GRANULE));
            let error = rig.collectives.reserve(&requests).unwrap_err();
            let ErrorKind::Refused { why, .. } = error.kind() else {
                panic!("{error}");
            };
            let (addresses, limit) = (12 * GRANULE, 9 * GRANULE);
            assert_eq!(*why, Refusal::OverAddresses { addresses, limit });
            assert!(rig.slots().is_empty());
            // Now it is known how many there are.
            assert_eq!(rig.collectives.plan(&requests).unwrap().refused, 1);
            let planned = rig.collectives.plan(&requests[..1]).unwrap();
            assert_eq!(rig.collectives.reserve(&requests[..1]).unwrap(), planned);
        });
}

#[rstest]
#[case::a_budget(Some(16 * GRANULE), None, 16)]
#[case::a_limit(None, Some(16), 16)]
fn a_configuration_is_built_within_a_budget_and_a_limit(
    #[case] budget: Option<usize>,
    #[case] limit: Option<usize>,
    #[case] refused: usize,
) {
    let model = |_| DeviceModel::new().with_granule(GRANULE);
    HostWorld::new(2)
        .model(model)
        .deadline(DEADLINE)
        .run(|comm| {
            let mut config = arena();
            config.growth = Some(1.0);
            config.limit = limit.map(|granules| ByteSize::new(granules * GRANULE));
            let budget = budget.map_or(Budget::new(usize::MAX), Budget::new);
            let scratch = config.build_within(budget.clone()).unwrap();
            let mut rig = Rig::over(comm, scratch);
            for granules in [2, 7, 15] {
                let request = [Request::new(granules * GRANULE)];
                let planned = rig.collectives.plan(&request).unwrap();
                assert_eq!(rig.collectives.reserve(&request).unwrap(), planned);
                assert_eq!(budget.spent(), granules * GRANULE, "appended, not added");
                assert_eq!(planned.mapped_bytes, rig.mapped());
            }
            let beyond = [3, refused + 1].map(|granules| Request::new(granules * GRANULE));
            assert_eq!(rig.collectives.plan(&beyond).unwrap().refused, 1);
            assert!(rig.collectives.reserve(&beyond).is_err());
            assert_eq!(rig.slots().len(), 2, "the newest and the one it maps again");
            let _ = rig.collectives.trim().unwrap();
            assert_eq!(budget.spent(), 0);
        });
}

#[rstest]
#[case(OnMiss::Error)]
#[case(OnMiss::Fallback)]
fn where_one_rank_cannot_map_twice_all_refuse_alike(#[case] on_miss: OnMiss) {
    let model = |rank: Rank| {
        let addresses = (rank.0 != 1).then_some(1 << 30);
        DeviceModel::new().with_addresses(addresses)
    };
    HostWorld::new(3)
        .model(model)
        .deadline(DEADLINE)
        .run(|comm| {
            let mut config = arena();
            config.on_miss = on_miss;
            let mut rig = Rig::new(comm, &config);
            for _ in 0..2 {
                match (on_miss, rig.try_reduce(4096)) {
                    (OnMiss::Fallback, Ok(report)) => {
                        assert_eq!(
                            (report.path, report.reason),
                            (Path::Fallback, Reason::NoAliasing)
                        );
                    }
                    (OnMiss::Error, Err(error)) => {
                        let ErrorKind::Unsupported(Unsupported::Aliasing(why)) = error.kind()
                        else {
                            panic!("{error}");
                        };
                        assert_eq!(why, "rank 1 says that it cannot");
                    }
                    (_, outcome) => panic!("{outcome:?}"),
                }
            }
            assert_eq!(rig.collectives.stats().agreements, 1, "asked once");
        });
}

#[test]
// invariant 7
fn the_limit_on_mapped_bytes_counts_every_byte_once() {
    let model = |_| DeviceModel::new().with_granule(GRANULE);
    HostWorld::new(2)
        .model(model)
        .deadline(DEADLINE)
        .run(|comm| {
            let mut config = arena();
            config.growth = Some(1.0);
            config.limit = Some(ByteSize::new(4 * GRANULE));
            let mut rig = Rig::new(comm, &config);
            let mut graphs = Vec::new();
            for granules in 1..=4 {
                rig.eager(granules * GRANULE, 0);
                graphs.push(rig.capture(granules * GRANULE));
            }
            let error = rig.try_reduce(5 * GRANULE).unwrap_err();
            let ErrorKind::Refused { why, .. } = error.kind() else {
                panic!("{error}");
            };
            let (mapped, limit) = (5 * GRANULE, 4 * GRANULE);
            assert_eq!(*why, Refusal::OverLimit { mapped, limit });
            drop(graphs);
        });
}

#[rstest]
fn a_communicator_has_no_more_windows_than_it_may(
    #[values("arena", "geometric", "exact", "replace")] policy: &str,
) {
    let model = |_| DeviceModel::new().with_granule(GRANULE);
    HostWorld::new(2)
        .model(model)
        .deadline(DEADLINE)
        .run(|comm| {
            let mut config = arena();
            config.policy = Some(policy.to_owned());
            config.max_windows = Some(3);
            let mut rig = Rig::new(comm, &config);
            // A user's own window counts.
            let own = rig.collectives.symmetric_buffer::<i32>(16).unwrap();
            let mut graphs = Vec::new();
            for granules in [1, 4] {
                rig.eager(granules * GRANULE, 0);
                graphs.push(rig.capture(granules * GRANULE));
            }
            let error = rig.try_reduce(20 * GRANULE).unwrap_err();
            let ErrorKind::Refused { why, .. } = error.kind() else {
                panic!("{error}");
            };
            let (windows, limit) = (4, 3);
            assert_eq!(*why, Refusal::OverWindows { windows, limit });
            rig.eager(4 * GRANULE, 1);
            drop((graphs, own));
        });
}

/// Makes a slot that is no arena, and extends it ever after.
#[derive(Debug)]
struct Muddled;

impl Policy for Muddled {
    fn name(&self) -> &str {
        "muddled"
    }
    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
        let capacity = ask.bytes;
        if slots.is_empty() {
            let retire = false;
            return Decision::Grow { capacity, retire };
        }
        let slot = Some(0);
        Decision::Extend { slot, capacity }
    }
    fn digest(&self) -> u64 {
        2
    }
    fn bound(&self, _largest: usize, _granule: usize) -> Option<usize> {
        None
    }
}

#[test]
fn what_is_no_arena_cannot_be_extended_and_stays_as_it_was() {
    let model = |_| DeviceModel::new().with_granule(GRANULE);
    HostWorld::new(2)
        .model(model)
        .deadline(DEADLINE)
        .run(|comm| {
            let pool = Pool::new(Box::new(Muddled), Options::default());
            let mut rig = Rig::over(comm, Box::new(pool));
            rig.eager(GRANULE, 0);
            let report = rig.try_reduce(2 * GRANULE).unwrap();
            assert_eq!(
                (report.path, report.reason),
                (Path::Fallback, Reason::Policy)
            );
            let slots = rig.slots();
            assert_eq!(slots.len(), 1);
            assert!(!slots[0].retired && slots[0].arena.is_none());
            assert_eq!(rig.mapped(), GRANULE);
        });
}
