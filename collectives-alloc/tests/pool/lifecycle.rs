//! Leases, trim, close, and things dropped in any order.

use collectives_alloc::exact::Exact;
use collectives_alloc::geometric::Geometric;
use collectives_core::communicator::{Communicator, Deferred};
use collectives_core::error::ErrorKind;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::symmetric::SymmetricMemory;
use proptest::prelude::*;

use crate::mock::{Call, GRANULE, alone, world};
use crate::{MIB, acquire, balanced, geometric, kind, pool, replace, touch};

// invariant 13
#[test]
fn live_leases_never_overlap() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        let leases: Vec<_> = [1, 5 * MIB, MIB, 5 * MIB, 3, 9 * MIB]
            .into_iter()
            .map(|bytes| acquire(&mut pool, comm, bytes, &stream).unwrap())
            .collect();
        for (index, one) in leases.iter().enumerate() {
            for other in &leases[index + 1..] {
                assert!(!one.operand().overlaps(other.operand()));
            }
        }
    });
}

// invariant 14
#[test]
fn a_forgotten_lease_keeps_its_slot_for_ever() {
    world(2, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        let lease = acquire(&mut pool, comm, MIB, &stream).unwrap();
        let forgotten = lease.slot().0;
        std::mem::forget(lease);
        for bytes in [1, MIB, 2 * MIB, 3 * MIB] {
            assert_ne!(touch(&mut pool, comm, bytes, &stream), forgotten);
        }
        // invariant 42
        let trimmed = pool.trim(comm).unwrap();
        assert_eq!(trimmed.held_bytes, GRANULE);
        let expected = Deferred {
            windows: 1,
            mapped_bytes: GRANULE,
            communicator: false,
        };
        assert_eq!(pool.close(comm).unwrap(), expected);
    });
}

proptest! {
    // invariant 20
    #[test]
    fn leases_may_end_in_any_order(
        sizes in prop::collection::vec(1..12_usize, 1..6),
        order in any::<u64>(),
        later in prop::collection::vec(1..20_usize, 1..6),
    ) {
        let after = |shuffled: bool| {
            alone(|comm| {
                let (mut pool, stream) = (geometric(), comm.stream());
                let mut leases: Vec<_> = sizes
                    .iter()
                    .map(|size| acquire(&mut pool, comm, size * MIB, &stream).unwrap())
                    .collect();
                let mut order = order;
                while !leases.is_empty() {
                    let pick = if shuffled {
                        usize::try_from(order % leases.len() as u64).unwrap()
                    } else {
                        0
                    };
                    order = order.rotate_left(7);
                    leases.remove(pick).complete().unwrap();
                }
                let slots: Vec<_> = later
                    .iter()
                    .map(|size| touch(&mut pool, comm, size * MIB, &stream))
                    .collect();
                (slots, pool.stats().slots, pool.stats().digest)
            })
        };
        prop_assert_eq!(after(true), after(false));
    }
}

// invariants 41 and 42
#[test]
fn a_window_goes_after_its_last_use_on_every_rank_and_before_its_memory() {
    world(2, |comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        let _ = comm.mock.calls();
        touch(&mut pool, comm, 3 * MIB, &stream);
        let calls = comm.mock.calls();
        let expected = [
            Call::Agree,
            Call::Synchronize(stream.id()),
            Call::Agree,
            Call::Retire(0),
        ];
        assert_eq!(calls[..4], expected);
        assert!(matches!(calls[4], Call::Free(_)), "{calls:?}");
        assert_eq!(
            calls[5..],
            [Call::Allocate(4 * MIB), Call::Agree, Call::Register(1)]
        );
    });
}

// invariant 42
#[test]
fn a_leased_slot_that_was_replaced_goes_at_the_next_collective_point() {
    world(2, |comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        let lease = acquire(&mut pool, comm, MIB, &stream).unwrap();
        touch(&mut pool, comm, 3 * MIB, &stream);
        assert_eq!(comm.window_count(), 2);
        assert!(pool.stats().slots[0].retired && pool.stats().slots[0].leased);
        lease.complete().unwrap();
        touch(&mut pool, comm, 9 * MIB, &stream);
        assert_eq!(comm.window_count(), 1);
        balanced(&pool);
    });
}

#[test]
fn a_slot_is_kept_while_its_last_user_captures() {
    world(2, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        comm.mock.begin(&stream);
        // The pool has not been used in this capture, but it cannot wait for the stream.
        assert_eq!(pool.trim(comm).unwrap().slots, 0);
        drop(comm.mock.end(&stream));
        assert_eq!(pool.trim(comm).unwrap().slots, 1);
    });
}

#[test]
fn trim_gives_back_what_nobody_holds_and_the_pool_works_on() {
    world(3, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        assert_eq!(pool.trim(comm).unwrap().slots, 0);
        assert_eq!(comm.mock.calls(), [], "an empty pool needs no round");
        for size in [1, 3, 9] {
            touch(&mut pool, comm, size * MIB, &stream);
        }
        let lease = acquire(&mut pool, comm, 3 * MIB, &stream).unwrap();
        let _ = comm.mock.calls();
        let trimmed = pool.trim(comm).unwrap();
        assert_eq!((trimmed.slots, trimmed.mapped_bytes), (2, 12 * MIB));
        assert_eq!(trimmed.held_bytes, 4 * MIB);
        let retired: Vec<_> = comm
            .mock
            .calls()
            .into_iter()
            .filter(|call| matches!(call, Call::Retire(_)))
            .collect();
        assert_eq!(retired, [Call::Retire(0), Call::Retire(2)], "ascending");
        lease.complete().unwrap();
        assert_eq!(touch(&mut pool, comm, 3 * MIB, &stream), 2);
        assert_eq!(touch(&mut pool, comm, 9 * MIB, &stream), 4);
        balanced(&pool);
    });
}

#[test]
fn more_slots_than_a_word_has_bits_are_voted_on_one_by_one() {
    world(2, |comm| {
        let (mut pool, stream) = (pool(Exact::new(), |_| {}), comm.stream());
        let slots = 70;
        let mut kept = Vec::new();
        for size in 1..=slots {
            let lease = acquire(&mut pool, comm, size, &stream).unwrap();
            // Each rank keeps one of its own, in the second word.
            if size == 65 + comm.rank() {
                kept.push(lease);
            }
        }
        assert_eq!(pool.trim(comm).unwrap().slots, slots - 2);
        let left: Vec<_> = pool
            .stats()
            .slots
            .iter()
            .map(|slot| slot.generation)
            .collect();
        assert_eq!(left, [65, 66]);
        drop(kept);
    });
}

#[test]
fn close_hands_over_what_graphs_own_and_refuses_work_from_then_on() {
    world(2, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        touch(&mut pool, comm, 3 * MIB, &stream);
        comm.mock.begin(&stream);
        touch(&mut pool, comm, MIB, &stream);
        let graph = comm.mock.end(&stream);
        let deferred = pool.close(comm).unwrap();
        assert_eq!((deferred.windows, deferred.mapped_bytes), (1, GRANULE));
        assert_eq!(comm.window_count(), 1, "the graph's window stays");
        assert_eq!(
            kind(acquire(&mut pool, comm, MIB, &stream)),
            ErrorKind::Closed
        );
        assert_eq!(
            kind(pool.reserve(comm, &[Request::new(1)])),
            ErrorKind::Closed
        );
        assert_eq!(kind(pool.trim(comm)), ErrorKind::Closed);
        assert_eq!(pool.close(comm).unwrap(), Deferred::default());
        drop(graph);
        balanced(&pool);
    });
}

#[test]
fn a_pool_that_was_never_used_closes_without_a_round() {
    alone(|comm| {
        let mut pool = geometric();
        assert_eq!(pool.close(comm).unwrap(), Deferred::default());
        assert_eq!(comm.mock.calls(), []);
    });
}

// invariant 46
#[test]
fn pool_lease_and_graph_may_be_dropped_in_any_order_without_a_collective_call() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        alone(|comm| {
            let (mut owner, stream) = (geometric(), comm.stream());
            touch(&mut owner, comm, MIB, &stream);
            comm.mock.begin(&stream);
            touch(&mut owner, comm, MIB, &stream);
            let mut graph = Some(comm.mock.end(&stream));
            let mut lease = Some(acquire(&mut owner, comm, MIB, &stream).unwrap());
            let mut owner = Some(owner);
            let _ = comm.mock.calls();
            for item in order {
                match item {
                    0 => owner = None,
                    1 => lease = None,
                    _ => graph = None,
                }
                comm.device().collect();
            }
            let calls = comm.mock.calls();
            let local = |call: &Call| matches!(call, Call::Record(_));
            assert!(calls.iter().all(local), "{calls:?}");
            assert!(owner.is_none() && lease.is_none() && graph.is_none());
            // The window still keeps the bytes, until the communicator shuts down.
            assert_eq!(comm.window_count(), 1);
        });
    }
}

// invariant 43
#[test]
fn a_poisoned_pool_refuses_work_and_says_why() {
    let kinds = world(2, |comm| {
        let (mut pool, stream) = (pool(Geometric::default(), |_| {}), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        comm.poison("on fire");
        let failed = kind(acquire(&mut pool, comm, 3 * MIB, &stream));
        assert!(matches!(failed, ErrorKind::PeerFailed { .. }), "{failed:?}");
        assert!(pool.stats().poisoned.unwrap().contains("on fire"));
        let _ = comm.mock.calls();
        let hit = kind(acquire(&mut pool, comm, MIB, &stream));
        assert!(pool.close(comm).is_err());
        assert_eq!(comm.mock.calls(), []);
        hit
    });
    assert!(
        kinds
            .iter()
            .all(|kind| matches!(kind, ErrorKind::Poisoned { .. })),
        "{kinds:?}"
    );
}
