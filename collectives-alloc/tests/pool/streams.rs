//! Who waits for whom, and what that costs.

use collectives_alloc::geometric::Geometric;
use collectives_alloc::options::{DomainMode, Ordering};
use collectives_core::error::ErrorKind;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::stats::SlotStats;

use crate::mock::{Call, GRANULE, alone, world};
use crate::{MIB, acquire, balanced, geometric, kind, pool, touch};

// invariant 29
#[test]
fn a_hit_on_the_same_stream_asks_the_device_for_nothing() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        let _ = comm.mock.calls();
        for bytes in [1, MIB, 2 * MIB] {
            touch(&mut pool, comm, bytes, &stream);
        }
        assert_eq!(comm.mock.calls(), []);
        assert_eq!(pool.stats().fences, 0);
    });
}

// invariant 30
#[test]
fn a_hit_on_another_stream_is_one_record_and_one_wait() {
    alone(|comm| {
        let (mut pool, first, second) = (geometric(), comm.stream(), comm.stream());
        touch(&mut pool, comm, MIB, &first);
        let _ = comm.mock.calls();
        touch(&mut pool, comm, MIB, &second);
        let expected = [Call::RecordEager(first.id()), Call::Wait(second.id())];
        assert_eq!(comm.mock.calls(), expected);
        touch(&mut pool, comm, MIB, &second);
        assert_eq!(comm.mock.calls(), []);
        assert_eq!(pool.stats().fences, 1);
        touch(&mut pool, comm, MIB, &first);
        let expected = [Call::RecordEager(second.id()), Call::Wait(first.id())];
        assert_eq!(comm.mock.calls(), expected);
    });
}

// invariant 30
#[test]
fn an_eager_use_of_a_claimed_slot_is_one_wait_and_one_record() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        comm.mock.begin(&stream);
        touch(&mut pool, comm, MIB, &stream);
        let graph = comm.mock.end(&stream);
        let _ = comm.mock.calls();
        let lease = acquire(&mut pool, comm, MIB, &stream).unwrap();
        assert_eq!(comm.mock.calls(), [Call::Wait(stream.id())]);
        lease.complete().unwrap();
        assert_eq!(comm.mock.calls(), [Call::Record(stream.id())]);
        // Given up after an error or a panic, it is recorded all the same.
        drop(acquire(&mut pool, comm, MIB, &stream).unwrap());
        let expected = [Call::Wait(stream.id()), Call::Record(stream.id())];
        assert_eq!(comm.mock.calls(), expected);
        drop(graph);
    });
}

#[test]
fn a_claim_that_ended_costs_nothing_any_more() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        comm.mock.begin(&stream);
        touch(&mut pool, comm, MIB, &stream);
        drop(comm.mock.end(&stream));
        collectives_core::device::Device::collect(&*comm.mock);
        let _ = comm.mock.calls();
        touch(&mut pool, comm, MIB, &stream);
        assert_eq!(comm.mock.calls(), []);
        assert!(!pool.stats().slots[0].claimed);
    });
}

// invariant 26
#[test]
fn a_captured_use_waits_before_and_records_after_inside_the_graph() {
    alone(|comm| {
        let (mut pool, eager, stream) = (geometric(), comm.stream(), comm.stream());
        touch(&mut pool, comm, MIB, &eager);
        let _ = comm.mock.calls();
        comm.mock.begin(&stream);
        touch(&mut pool, comm, MIB, &stream);
        let calls = comm.mock.calls();
        assert!(
            matches!(calls[0], Call::Retain(_)),
            "the claim comes before any work"
        );
        let expected = [
            Call::RecordEager(eager.id()),
            Call::Wait(stream.id()),
            Call::Record(stream.id()),
        ];
        assert_eq!(calls[1..], expected);
        touch(&mut pool, comm, MIB, &stream);
        let expected = [Call::Wait(stream.id()), Call::Record(stream.id())];
        assert_eq!(comm.mock.calls(), expected, "claimed once a capture");
        assert_eq!(comm.mock.end(&stream).owned(), 1);
        assert_eq!(pool.stats().captured, 2);
    });
}

// invariant 27
#[test]
fn two_branches_of_one_capture_use_a_slot_one_after_the_other() {
    alone(|comm| {
        let (mut pool, trunk, branch) = (geometric(), comm.stream(), comm.stream());
        touch(&mut pool, comm, MIB, &trunk);
        comm.mock.begin(&trunk);
        comm.mock.fork(&trunk, &branch);
        touch(&mut pool, comm, MIB, &trunk);
        let _ = comm.mock.calls();
        touch(&mut pool, comm, MIB, &branch);
        let expected = [
            Call::Order(trunk.id(), branch.id()),
            Call::Wait(branch.id()),
            Call::Record(branch.id()),
        ];
        assert_eq!(comm.mock.calls(), expected);
        drop((comm.mock.end(&trunk), comm.mock.end(&branch)));
    });
}

#[test]
fn a_caller_that_keeps_to_one_stream_pays_nothing_but_the_claim_and_others_are_refused() {
    alone(|comm| {
        let (first, second) = (comm.stream(), comm.stream());
        let mut pool = pool(Geometric::default(), |options| {
            options.ordering = Ordering::Caller;
        });
        touch(&mut pool, comm, MIB, &first);
        let _ = comm.mock.calls();
        comm.mock.begin(&first);
        touch(&mut pool, comm, MIB, &first);
        assert!(matches!(comm.mock.calls()[..], [Call::Retain(_)]));
        let graph = comm.mock.end(&first);
        touch(&mut pool, comm, MIB, &first);
        assert_eq!(comm.mock.calls(), []);
        let refused = acquire(&mut pool, comm, MIB, &second);
        assert!(matches!(kind(refused), ErrorKind::Misuse(_)));
        touch(&mut pool, comm, MIB, &first);
        drop(graph);
    });
}

#[test]
fn a_caller_that_keeps_to_one_stream_keeps_to_one_branch_of_a_capture() {
    alone(|comm| {
        let (trunk, branch) = (comm.stream(), comm.stream());
        let mut pool = pool(Geometric::default(), |options| {
            options.ordering = Ordering::Caller;
        });
        touch(&mut pool, comm, MIB, &trunk);
        comm.mock.begin(&trunk);
        comm.mock.fork(&trunk, &branch);
        touch(&mut pool, comm, MIB, &trunk);
        touch(&mut pool, comm, MIB, &trunk);
        let refused = acquire(&mut pool, comm, MIB, &branch);
        assert!(matches!(kind(refused), ErrorKind::Misuse(_)));
        drop((comm.mock.end(&trunk), comm.mock.end(&branch)));
    });
}

#[test]
fn a_lease_whose_order_fails_is_given_back_nevertheless() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        comm.mock.begin(&stream);
        touch(&mut pool, comm, MIB, &stream);
        let graph = comm.mock.end(&stream);
        *comm.mock.broken.lock().unwrap() = true;
        let failed = acquire(&mut pool, comm, MIB, &stream).unwrap().complete();
        assert_eq!(kind(failed), ErrorKind::System("broken".to_owned()));
        drop(acquire(&mut pool, comm, MIB, &stream).unwrap());
        assert!(!pool.stats().slots[0].leased);
        assert_eq!(pool.stats().growths, 1);
        drop(graph);
    });
}

#[test]
fn a_domain_per_stream_shares_nothing_between_streams() {
    alone(|comm| {
        let (first, second) = (comm.stream(), comm.stream());
        let mut pool = pool(Geometric::default(), |options| {
            options.domain = DomainMode::Stream;
        });
        assert_eq!(touch(&mut pool, comm, MIB, &first), 1);
        assert_eq!(touch(&mut pool, comm, MIB, &second), 2);
        assert_eq!(touch(&mut pool, comm, MIB, &first), 1);
        assert_eq!(pool.stats().fences, 0);
        // What was reserved goes to the first stream that misses.
        let _ = pool.reserve(comm, &[Request::new(3 * MIB)]).unwrap();
        pool.seal();
        assert_eq!(touch(&mut pool, comm, 3 * MIB, &second), 3);
        let missed = acquire(&mut pool, comm, 3 * MIB, &first).unwrap_err();
        assert!(missed.to_string().contains("stream #1"), "{missed}");
        balanced(&pool);
    });
}

#[test]
fn a_domain_that_hits_takes_nothing_over() {
    alone(|comm| {
        let (first, second) = (comm.stream(), comm.stream());
        let mut pool = pool(Geometric::default(), |options| {
            options.domain = DomainMode::Stream;
        });
        assert_eq!(touch(&mut pool, comm, 5 * MIB, &first), 1);
        let _ = pool.reserve(comm, &[Request::new(5 * MIB)]).unwrap();
        pool.seal();
        // A size that the policy is asked about anew, and finds a slot of the stream's own for.
        assert_eq!(touch(&mut pool, comm, 4 * MIB, &first), 1);
        assert_eq!(touch(&mut pool, comm, 5 * MIB, &second), 2);
        balanced(&pool);
    });
}

#[test]
fn a_trim_leaves_a_stream_the_slot_that_its_lease_holds() {
    alone(|comm| {
        let (first, second) = (comm.stream(), comm.stream());
        let mut pool = pool(Geometric::default(), |options| {
            options.domain = DomainMode::Stream;
        });
        let lease = acquire(&mut pool, comm, MIB, &first).unwrap();
        touch(&mut pool, comm, MIB, &second);
        let trimmed = pool.trim(comm).unwrap();
        assert_eq!((trimmed.slots, trimmed.held_bytes), (1, 2 * MIB));
        let live = pool.stats().slots;
        assert!(
            matches!(
                live[..],
                [SlotStats {
                    generation: 1,
                    leased: true,
                    ..
                }]
            ),
            "{live:?}"
        );
        lease.complete().unwrap();
        assert_eq!(touch(&mut pool, comm, MIB, &first), 1);
        assert_eq!(pool.stats().registrations, 2);
        balanced(&pool);
    });
}

#[test]
fn after_a_trim_that_gave_everything_back_ranks_pair_their_streams_anew() {
    world(2, |comm| {
        let (first, second) = (comm.stream(), comm.stream());
        let mut pool = pool(Geometric::default(), |options| {
            options.domain = DomainMode::Stream;
        });
        touch(&mut pool, comm, MIB, &first);
        assert_eq!(pool.trim(comm).unwrap().held_bytes, 0);
        // Which stream is the next one's is each rank's own business.
        let next = if comm.rank() == 0 { &first } else { &second };
        touch(&mut pool, comm, MIB, next);
        balanced(&pool);
    });
}

#[test]
fn slots_of_streams_that_are_gone_serve_other_streams() {
    world(2, |comm| {
        let mut pool = pool(Geometric::default(), |options| {
            options.domain = DomainMode::Stream;
            options.limit = Some(2 * GRANULE);
        });
        let kept = comm.stream();
        touch(&mut pool, comm, MIB, &kept);
        for _ in 0..4 {
            let short_lived = comm.stream();
            assert_eq!(touch(&mut pool, comm, MIB, &short_lived), 2);
        }
        let plan = pool.plan(comm, &[Request::new(MIB)]).unwrap();
        assert_eq!((plan.registrations, plan.refused), (0, 0));
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        assert_eq!(touch(&mut pool, comm, MIB, &kept), 1);
        assert_eq!(pool.stats().registrations, 2);
        balanced(&pool);
    });
}

#[test]
fn a_slot_stays_with_its_stream_until_all_ranks_have_dropped_theirs() {
    world(2, |comm| {
        let mut pool = pool(Geometric::default(), |options| {
            options.domain = DomainMode::Stream;
            options.limit = Some(GRANULE);
        });
        let first = comm.stream();
        touch(&mut pool, comm, MIB, &first);
        let second = comm.stream();
        let still_there = (comm.rank() == 0).then_some(first);
        let refused = kind(acquire(&mut pool, comm, MIB, &second));
        assert!(matches!(refused, ErrorKind::Refused { .. }), "{refused:?}");
        drop(still_there);
        assert_eq!(touch(&mut pool, comm, MIB, &second), 1);
        // The use on the stream that is gone is still waited for.
        assert_eq!(pool.stats().fences, 1);
        balanced(&pool);
    });
}

#[test]
fn where_the_caller_orders_uses_a_slot_stays_with_its_stream() {
    alone(|comm| {
        let mut pool = pool(Geometric::default(), |options| {
            options.domain = DomainMode::Stream;
            options.ordering = Ordering::Caller;
        });
        for slot in 1..4 {
            let short_lived = comm.stream();
            assert_eq!(touch(&mut pool, comm, MIB, &short_lived), slot);
        }
        assert_eq!(pool.trim(comm).unwrap().slots, 3);
    });
}
