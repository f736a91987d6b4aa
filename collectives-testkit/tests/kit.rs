//! The kit on bad input: harnesses that lie, ranks that die, backends that hang.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[expect(unreachable_pub, reason = "shared by test targets")]
mod host;

use std::sync::Arc;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::layered::Layered;
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::case::{Case, Failure, Outcome};
use collectives_testkit::decorators::{Undrained, WithoutSymmetric};
use collectives_testkit::harness::{Harness, Joined, Setup};
use collectives_testkit::planted::Planted;
use collectives_testkit::report::{Entry, Report, Verdict};
use collectives_testkit::rig::Rig;
use collectives_testkit::runner::{Required, missing};
use collectives_testkit::suites;
use collectives_testkit::world::{Limits, Worlds};

/// For cases that end, on however slow a machine.
const PATIENT: Limits = Limits {
    call: Duration::from_secs(10),
    case: Duration::from_secs(30),
};

/// For a case that hangs.
const QUICK: Limits = Limits {
    call: Duration::from_secs(1),
    case: Duration::from_secs(3),
};

fn good(rig: &mut Rig<'_>) -> Outcome {
    let handle = rig.collectives("geometric")?;
    rig.expect_alike("the world", &handle.world_size().to_string())?;
    let _deferred = handle.close()?;
    Ok(())
}

fn dies(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    rig.eager(&mut handle, 100, rig.stream())?;
    assert!(rig.rank() != 1, "a rank that dies");
    rig.eager(&mut handle, 100, rig.stream())
}

fn hangs(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    rig.eager(&mut handle, 100, rig.stream())?;
    if rig.rank() == 2 {
        std::thread::sleep(QUICK.case * 3);
    }
    rig.eager(&mut handle, 100, rig.stream())
}

fn leaks(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    std::mem::forget(rig.replay_of(&mut handle, 100)?);
    let _deferred = handle.close()?;
    Ok(())
}

fn worlds() -> Worlds {
    Worlds::new(Arc::new(host::Host), PATIENT)
}

fn fails(worlds: &Worlds, run: fn(&mut Rig<'_>) -> Outcome) -> String {
    let Failure(text) = worlds.run(&Case::new("X", "fails", run), None).unwrap_err();
    text
}

#[test]
fn a_rank_that_dies_is_named_and_the_next_case_goes_on() {
    let worlds = worlds();
    let text = fails(&worlds, dies);
    assert!(
        text.contains("rank 1: panicked: a rank that dies"),
        "{text}"
    );
    assert!(text.contains("last: all_reduce"), "{text}");
    worlds.run(&Case::new("X", "good", good), None).unwrap();
}

#[test]
fn a_rank_that_hangs_is_named_with_its_last_operation_and_the_next_case_goes_on() {
    let worlds = Worlds::new(Arc::new(host::Host), QUICK);
    let text = fails(&worlds, hangs);
    assert!(text.contains("rank 2"), "{text}");
    assert!(text.contains("all_reduce"), "{text}");
    worlds.run(&Case::new("X", "good", good), None).unwrap();
}

#[test]
fn what_a_case_leaves_behind_fails_it() {
    let text = fails(&worlds(), leaks);
    assert!(text.contains("leaves"), "{text}");
}

/// Says one thing and does another.
struct Lying;

impl Harness for Lying {
    fn name(&self) -> &str {
        "lying"
    }

    fn supports(&self, capability: Capability) -> Support {
        match capability {
            Capability::Graphs => Support::no("it says"),
            _ => Support::Yes,
        }
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        host::Host.join(bootstrap, setup)
    }
}

/// Claims everything and has no symmetric memory.
struct Boasting;

impl Harness for Boasting {
    fn name(&self) -> &str {
        "boasting"
    }

    fn supports(&self, _capability: Capability) -> Support {
        Support::Yes
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        let joined = host::Host.join(bootstrap, setup)?;
        Ok(Joined {
            comm: Box::new(WithoutSymmetric::around(joined.comm)),
            ..joined
        })
    }
}

/// Its operations do not drain, and it says so.
struct Slow;

impl Harness for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn supports(&self, _capability: Capability) -> Support {
        Support::Yes
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        let joined = host::Host.join(bootstrap, setup)?;
        Ok(Joined {
            comm: Box::new(Layered::new(Undrained, joined.comm)),
            ..joined
        })
    }
}

#[test]
fn a_backend_that_does_not_drain_and_says_so_passes() {
    let worlds = Worlds::new(Arc::new(Slow), PATIENT);
    for id in ["E9", "E17", "B11", "I32", "I45", "E11", "B5"] {
        for (suite, case) in suites::cases().filter(|(_, case)| case.id == id) {
            let outcome = worlds.run(case, None);
            outcome.unwrap_or_else(|Failure(text)| panic!("{}: {text}", case.name(suite)));
        }
    }
}

/// Never starts.
struct Broken;

impl Harness for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn supports(&self, _capability: Capability) -> Support {
        Support::Yes
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, _setup: &Setup) -> Result<Joined> {
        let text = format!("no device for rank {}", bootstrap.rank());
        Err(Error::new(ErrorKind::System(text)))
    }
}

#[test]
fn a_backend_that_cannot_start_fails_its_cases_with_the_reason() {
    let worlds = Worlds::new(Arc::new(Broken), PATIENT);
    let text = fails(&worlds, good);
    assert!(text.contains("no device for rank 1"), "{text}");
}

#[test]
fn a_capability_that_is_there_and_not_claimed_fails_its_case() {
    let worlds = Worlds::new(Arc::new(Lying), PATIENT);
    let case = collectives_testkit::runner::claim(Capability::Graphs).unwrap();
    let Failure(text) = worlds.run(case, None).unwrap_err();
    assert!(text.contains("lacks `graphs`: `Device::graphs`"), "{text}");
    let skipped = suites::cases().filter(|(_, case)| missing(&Lying, case).is_some());
    assert!(skipped.count() > 20);
}

#[test]
fn a_capability_that_is_claimed_and_not_there_fails_its_cases_and_others_go_on() {
    let worlds = Worlds::new(Arc::new(Boasting), PATIENT);
    let named = |id| suites::cases().find(|(_, case)| case.id == id).unwrap().1;
    for capability in [Capability::Symmetric, Capability::Aliasing] {
        let case = collectives_testkit::runner::claim(capability).unwrap();
        let Failure(text) = worlds.run(case, None).unwrap_err();
        let named = format!("the harness claims `{capability}`");
        assert!(text.contains(&named), "{text}");
    }
    let counts = collectives_testkit::runner::claim(Capability::CountsMemory);
    worlds.run(counts.unwrap(), None).unwrap();
    let Failure(text) = worlds.run(named("I11"), None).unwrap_err();
    assert!(
        text.contains("rank 0") && text.contains("symmetric"),
        "{text}"
    );
    worlds.run(named("D2"), None).unwrap();
}

#[test]
fn every_case_has_a_bug_an_id_and_a_name_of_its_own() {
    let mut names = std::collections::BTreeSet::new();
    let mut ids = std::collections::BTreeSet::new();
    let mut bugs = std::collections::BTreeSet::new();
    for (suite, case) in suites::cases() {
        assert!(names.insert(case.name(suite)), "{} twice", case.name(suite));
        let bug = case
            .bug
            .unwrap_or_else(|| panic!("{} has no bug", case.name(suite)));
        let (letter, number) = case.id.split_at(1);
        assert!("IABCDEF".contains(letter), "{} is no id", case.id);
        assert!(number.parse::<u32>().is_ok(), "{} is no id", case.id);
        ids.insert(case.id);
        bugs.insert(bug);
    }
    assert!(ids.len() >= 80, "{} ids", ids.len());
    for bug in Planted::ALL {
        let used = bugs.contains(bug);
        assert!(used, "{} is planted for no case", bug.name());
    }
}

#[test]
fn reports_of_several_processes_add_up() {
    let folder = std::env::temp_dir().join(format!("kit-report-{}", std::process::id()));
    let case = Case::new("I1", "a | sentence", good).catches(Planted::NeverHits);
    let mut report = Report::new("host");
    report.note(Entry::new("suite", &case));
    let mut passed = Entry::new("suite", &case);
    passed.outcome = Verdict::Passed;
    report.note(passed);
    // Being listed again is no outcome.
    report.note(Entry::new("suite", &case));
    let mut proven = Entry::new("suite", &case);
    proven.caught = Some(true);
    report.note(proven);
    report.write(&folder).unwrap();
    report.write(&folder).unwrap();
    let json = std::fs::read_to_string(folder.join("host.json")).unwrap();
    let read: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(read["backend"], "host");
    let text = std::fs::read_to_string(folder.join("host.md")).unwrap();
    assert!(
        text.contains("1 ids, 1 cases: 1 passed, 0 failed"),
        "{text}"
    );
    assert!(text.contains("| NeverHits | yes | passed |"), "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_is_required_must_be_a_capability() {
    let required = Required::parse(" graphs, symmetric,").unwrap();
    assert!(required.contains(Capability::Graphs));
    assert!(!required.contains(Capability::Abort));
    let text = Required::parse("grphs").unwrap_err();
    assert!(
        text.contains("`grphs`") && text.contains("graph-update"),
        "{text}"
    );
}
