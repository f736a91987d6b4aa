//! Random sequences of what a user may do and of what may fail meanwhile, against a model, on several
//! ranks; what fails shrinks.

#[path = "../host/mod.rs"]
#[expect(unreachable_pub, reason = "shared by test targets")]
mod host;
mod model;
mod plan;
mod run;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use collectives_testkit::case::{Case, Outcome};
use collectives_testkit::planted::Planted;
use collectives_testkit::rig::Rig;
use collectives_testkit::world::{Limits, Worlds};
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::plan::{Plan, RANKS};

/// What the ranks are to do; a case is a plain function and cannot carry it.
static PLAN: Mutex<Plan> = Mutex::new(Plan::NOTHING);

fn follow(rig: &mut Rig<'_>) -> Outcome {
    let plan = PLAN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    run::follow(rig, plan)
}

const CASE: Case = Case::new("I33", "random sequences", follow).on(RANKS);

const LIMITS: Limits = Limits {
    call: Duration::from_secs(10),
    case: Duration::from_secs(30),
};

fn run(worlds: &Worlds, cases: u32, bug: Option<Planted>) -> Result<(), Box<TestError<Plan>>> {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..Config::default()
    };
    let found = TestRunner::new(config).run(&plan::plans(), |plan| {
        *PLAN.lock().unwrap_or_else(PoisonError::into_inner) = plan;
        let outcome = worlds.run(&CASE, bug);
        outcome.map_err(|failure| TestCaseError::fail(failure.0))
    });
    found.map_err(Box::new)
}

/// The smallest plan that shows a planted bug, and how it shows.
fn smallest(worlds: &Worlds, bug: Planted) -> (String, Plan) {
    let found = run(worlds, 150, Some(bug)).map_err(|error| *error);
    match found {
        Err(TestError::Fail(why, plan)) => (why.message().to_owned(), plan),
        other => panic!("{bug:?} was not found: {other:?}"),
    }
}

/// One test, because the plan is the process's.
#[test]
fn random_sequences_keep_the_model_and_planted_bugs_shrink() {
    let worlds = Worlds::new(Arc::new(host::Host), LIMITS);
    run(&worlds, 200, None).unwrap();

    let (why, plan) = smallest(&worlds, Planted::LeasesEndAtOnce);
    assert!(plan.steps.len() <= 2, "{why}: {plan:?}");

    // A call that fails and one that would be served, or would be refused by the pool and not by the bug:
    // nothing else is left of the plan.
    let (why, plan) = smallest(&worlds, Planted::FailureSticks);
    let shown = why.contains("OutOfMemory") || why.contains("refusals");
    assert!(shown, "{why}: {plan:?}");
    assert!(plan.steps.len() <= 3, "{why}: {plan:?}");

    // Memory that never comes back stays charged.
    let (why, plan) = smallest(&worlds, Planted::AllocationLeaks);
    assert!(why.contains("bytes charged"), "{why}");
    assert!(plan.steps.len() <= 3, "{why}: {plan:?}");
}
