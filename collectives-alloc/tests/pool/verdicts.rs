//! What the pool takes from a policy, and what it refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use collectives_alloc::policy::{self, Ask, Decision, Policy, SlotView};
use collectives_alloc::pool::Pool;
use collectives_core::error::{ErrorKind, Refusal, Unsupported};
use collectives_core::scratch::{Lease, ScratchAllocator};
use rstest::rstest;

use crate::mock::{MockComm, alone};
use crate::{acquire, kind, pool, touch};

/// Bytes of the slot that every test begins with.
const FIRST: usize = 100;

/// Makes one slot, and gives one answer ever after.
#[derive(Debug)]
struct Scripted(Decision);

impl Policy for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }
    fn decide(&self, slots: &[SlotView], _ask: &Ask) -> Decision {
        match slots {
            [] => grow(FIRST),
            _ => self.0,
        }
    }
    fn digest(&self) -> u64 {
        0
    }
    fn bound(&self, _largest: usize, _granule: usize) -> Option<usize> {
        None
    }
}

fn grow(capacity: usize) -> Decision {
    let retire = false;
    Decision::Grow { capacity, retire }
}

fn extend(slot: Option<usize>, capacity: usize) -> Decision {
    Decision::Extend { slot, capacity }
}

/// A pool with its first slot leased.
fn begun(answer: Decision, comm: &mut MockComm) -> (Pool, Lease) {
    let mut pool = pool(Scripted(answer), |_| {});
    let stream = comm.stream();
    let lease = acquire(&mut pool, comm, FIRST, &stream).unwrap();
    let _ = comm.mock.calls();
    (pool, lease)
}

#[rstest]
#[case::a_slot_that_is_leased(Decision::Hit(0), 50, true)]
#[case::a_slot_that_is_too_small(Decision::Hit(0), FIRST + 1, false)]
#[case::a_slot_that_is_leased_and_too_small(Decision::Hit(0), FIRST + 1, true)]
#[case::a_slot_that_is_not_there(Decision::Hit(1), 50, false)]
#[case::less_than_was_asked_for(grow(49), 50, false)]
#[case::the_request_refused(Decision::Refuse, 50, false)]
#[case::an_arena_of_less_than_was_asked_for(extend(None, 49), 50, false)]
#[case::an_extension_to_less_than_was_asked_for(extend(Some(0), FIRST + 1), FIRST + 2, false)]
#[case::an_extension_of_a_slot_that_is_leased(extend(Some(0), FIRST + 1), 50, true)]
#[case::an_extension_to_the_same_size(extend(Some(0), FIRST), 50, false)]
#[case::an_extension_to_a_smaller_size(extend(Some(0), FIRST - 1), 50, false)]
#[case::an_extension_of_a_slot_that_is_not_there(extend(Some(1), FIRST + 1), 50, false)]
fn an_answer_that_breaks_the_contract_is_refused_by_all_ranks_alone(
    #[case] answer: Decision,
    #[case] bytes: usize,
    #[case] leased: bool,
) {
    alone(|comm| {
        let (mut pool, lease) = begun(answer, comm);
        let kept = leased.then_some(lease);
        let stream = comm.stream();
        let why = Refusal::Policy;
        let refused = kind(acquire(&mut pool, comm, bytes, &stream));
        assert_eq!(refused, ErrorKind::Refused { bytes, why });
        assert_eq!(comm.mock.calls(), [], "no round is needed");
        assert_eq!(pool.stats().slots.len(), 1);
        drop(kept);
    });
}

#[test]
fn an_answer_may_be_exactly_what_was_asked_for() {
    alone(|comm| {
        let (mut pool, lease) = begun(Decision::Hit(0), comm);
        lease.complete().unwrap();
        let stream = comm.stream();
        drop(acquire(&mut pool, comm, FIRST, &stream).unwrap());
        let (mut pool, lease) = begun(grow(50), comm);
        drop(acquire(&mut pool, comm, 50, &stream).unwrap());
        drop(lease);
    });
}

#[rstest]
#[case::of_an_arena(extend(None, 50))]
#[case::of_a_generation(extend(Some(0), FIRST + 1))]
fn an_extension_that_keeps_the_contract_is_asked_of_the_backend(#[case] answer: Decision) {
    alone(|comm| {
        let (mut pool, lease) = begun(answer, comm);
        lease.complete().unwrap();
        let stream = comm.stream();
        let refused = kind(acquire(&mut pool, comm, 50, &stream));
        // The mock cannot, and says so.
        let aliasing = matches!(refused, ErrorKind::Unsupported(Unsupported::Aliasing(_)));
        assert!(aliasing, "{refused:?}");
    });
}

/// The smallest slot that fits, or a new one; counts how often it was asked.
#[derive(Debug)]
struct Asked(Arc<AtomicUsize>);

impl Policy for Asked {
    fn name(&self) -> &str {
        "asked"
    }
    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
        self.0.fetch_add(1, Ordering::Relaxed);
        policy::best_fit(slots, ask.bytes).map_or(grow(ask.bytes), Decision::Hit)
    }
    fn digest(&self) -> u64 {
        0
    }
    fn bound(&self, _largest: usize, _granule: usize) -> Option<usize> {
        None
    }
}

#[test]
fn sizes_that_come_again_ask_the_policy_no_more_while_all_slots_are_free() {
    alone(|comm| {
        let asked = Arc::new(AtomicUsize::new(0));
        let (mut pool, stream) = (pool(Asked(Arc::clone(&asked)), |_| {}), comm.stream());
        let sizes = [4096, 8192, 12_288];
        let sweep = |pool: &mut Pool, comm: &mut MockComm| {
            for size in sizes {
                touch(pool, comm, size, &stream);
            }
            asked.swap(0, Ordering::Relaxed)
        };
        assert_eq!(sweep(&mut pool, comm), 3, "each grows");
        assert_eq!(sweep(&mut pool, comm), 3, "each hits for the first time");
        assert_eq!(sweep(&mut pool, comm), 0);
        // A slot more may be a better answer.
        touch(&mut pool, comm, 20_000, &stream);
        asked.store(0, Ordering::Relaxed);
        assert_eq!(sweep(&mut pool, comm), 3);
    });
}

#[test]
fn a_choice_that_is_remembered_is_not_taken_while_its_slot_is_leased() {
    alone(|comm| {
        let (mut pool, stream) = (crate::geometric(), comm.stream());
        let first = touch(&mut pool, comm, 4096, &stream);
        assert_eq!(touch(&mut pool, comm, 4096, &stream), first);
        let lease = acquire(&mut pool, comm, 4096, &stream).unwrap();
        assert_eq!(lease.slot().0, first);
        assert_ne!(touch(&mut pool, comm, 4096, &stream), first);
        lease.complete().unwrap();
        assert_eq!(touch(&mut pool, comm, 4096, &stream), first);
    });
}
