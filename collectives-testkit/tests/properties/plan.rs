//! What the ranks are to do, and which of their calls fail.

use collectives_testkit::decorators::{Fail, FailAt, Point};
use proptest::prelude::*;

/// Ranks of the world.
pub(crate) const RANKS: usize = 2;

/// One step, which all ranks take. Sizes are sixteenths of a granule.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A lease, kept.
    Lease(usize),
    /// The end of one of the leases that are out.
    Complete(usize),
    /// An eager call.
    Eager(usize),
    /// A graph.
    Capture(usize),
    /// A capture that fails.
    Lost(usize),
    /// A replay of one of the graphs.
    Replay(usize),
    /// The end of one of the graphs.
    Destroy(usize),
    /// A trim of both pools.
    Trim,
}

/// Calls of one pool's backend that fail, on one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) point: Point,
    pub(crate) rank: usize,
    pub(crate) k: u64,
    pub(crate) times: u64,
}

/// Mapped bytes that the pools of a rank may keep together, on every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budgets {
    pub(crate) total: [usize; RANKS],
    /// What the other pool keeps.
    pub(crate) others: usize,
}

/// What the ranks are to do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) policy: &'static str,
    /// Granules of each rank's budget.
    pub(crate) budgets: [usize; RANKS],
    /// Of the pool of leases, and of the pool of calls.
    pub(crate) faults: [Option<Fault>; 2],
    pub(crate) steps: Vec<Step>,
}

impl Plan {
    pub(crate) const NOTHING: Self = Self {
        policy: "exact",
        budgets: [0; RANKS],
        faults: [None, None],
        steps: Vec::new(),
    };
}

impl Fault {
    /// What makes a rank's backend fail so.
    pub(crate) fn layer(fault: Option<Self>, rank: usize) -> FailAt {
        match fault {
            Some(fault) if fault.rank == rank => {
                FailAt::new(fault.point, fault.k, Fail::OutOfMemory).times(fault.times)
            }
            _ => FailAt::new(Point::Allocate, u64::MAX, Fail::OutOfMemory),
        }
    }
}

pub(crate) fn plans() -> impl Strategy<Value = Plan> {
    let policies = ["geometric", "exact", "replace", "geometric-class", "arena"];
    // Mostly more than the steps need, often less, on one rank or on both.
    let budget = prop_oneof![3 => Just(1 << 20), 2 => 4_usize..24];
    (
        prop::sample::select(policies.to_vec()),
        [budget.clone(), budget],
        [fault(), fault()],
        prop::collection::vec(step(), 1..25),
    )
        .prop_map(|(policy, budgets, faults, steps)| Plan {
            policy,
            budgets,
            faults,
            steps,
        })
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    let point = prop_oneof![Just(Point::Allocate), Just(Point::Register)];
    let fault = (point, 0..RANKS, 1_u64..5, 1_u64..4);
    prop::option::of(fault.prop_map(|(point, rank, k, times)| Fault {
        point,
        rank,
        k,
        times,
    }))
}

fn step() -> impl Strategy<Value = Step> {
    let size = 1_usize..80;
    prop_oneof![
        3 => size.clone().prop_map(Step::Lease),
        3 => (0_usize..8).prop_map(Step::Complete),
        2 => size.clone().prop_map(Step::Eager),
        2 => size.clone().prop_map(Step::Capture),
        1 => size.prop_map(Step::Lost),
        3 => (0_usize..8).prop_map(Step::Replay),
        2 => (0_usize..8).prop_map(Step::Destroy),
        1 => Just(Step::Trim),
    ]
}
