//! Random sequences of what a user may do, against a model, on several ranks; what fails shrinks.

#[expect(unreachable_pub, reason = "shared by test targets")]
mod host;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use collectives_core::scratch::{Lease, ScratchAllocator};
use collectives_testkit::case::{Case, Outcome};
use collectives_testkit::planted::Planted;
use collectives_testkit::rig::{Replay, Rig};
use collectives_testkit::world::{Limits, Worlds};
use collectives_testkit::{ensure, ensure_eq};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

/// One step, which all ranks take.
#[derive(Clone, Debug)]
enum Step {
    /// A lease of this many sixteenths of a granule, kept.
    Lease(usize),
    /// The end of one of the leases that are out.
    Complete(usize),
    /// An eager call.
    Eager(usize),
    /// A graph.
    Capture(usize),
    /// A replay of one of the graphs.
    Replay(usize),
    /// The end of one of the graphs.
    Destroy(usize),
    /// A trim.
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = 1_usize..80;
    let step = prop_oneof![
        3 => size.clone().prop_map(Step::Lease),
        3 => (0_usize..8).prop_map(Step::Complete),
        2 => size.clone().prop_map(Step::Eager),
        2 => size.prop_map(Step::Capture),
        3 => (0_usize..8).prop_map(Step::Replay),
        1 => (0_usize..8).prop_map(Step::Destroy),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..25)
}

/// What the ranks are to do; a case is a plain function and cannot carry it.
static PLAN: Mutex<(&str, Vec<Step>)> = Mutex::new(("geometric", Vec::new()));

fn follow(rig: &mut Rig<'_>) -> Outcome {
    let (policy, steps) = PLAN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut comm = rig.communicator()?;
    let mut scratch = rig.pool(policy, rig.options())?;
    let mut handle = rig.collectives(policy)?;
    let unit = rig.granule() / 16;
    let mut leases: Vec<Lease> = Vec::new();
    let mut graphs: Vec<Replay> = Vec::new();
    for (round, step) in steps.into_iter().enumerate() {
        match step {
            Step::Lease(size) => {
                let before = scratch.stats();
                let lease = rig.lease(&mut *comm, &mut *scratch, size * unit)?;
                let slot = lease.slot();
                ensure_eq!(lease.operand().bytes, size * unit, "bytes leased");
                for other in &leases {
                    let overlap = other.operand().overlaps(lease.operand());
                    ensure!(!overlap && other.slot() != slot, "two leases share {slot}");
                }
                // The model: a free slot that fits is used where the policy allows that at all.
                let fits = |capacity: usize| match policy {
                    "exact" => capacity == size * unit,
                    _ => capacity >= size * unit,
                };
                // A size class leaves larger slots alone, which this model knows nothing of.
                let is_modelled = policy != "geometric-class";
                let free = before
                    .slots
                    .iter()
                    .filter(|slot| !slot.leased && !slot.retired);
                let best = free
                    .filter(|slot| fits(slot.capacity))
                    .map(|slot| slot.capacity)
                    .min();
                let after = scratch.stats();
                let grew = after.registrations != before.registrations;
                ensure!(
                    !is_modelled || grew == best.is_none(),
                    "registered: {grew}, and {best:?} fits best"
                );
                let used = after.slots.iter().find(|used| used.generation == slot.0);
                let used = used.map(|slot| slot.capacity);
                ensure!(
                    !is_modelled || best.is_none() || used == best,
                    "{used:?} was used, {best:?} fits best"
                );
                leases.push(lease);
            }
            Step::Complete(index) if !leases.is_empty() => {
                leases.remove(index % leases.len()).complete()?;
            }
            Step::Eager(size) => rig.eager(&mut handle, size * unit, rig.stream())?,
            Step::Capture(size) => graphs.push(rig.replay_of(&mut handle, size * unit)?),
            Step::Replay(index) if !graphs.is_empty() => {
                let index = index % graphs.len();
                rig.replay(&mut graphs[index], round, rig.stream())?;
            }
            Step::Destroy(index) if !graphs.is_empty() => {
                drop(graphs.remove(index % graphs.len()));
                rig.settle();
                rig.meet()?;
            }
            Step::Trim => {
                let leased = leases.len();
                let trimmed = scratch.trim(&mut *comm)?;
                let slots = scratch.stats().slots;
                ensure_eq!(slots.len(), leased, "slots after a trim, and leases");
                ensure_eq!(
                    trimmed.held_bytes == 0,
                    leased == 0,
                    "whether bytes are held"
                );
                let _trimmed = handle.trim()?;
            }
            _ => {}
        }
        let stats = scratch.stats();
        ensure_eq!(stats.requests, stats.hits + stats.growths, "requests");
    }
    rig.expect_alike("decisions", &scratch.stats().digest.to_string())?;
    rig.expect_alike("decisions", &handle.stats().digest.to_string())?;
    for lease in leases {
        lease.complete()?;
    }
    drop(graphs);
    rig.close(comm, scratch)?;
    let _deferred = handle.close()?;
    Ok(())
}

const CASE: Case = Case::new("I33", "random sequences", follow).on(2);

const LIMITS: Limits = Limits {
    call: Duration::from_secs(10),
    case: Duration::from_secs(30),
};

type Found = TestError<(usize, Vec<Step>)>;

fn run(worlds: &Worlds, cases: u32, bug: Option<Planted>) -> Result<(), Found> {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..Config::default()
    };
    let policies = ["geometric", "exact", "geometric-class", "arena"];
    let plans = (0..policies.len(), steps());
    TestRunner::new(config).run(&plans, |(policy, steps)| {
        *PLAN.lock().unwrap_or_else(PoisonError::into_inner) = (policies[policy], steps);
        let outcome = worlds.run(&CASE, bug);
        outcome.map_err(|failure| TestCaseError::fail(failure.0))
    })
}

/// One test, because the plan is the process's.
#[test]
fn random_sequences_keep_the_model_and_a_planted_bug_shrinks() {
    let worlds = Worlds::new(Arc::new(host::Host), LIMITS);
    run(&worlds, 150, None).unwrap();
    let Err(TestError::Fail(why, (_, steps))) = run(&worlds, 150, Some(Planted::LeasesEndAtOnce))
    else {
        panic!("a lease that ends at once was not found");
    };
    assert!(why.message().contains("share"), "{why}");
    // Two leases are all it takes.
    assert!(steps.len() <= 3, "{steps:?}");
}
