//! What the pool takes from a policy, and what it refuses.

use collectives_alloc::policy::{Ask, Decision, Policy, SlotView};
use collectives_alloc::pool::Pool;
use collectives_core::error::{ErrorKind, Refusal, Unsupported};
use collectives_core::scratch::{Lease, ScratchAllocator};
use rstest::rstest;

use crate::mock::{MockComm, alone};
use crate::{acquire, kind, pool};

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
