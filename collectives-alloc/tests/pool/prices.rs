//! What a workload would cost, told without spending anything.

use collectives_alloc::geometric::Geometric;
use collectives_alloc::options::DomainMode;
use collectives_alloc::pool::Pool;
use collectives_alloc::reserved::Reserved;
use collectives_core::error::{ErrorKind, Refusal};
use collectives_core::scratch::{Request, ScratchAllocator};
use rstest::rstest;

use crate::mock::{Call, MockComm, alone, world};
use crate::{MIB, acquire, geometric, kind, pool, replace, touch};

/// Who has the slot that a plan would replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nobody,
    Lease,
    Graph,
    Both,
}

#[rstest]
#[case::nobody(Holder::Nobody, &[4 * MIB])]
#[case::a_lease(Holder::Lease, &[2 * MIB, 4 * MIB])]
#[case::a_graph(Holder::Graph, &[2 * MIB, 4 * MIB])]
#[case::both(Holder::Both, &[2 * MIB, 4 * MIB])]
fn a_slot_that_somebody_holds_is_paid_for_beside_the_one_that_replaces_it(
    #[case] holder: Holder,
    #[case] expected: &[usize],
) {
    alone(|comm| {
        let (mut pool, stream) = (replace(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        let graph = matches!(holder, Holder::Graph | Holder::Both).then(|| {
            comm.mock.begin(&stream);
            touch(&mut pool, comm, MIB, &stream);
            comm.mock.end(&stream)
        });
        let lease = matches!(holder, Holder::Lease | Holder::Both)
            .then(|| acquire(&mut pool, comm, MIB, &stream).unwrap());
        let plan = pool.plan(comm, &[Request::new(3 * MIB)]).unwrap();
        assert_eq!(plan.capacities, expected);
        assert_eq!(plan.mapped_bytes, expected.iter().sum::<usize>());
        assert_eq!((plan.registrations, plan.refused), (1, 0));
        // It comes true, and then the old slot is priced as what is retired.
        let made = pool.reserve(comm, &[Request::new(3 * MIB)]).unwrap();
        assert_eq!(made, plan);
        let now = pool.plan(comm, &[]).unwrap();
        assert_eq!(now.capacities, expected);
        assert_eq!(now.mapped_bytes, pool.stats().mapped_bytes());
        drop((graph, lease));
    });
}

#[test]
fn a_leased_slot_serves_no_request_of_a_plan() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        let lease = acquire(&mut pool, comm, MIB, &stream).unwrap();
        let registrations = |pool: &mut Pool, comm: &mut MockComm| {
            let plan = pool.plan(comm, &[Request::new(MIB)]).unwrap();
            plan.registrations
        };
        assert_eq!(registrations(&mut pool, comm), 1);
        lease.complete().unwrap();
        assert_eq!(registrations(&mut pool, comm), 0);
    });
}

#[test]
fn slots_of_every_domain_are_priced_once() {
    alone(|comm| {
        let mut pool = pool(Geometric::default(), |options| {
            options.domain = DomainMode::Stream;
        });
        let _ = pool.reserve(comm, &[Request::new(5 * MIB)]).unwrap();
        for size in [1, 9] {
            let stream = comm.stream();
            touch(&mut pool, comm, size * MIB, &stream);
        }
        let plan = pool.plan(comm, &[]).unwrap();
        assert_eq!(plan.capacities.len(), pool.stats().slots.len());
        assert_eq!(plan.mapped_bytes, pool.stats().mapped_bytes());
        assert_eq!(plan.capacity_bytes, pool.stats().capacity_bytes());
    });
}

#[test]
fn a_plan_costs_nothing_and_comes_true() {
    world(2, |comm| {
        let stream = comm.stream();
        for mut pool in [
            geometric(),
            replace(),
            pool(Reserved::new(9 * MIB, 2.0).unwrap(), |_| {}),
        ] {
            touch(&mut pool, comm, MIB, &stream);
            let requests = [MIB, 3 * MIB, 2 * MIB, 20 * MIB].map(Request::new);
            let _ = comm.mock.calls();
            let planned = pool.plan(comm, &requests).unwrap();
            assert_eq!(comm.mock.calls(), []);
            let made = pool.reserve(comm, &requests).unwrap();
            assert_eq!(planned, made);
            assert_eq!(made.mapped_bytes, pool.stats().mapped_bytes());
            assert_eq!(made.capacity_bytes, pool.stats().capacity_bytes());
            let registrations = pool.stats().registrations;
            for request in requests {
                touch(&mut pool, comm, request.bytes, &stream);
            }
            assert_eq!(pool.stats().registrations, registrations);
            let _ = pool.close(comm).unwrap();
        }
    });
}

#[test]
fn a_plan_counts_what_would_be_refused_and_reserve_refuses_it_before_it_spends() {
    alone(|comm| {
        let mut pool = pool(Geometric::default(), |options| options.cap = Some(MIB));
        let requests = [MIB, 3 * MIB].map(Request::new);
        assert_eq!(pool.plan(comm, &requests).unwrap().refused, 1);
        let why = Refusal::OverCap { cap: MIB };
        let refused = kind(pool.reserve(comm, &requests));
        assert_eq!(
            refused,
            ErrorKind::Refused {
                bytes: 3 * MIB,
                why
            }
        );
        assert_eq!(comm.mock.calls(), [Call::Agree]);
    });
}
