//! Leases that come back to their allocator, and those that end by themselves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::scratch::{Lease, LeaseHold, Request, ScratchAllocator};
use collectives_core::symmetric::SymmetricMemory;
use proptest::prelude::*;

use crate::mock::{Call, MockComm, alone, world};
use crate::{MIB, acquire, balanced, geometric, replace, touch};

/// How a lease ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Released,
    Completed,
    Dropped,
}

impl End {
    fn of(self, lease: Lease, pool: &mut dyn ScratchAllocator) {
        match self {
            Self::Released => pool.release(lease).unwrap(),
            Self::Completed => lease.complete().unwrap(),
            Self::Dropped => drop(lease),
        }
    }
}

proptest! {
    #[test]
    fn a_pool_is_the_same_however_its_leases_end(
        steps in prop::collection::vec((1..12_usize, 0..4_usize, any::<u8>()), 1..40),
    ) {
        let after = |end: fn(u8) -> End| {
            alone(|comm| {
                let (mut pool, stream) = (geometric(), comm.stream());
                let mut live = Vec::new();
                let mut slots = Vec::new();
                for &(size, kept, word) in &steps {
                    let lease = acquire(&mut pool, comm, size * MIB, &stream).unwrap();
                    slots.push(lease.slot());
                    live.push(lease);
                    while live.len() > kept {
                        let lease = live.swap_remove(usize::from(word) % live.len());
                        end(word).of(lease, &mut pool);
                    }
                    balanced(&pool);
                }
                let leased = |pool: &dyn ScratchAllocator| {
                    pool.stats().slots.iter().filter(|slot| slot.leased).count()
                };
                assert_eq!(leased(&pool), live.len());
                for lease in live {
                    end(0).of(lease, &mut pool);
                }
                assert_eq!(leased(&pool), 0);
                let stats = pool.stats();
                assert_eq!(pool.trim(comm).unwrap().held_bytes, 0);
                assert_eq!(comm.window_count(), 0);
                (slots, stats.slots, stats.digest)
            })
        };
        let completed = after(|_| End::Completed);
        prop_assert_eq!(&after(|_| End::Released), &completed);
        let mixed = |word: u8| [End::Released, End::Completed, End::Dropped][usize::from(word % 3)];
        prop_assert_eq!(&after(mixed), &completed);
    }
}

#[test]
fn a_slot_whose_lease_came_back_is_free_to_go_and_stays_for_graphs() {
    world(2, |comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        let lease = acquire(&mut pool, comm, MIB, &stream).unwrap();
        pool.release(lease).unwrap();
        comm.mock.begin(&stream);
        let lease = acquire(&mut pool, comm, MIB, &stream).unwrap();
        pool.release(lease).unwrap();
        let graph = comm.mock.end(&stream);
        assert_eq!(pool.trim(comm).unwrap().slots, 0);
        assert!(pool.stats().slots[0].claimed);
        drop(graph);
        assert_eq!(pool.trim(comm).unwrap().slots, 1);
        assert_eq!(comm.window_count(), 0);
    });
}

#[test]
fn the_end_of_a_use_that_must_be_recorded_is_recorded_once_by_either_way() {
    alone(|comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        comm.mock.begin(&stream);
        touch(&mut pool, comm, MIB, &stream);
        let _graph = comm.mock.end(&stream);
        for end in [End::Released, End::Completed, End::Dropped] {
            let _ = comm.mock.calls();
            let lease = acquire(&mut pool, comm, MIB, &stream).unwrap();
            end.of(lease, &mut pool);
            let expected = [Call::Wait(stream.id()), Call::Record(stream.id())];
            assert_eq!(comm.mock.calls(), expected, "{end:?}");
        }
        *comm.mock.broken.lock().unwrap() = true;
        let lease = acquire(&mut pool, comm, MIB, &stream).unwrap();
        assert!(pool.release(lease).is_err());
        assert!(!pool.stats().slots[0].leased, "given back nevertheless");
        *comm.mock.broken.lock().unwrap() = false;
        touch(&mut pool, comm, MIB, &stream);
        assert_eq!(pool.stats().registrations, 1);
    });
}

#[test]
fn a_lease_of_another_pool_ends_where_it_is_from() {
    let mut theirs = MockComm::alone();
    let (mut other, stream) = (geometric(), theirs.stream());
    alone(|comm| {
        let mut pool = geometric();
        let own = acquire(&mut pool, comm, MIB, &comm.stream()).unwrap();
        let lease = acquire(&mut other, &mut theirs, MIB, &stream).unwrap();
        pool.release(lease).unwrap();
        assert!(!other.stats().slots[0].leased);
        assert!(pool.stats().slots[0].leased);
        pool.release(own).unwrap();
        assert!(!pool.stats().slots[0].leased);
    });
}

#[test]
fn a_lease_of_a_slot_that_retired_meanwhile_ends_and_lets_it_go() {
    world(2, |comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        let first = acquire(&mut pool, comm, MIB, &stream).unwrap();
        let second = acquire(&mut pool, comm, 3 * MIB, &stream).unwrap();
        assert!(pool.stats().slots[0].retired && pool.stats().slots[0].leased);
        pool.release(first).unwrap();
        pool.release(second).unwrap();
        assert!(pool.stats().slots.iter().all(|slot| !slot.leased));
        assert_eq!(pool.trim(comm).unwrap().slots, 2);
    });
}

#[test]
fn a_lease_keeps_its_bytes_when_its_pool_is_gone_and_may_end_at_another() {
    let mut comm = MockComm::alone();
    let (mut pool, stream, mock) = (geometric(), comm.stream(), Arc::clone(&comm.mock));
    // The second lease has the owner that the first one brought back.
    let first = acquire(&mut pool, &mut comm, MIB, &stream).unwrap();
    pool.release(first).unwrap();
    let lease = acquire(&mut pool, &mut comm, MIB, &stream).unwrap();
    drop((pool, comm));
    let freed = || {
        mock.collect();
        let freed = |call: &Call| matches!(call, Call::Free(_));
        mock.calls().into_iter().filter(freed).count()
    };
    assert_eq!(freed(), 0, "the lease owns them");
    geometric().release(lease).unwrap();
    assert_eq!(freed(), 1);
}

/// Ends a lease that it keeps, and counts.
#[derive(Debug)]
struct Around(Mutex<Option<Lease>>, Arc<AtomicUsize>);

impl LeaseHold for Around {
    fn complete(&self) -> Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let lease = self.0.lock().unwrap().take();
        lease.map_or(Ok(()), Lease::complete)
    }

    fn abandon(&self) {}
}

#[test]
fn a_lease_that_is_seen_through_a_hold_ends_through_it() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        let ended = Arc::new(AtomicUsize::new(0));
        let lease = acquire(&mut pool, comm, MIB, &stream).unwrap();
        let hold = Arc::new(Around(Mutex::new(None), Arc::clone(&ended)));
        let shown = lease.seen_through(Arc::<Around>::clone(&hold));
        *hold.0.lock().unwrap() = Some(lease);
        pool.release(shown).unwrap();
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        assert!(!pool.stats().slots[0].leased);
        drop(hold);
        assert_eq!(pool.trim(comm).unwrap().slots, 1);
    });
}
