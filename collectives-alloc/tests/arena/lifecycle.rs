//! When generations go, and what they leave.

use std::time::Duration;

use collectives_alloc::arena::Arena;
use collectives_alloc::budget::Budget;
use collectives_alloc::options::Options;
use collectives_alloc::pool::Pool;
use collectives_core::rank::Rank;
use collectives_core::scratch::Request;
use collectives_host::model::DeviceModel;
use collectives_host::world::HostWorld;

use crate::pages::pages;
use crate::{DEADLINE, GRANULE, Rig, arena};

/// Graphs die later on every next rank.
fn slow(rank: Rank) -> DeviceModel {
    DeviceModel::new()
        .with_granule(GRANULE)
        .with_destructor_delay(Duration::from_millis(3 * u64::from(rank.0)))
        .with_poison(0xdb)
}

#[test]
// invariants 38 and 54
fn generations_go_in_the_same_order_on_all_ranks_and_bytes_with_the_last_one() {
    let digests = HostWorld::new(4)
        .model(slow)
        .deadline(DEADLINE)
        .run(|comm| {
            let mut rig = Rig::new(comm, &arena());
            let mut graphs = Vec::new();
            for granules in [1, 2, 4] {
                rig.eager(granules * GRANULE, 0);
                graphs.push(rig.capture(granules * GRANULE));
            }
            rig.eager(6 * GRANULE, 0);
            // Ranks let their graphs go in different order.
            graphs.rotate_left(rig.rank % 3);
            drop(graphs.pop());
            drop(graphs);
            while rig.collectives.trim().unwrap().held_bytes > 0 {
                std::thread::yield_now();
            }
            let stats = rig.collectives.stats();
            assert_eq!((stats.slots.len(), stats.deregistrations), (0, 4));
            assert_eq!(pages(rig.device.id()), (0, 0));
            rig.host.check_memory().unwrap();
            stats.digest
        });
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
// invariant 51
fn a_trim_while_graphs_own_old_generations_gives_back_the_rest_and_goes_on_from_there() {
    HostWorld::new(2)
        .model(slow)
        .deadline(DEADLINE)
        .run(|comm| {
            let mut rig = Rig::new(comm, &arena());
            rig.eager(2 * GRANULE, 0);
            let mut graph = rig.capture(2 * GRANULE);
            for granules in [4, 9] {
                rig.eager(granules * GRANULE, 0);
            }
            assert_eq!(rig.mapped(), 9 * GRANULE);
            let trimmed = rig.collectives.trim().unwrap();
            assert_eq!((trimmed.slots, trimmed.mapped_bytes), (2, 7 * GRANULE));
            assert_eq!(trimmed.held_bytes, 2 * GRANULE);
            assert_eq!(pages(rig.device.id()).0, 2 * GRANULE);
            rig.replay(&mut graph, 3, &rig.stream);
            // What the graph owns is lent again, and grows again: not beside it.
            let registered = rig.collectives.stats().registrations;
            rig.eager(GRANULE, 4);
            assert_eq!(rig.collectives.stats().registrations, registered);
            rig.eager(3 * GRANULE, 5);
            assert_eq!(rig.mapped(), 3 * GRANULE);
            rig.replay(&mut graph, 6, &rig.stream);
            assert_eq!(rig.host.memory_report().mapped_bytes, 3 * GRANULE);
            rig.host.check_memory().unwrap();
            drop(graph);
        });
}

#[test]
// invariant 51
fn a_plan_prices_the_bytes_of_old_generations_no_second_time() {
    let model = |_| DeviceModel::new().with_granule(GRANULE);
    HostWorld::new(2)
        .model(model)
        .deadline(DEADLINE)
        .run(|comm| {
            let mut rig = Rig::new(comm, &arena());
            let mut graphs = Vec::new();
            for granules in [2, 4] {
                rig.eager(granules * GRANULE, 0);
                graphs.push(rig.capture(granules * GRANULE));
            }
            rig.eager(9 * GRANULE, 0);
            assert_eq!(rig.slots().len(), 3);
            let plan = rig.collectives.plan(&[]).unwrap();
            assert_eq!(plan.capacities, [9 * GRANULE]);
            assert_eq!(plan.mapped_bytes, rig.mapped());
            let larger = Request::new(20 * GRANULE);
            let planned = rig.collectives.plan(&[larger]).unwrap();
            assert_eq!(planned.registrations, 1);
            assert_eq!(rig.collectives.reserve(&[larger]).unwrap(), planned);
            assert_eq!(planned.mapped_bytes, rig.mapped());
            drop(graphs);
        });
}

#[test]
fn leases_that_are_out_at_once_get_arenas_beside_each_other() {
    use collectives_core::communicator::Communicator;
    use collectives_core::scratch::ScratchAllocator;
    HostWorld::new(1).model(slow).run(|mut comm| {
        let mut scratch = arena().build().unwrap();
        let stream = comm.device().create_stream().unwrap();
        let mut take = |bytes| {
            scratch
                .acquire(&mut comm, Request::new(bytes), &stream, None)
                .unwrap()
        };
        let first = take(GRANULE);
        let second = take(2 * GRANULE);
        assert!(!first.operand().overlaps(second.operand()));
        second.complete().unwrap();
        let third = take(3 * GRANULE);
        assert!(
            !first.operand().overlaps(third.operand()),
            "the free one grew"
        );
        drop((first, third));
        let stats = scratch.stats();
        assert_eq!(stats.slots.len(), 3);
        assert_eq!(stats.mapped_bytes(), 4 * GRANULE);
        assert_eq!(stats.address_bytes(), 6 * GRANULE);
        let _ = scratch.close(&mut comm).unwrap();
    });
}

#[test]
fn a_budget_gets_bytes_back_when_the_last_generation_that_maps_them_is_gone() {
    HostWorld::new(2)
        .model(slow)
        .deadline(DEADLINE)
        .run(|comm| {
            let budget = Budget::new(6 * GRANULE);
            let policy = Box::new(Arena::new(1.0).unwrap());
            let pool = Pool::new(policy, Options::default()).with_budget(budget.clone());
            let mut rig = Rig::over(comm, Box::new(pool));
            rig.eager(2 * GRANULE, 0);
            let graph = rig.capture(2 * GRANULE);
            rig.eager(5 * GRANULE, 0);
            assert_eq!(budget.spent(), 5 * GRANULE, "appended, not added");
            assert!(rig.try_reduce(7 * GRANULE).is_err());
            assert_eq!(budget.spent(), 5 * GRANULE);
            let _ = rig.collectives.trim().unwrap();
            assert_eq!(budget.spent(), 2 * GRANULE, "what the graph owns");
            let Rig {
                collectives,
                host,
                device,
                ..
            } = rig;
            let deferred = collectives.close().unwrap();
            assert_eq!(deferred.mapped_bytes, 2 * GRANULE);
            assert_eq!(budget.spent(), 2 * GRANULE, "closing frees no bytes");
            drop(graph);
            host.wait_for_destructors();
            device.collect();
            assert_eq!((budget.spent(), host.mapped_bytes()), (0, 0));
        });
}
