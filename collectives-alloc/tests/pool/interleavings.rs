//! Leases and claims under a model checker: the pool's own code, in every interleaving.
//!
//! What a lease protects is a cell of the model, which fails when two uses of it are not ordered.
//! Each test runs a second time with a primitive broken, and must fail then.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use collectives_alloc::pool::Pool;
use collectives_core::error::Misuse;
use collectives_core::memory::Memory;
use collectives_core::rank::DeviceId;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::stream::StreamRef;
use collectives_core::sync::planted::{self, Bug};
use loom::cell::UnsafeCell;
use loom::thread;

use crate::mock::MockComm;
use crate::{MIB, acquire, geometric, replace};

/// The bytes of a slot, as the model sees them.
#[derive(Clone)]
struct Bytes(Arc<UnsafeCell<u32>>);

// SAFETY: A model's threads take turns on one thread of the system, and the cell is used only through
// the checker, which fails the model if two uses are not ordered.
unsafe impl Send for Bytes {}

impl Bytes {
    fn new() -> Self {
        Self(Arc::new(UnsafeCell::new(0)))
    }

    fn write(&self) {
        // SAFETY: The checker fails the model if another access is not ordered with this one.
        self.0.with_mut(|cell| unsafe { *cell += 1 });
    }
}

/// What a graph of one use of a slot owns, which goes with it and waits for no device.
fn captured(pool: &mut Pool, comm: &mut MockComm, stream: &StreamRef) -> Vec<Memory> {
    let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
    comm.mock.begin(stream);
    let lease = acquire(pool, comm, MIB, stream).unwrap();
    pool.release(lease).unwrap();
    comm.mock.end(stream).into_owned()
}

/// Checks a model, and that it fails when `bugs` are planted, one at a time.
fn check(bugs: &[Bug], model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let run = |bug| {
        let model = Arc::clone(&model);
        let checked = || planted::with(bug, || loom::model(move || model()));
        catch_unwind(AssertUnwindSafe(checked))
    };
    if let Err(panic) = run(None) {
        std::panic::resume_unwind(panic);
    }
    for &bug in bugs {
        assert!(run(Some(bug)).is_err(), "{bug:?} was not found");
    }
}

#[test]
fn only_one_is_inside_a_memory_and_sees_what_the_one_before_did() {
    check(&[Bug::Relaxed, Bug::TornExchange], || {
        let memory = Memory::token(DeviceId::fresh(), || {});
        let bytes = Bytes::new();
        let visit = {
            let bytes = bytes.clone();
            move |memory: &Memory| match memory.try_enter() {
                Ok(_entered) => bytes.write(),
                Err(error) => assert_eq!(error.misuse(), Some(&Misuse::InUse)),
            }
        };
        let others = [(); 2].map(|()| {
            let (memory, visit) = (memory.clone(), visit.clone());
            thread::spawn(move || visit(&memory))
        });
        visit(&memory);
        for other in others {
            other.join().unwrap();
        }
        let entered = memory.try_enter().expect("all have left");
        bytes.write();
        drop(entered);
    });
}

#[test]
fn a_slot_is_lent_again_only_after_the_lease_before_ended_on_its_thread() {
    check(&[Bug::Relaxed], || {
        let mut comm = MockComm::alone();
        let (mut pool, stream) = (geometric(), comm.stream());
        let bytes = Bytes::new();
        let first = acquire(&mut pool, &mut comm, MIB, &stream).unwrap();
        let slot = first.slot();
        let theirs = bytes.clone();
        let other = thread::spawn(move || {
            theirs.write();
            first.complete().unwrap();
        });
        let second = acquire(&mut pool, &mut comm, MIB, &stream).unwrap();
        if second.slot() == slot {
            bytes.write();
        }
        second.complete().unwrap();
        other.join().unwrap();
        let _ = pool.close(&mut comm).unwrap();
    });
}

#[test]
fn an_abandoned_lease_ends_like_any_other() {
    check(&[Bug::Relaxed], || {
        let mut comm = MockComm::alone();
        let (mut pool, stream) = (geometric(), comm.stream());
        let bytes = Bytes::new();
        let first = acquire(&mut pool, &mut comm, MIB, &stream).unwrap();
        let theirs = bytes.clone();
        let other = thread::spawn(move || {
            theirs.write();
            drop(first);
        });
        let leased = pool.stats().slots[0].leased;
        if !leased {
            bytes.write();
        }
        other.join().unwrap();
        assert!(!pool.stats().slots[0].leased);
        let _ = pool.close(&mut comm).unwrap();
    });
}

#[test]
fn a_slot_counts_as_unclaimed_only_after_its_graph_died_on_another_thread() {
    check(&[Bug::OwnersUncounted], || {
        let mut comm = MockComm::alone();
        let (mut pool, stream) = (replace(), comm.stream());
        let bytes = Bytes::new();
        let graph = captured(&mut pool, &mut comm, &stream);
        let theirs = bytes.clone();
        let other = thread::spawn(move || {
            theirs.write();
            drop(graph);
        });
        let lease = acquire(&mut pool, &mut comm, MIB, &stream).unwrap();
        // Without a claim nothing else orders the use after the graph's.
        if !pool.stats().slots[0].claimed {
            bytes.write();
        }
        lease.complete().unwrap();
        other.join().unwrap();
        let _ = pool.close(&mut comm).unwrap();
    });
}

#[test]
fn a_trim_frees_a_slot_only_after_its_graph_died_on_another_thread() {
    check(&[Bug::OwnersUncounted], || {
        let mut comm = MockComm::alone();
        let (mut pool, stream) = (replace(), comm.stream());
        let bytes = Bytes::new();
        let graph = captured(&mut pool, &mut comm, &stream);
        let theirs = bytes.clone();
        // A destructor that runs on a thread of the driver.
        let other = thread::spawn(move || {
            theirs.write();
            drop(graph);
        });
        let trimmed = pool.trim(&mut comm).unwrap();
        if trimmed.slots == 1 && trimmed.held_bytes == 0 {
            bytes.write();
        }
        other.join().unwrap();
        let _ = pool.trim(&mut comm).unwrap();
        assert!(pool.stats().slots.is_empty());
        let _ = pool.close(&mut comm).unwrap();
    });
}

#[test]
fn a_replay_and_a_lease_of_a_claimed_slot_exclude_each_other() {
    check(&[Bug::Relaxed, Bug::TornExchange], || {
        let mut comm = MockComm::alone();
        let (mut pool, stream) = (replace(), comm.stream());
        let bytes = Bytes::new();
        let owned = captured(&mut pool, &mut comm, &stream);
        let slot = owned[0].clone();
        let theirs = bytes.clone();
        // What `Executable::launch` does around a replay.
        let other = thread::spawn(move || {
            if let Ok(_entered) = slot.try_enter() {
                theirs.write();
            }
        });
        match acquire(&mut pool, &mut comm, MIB, &stream) {
            Ok(lease) => {
                bytes.write();
                lease.complete().unwrap();
            }
            Err(error) => assert_eq!(error.misuse(), Some(&Misuse::InUse)),
        }
        other.join().unwrap();
        drop(owned);
        let _ = pool.close(&mut comm).unwrap();
    });
}

#[test]
fn the_last_of_owners_and_keepers_frees_once_and_after_all_of_them() {
    check(&[], || {
        let bytes = Bytes::new();
        let freed = bytes.clone();
        let memory = Memory::token(DeviceId::fresh(), move || freed.write());
        let keep = memory.keep_alive();
        let graph = memory.clone();
        let theirs = bytes.clone();
        let window = thread::spawn(move || drop(keep));
        let destructor = thread::spawn(move || {
            theirs.write();
            drop(graph);
        });
        drop(memory);
        window.join().unwrap();
        destructor.join().unwrap();
        // SAFETY: As in `Bytes::write`.
        assert_eq!(bytes.0.with(|cell| unsafe { *cell }), 2);
    });
}
