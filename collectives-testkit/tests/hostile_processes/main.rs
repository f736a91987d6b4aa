//! Ranks that are processes and misbehave: the kit names rank and last operation, ends only its own
//! processes and goes on.

#[path = "../toy/communicator.rs"]
mod communicator;
#[path = "../toy/device.rs"]
mod device;
#[expect(unreachable_pub, reason = "shared by test targets")]
#[path = "../toy_processes/harness.rs"]
mod harness;
#[path = "../toy/reduce.rs"]
mod reduce;

use std::process::{ExitCode, abort};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::layered::{Layer, Layered};
use collectives_core::submission::Submission;
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::case::{Case, Failure};
use collectives_testkit::harness::{Harness, Joined, Ranks, Setup};
use collectives_testkit::planted::Planted;
use collectives_testkit::world::{Limits, Worlds};
use collectives_testkit::{runner, suites};
use libtest_mimic::{Arguments, Failed, Trial};

/// The toy, whose rank 1 does something bad at its third operation where a bug is planted.
struct Hostile;

impl Harness for Hostile {
    fn name(&self) -> &str {
        "hostile-processes"
    }

    fn supports(&self, capability: Capability) -> Support {
        harness::Processes.supports(capability)
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        let odd = bootstrap.rank().0 == 1;
        let joined = harness::Processes.join(bootstrap, setup)?;
        let trouble = match runner::planted() {
            Some(bug) if odd => Trouble { bug, left: 3 },
            _ => return Ok(joined),
        };
        Ok(Joined {
            comm: Box::new(Layered::new(trouble, joined.comm)),
            ..joined
        })
    }

    fn ranks(&self) -> Ranks {
        Ranks::Processes
    }
}

/// The two bugs stand for two kinds of trouble, since a process is told of a bug and of nothing else.
const DIES: Planted = Planted::LaunchesTwice;
const HANGS: Planted = Planted::LaunchDoesNothing;

#[derive(Debug)]
struct Trouble {
    bug: Planted,
    left: u32,
}

impl Layer for Trouble {
    fn before_enqueue(
        &mut self,
        _inner: &mut dyn Communicator,
        _submission: &Submission<'_>,
    ) -> Result<()> {
        self.left -= 1;
        match self.bug {
            DIES if self.left == 0 => abort(),
            HANGS if self.left == 0 => thread::sleep(Duration::from_secs(600)),
            _ => {}
        }
        Ok(())
    }

    fn for_child(&self) -> Self {
        Self { ..*self }
    }
}

/// How the case ends, after which the next one must pass.
fn ends(bug: Planted) -> std::result::Result<String, Failed> {
    let limits = Limits {
        call: Duration::from_secs(2),
        case: Duration::from_secs(6),
    };
    let worlds = Worlds::new(Arc::new(Hostile), limits);
    let found = suites::cases().find(|(_, case)| case.id == "E12");
    let (_, case): (_, &Case) = found.ok_or("no such case")?;
    let Err(Failure(text)) = worlds.run(case, Some(bug)) else {
        return Err("the case passed".into());
    };
    let worlds = Worlds::new(Arc::new(Hostile), Limits::PATIENT);
    worlds.run(case, None).map_err(|Failure(text)| text)?;
    Ok(text)
}

fn contains(text: &str, words: &[&str]) -> std::result::Result<(), Failed> {
    match words.iter().find(|word| !text.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("`{word}` is missing in: {text}").into()),
    }
}

fn main() -> ExitCode {
    let harness: Arc<dyn Harness> = Arc::new(Hostile);
    runner::dispatch(&harness);
    let trials = vec![
        Trial::test(
            "a_process_that_dies_is_named_and_the_next_case_goes_on",
            || {
                contains(
                    &ends(DIES)?,
                    &[
                        "rank 1",
                        "signal 6",
                        "rank 1 ended",
                        "last: broadcast (number 3)",
                    ],
                )
            },
        ),
        Trial::test(
            "a_process_that_hangs_is_named_with_its_last_operation",
            || contains(&ends(HANGS)?, &["rank 1", "last: broadcast (number 3)"]),
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
