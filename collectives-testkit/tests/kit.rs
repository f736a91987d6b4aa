//! The kit on bad input: harnesses that lie, ranks that die, backends that hang.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[expect(unreachable_pub, reason = "shared by test targets")]
mod host;
#[path = "host/plain.rs"]
#[expect(unreachable_pub, reason = "as above")]
mod plain;

use std::sync::Arc;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::layered::Layered;
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::case::{Case, Failure, Outcome};
use collectives_testkit::decorators::{Undrained, WithoutSymmetric};
use collectives_testkit::harness::{Harness, Joined, Setup};
use collectives_testkit::matrix;
use collectives_testkit::planted::Planted;
use collectives_testkit::report::{Entry, Proof, Report, Verdict};
use collectives_testkit::rig::Rig;
use collectives_testkit::runner::{Required, missing};
use collectives_testkit::suites;
use collectives_testkit::world::{Limits, Worlds};

use plain::Plain;

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

fn goes_on(rig: &mut Rig<'_>) -> Outcome {
    // Together longer than the parent waits for a case in which nothing happens.
    for _ in 0..60 {
        std::thread::sleep(QUICK.case / 30);
        rig.meet()?;
    }
    Ok(())
}

#[test]
fn a_case_may_take_long_as_long_as_something_happens() {
    let worlds = Worlds::new(Arc::new(host::Host), QUICK);
    worlds
        .run(&Case::new("X", "goes on", goes_on), None)
        .unwrap();
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

#[test]
fn addresses_that_are_used_again_accuse_nobody() {
    let worlds = Worlds::new(Arc::new(Plain::Reused), PATIENT);
    let streams = suites::cases().filter(|(suite, _)| *suite == "streams");
    for (suite, case) in streams.filter(|(_, case)| missing(&Plain::Reused, case).is_none()) {
        let outcome = worlds.run(case, None);
        outcome.unwrap_or_else(|Failure(text)| panic!("{}: {text}", case.name(suite)));
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
    proven.proof = Some(Proof {
        caught: Some("rank 0: a | b\nrank 1: c".to_owned()),
        disturbed: Vec::new(),
    });
    report.note(proven.clone());
    // Neither is being run once more no proof.
    let mut again = Entry::new("suite", &case);
    again.outcome = Verdict::Passed;
    report.note(again);
    report.write(&folder).unwrap();
    report.write(&folder).unwrap();
    let json = std::fs::read_to_string(folder.join("host.json")).unwrap();
    let read: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(read["backend"], "host");
    let text = std::fs::read_to_string(folder.join("host.md")).unwrap();
    assert!(
        text.contains(
            "1 ids, 1 cases: 1 passed, 0 failed, 0 skipped, 0 not run. 1 planted bugs caught."
        ),
        "{text}"
    );
    let line = "| I1 | suite: a   sentence | NeverHits | yes: rank 0: a   b | passed |";
    assert!(text.contains(line), "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_report_tells_a_case_that_is_not_proven() {
    let case = Case::new("I1", "a sentence", good).catches(Planted::NeverHits);
    let line = |caught: Option<&str>, disturbed: &[&str]| {
        let mut entry = Entry::new("suite", &case);
        entry.proof = Some(Proof {
            caught: caught.map(str::to_owned),
            disturbed: disturbed.iter().map(ToString::to_string).collect(),
        });
        let mut report = Report::new("host");
        report.note(entry);
        report.markdown()
    };
    let survived = line(None, &[]);
    assert!(survived.contains("| **no** | not run |"), "{survived}");
    let disturbed = line(Some("so"), &["another case", "and more"]);
    let wanted = "| yes: so; **unrelated cases fail**: another case |";
    assert!(disturbed.contains(wanted), "{disturbed}");
    for text in [survived, disturbed] {
        assert!(text.contains("1 not run. 0 planted bugs caught."), "{text}");
    }
    assert!(line(Some("so"), &[]).contains("1 planted bugs caught"));
}

fn wrong(_rig: &mut Rig<'_>) -> Outcome {
    Err(Failure("it is wrong".to_owned()))
}

#[test]
fn a_case_is_proven_by_its_bug_and_by_what_the_bug_leaves_alone() {
    let worlds = worlds();
    // A bug that a control sees, which is told of it.
    let caught = Case::new("X", "fails", wrong).catches(Planted::LastElementLost);
    let row = matrix::prove(&worlds, "suite", caught);
    assert_eq!(row.disturbed, [""; 0]);
    assert!(row.caught.is_some() && row.is_proven());
    row.verdict().unwrap();
    let text = matrix::table(&[row]);
    assert!(
        text.contains("LastElementLost") && text.contains("caught"),
        "{text}"
    );
    assert!(text.contains("unrelated pass"), "{text}");

    let survivor = Case::new("X", "passes", good).catches(Planted::HitsUncounted);
    let row = matrix::prove(&worlds, "suite", survivor);
    assert!(row.caught.is_none() && !row.is_proven());
    let Failure(text) = row.verdict().unwrap_err();
    assert!(text.contains("SURVIVED"), "{text}");

    let row = matrix::prove(&worlds, "suite", Case::new("X", "has none", wrong));
    let Failure(text) = row.verdict().unwrap_err();
    assert!(text.contains("NO BUG"), "{text}");
}

#[test]
fn a_bug_that_disturbs_what_it_does_not_touch_proves_nothing() {
    // Every case that needs symmetric memory fails here, whatever the bug.
    let worlds = Worlds::new(Arc::new(Boasting), PATIENT);
    let case = Case::new("X", "fails", wrong).catches(Planted::NeverHits);
    let row = matrix::prove(&worlds, "suite", case);
    assert!(row.caught.is_some() && !row.is_proven());
    let names = |name: &str| row.disturbed.iter().any(|text| text.contains(name));
    assert!(names("scratch::I5::"), "{:?}", row.disturbed);
    assert!(!names("communicator::D2::"), "{:?}", row.disturbed);
    let Failure(text) = row.verdict().unwrap_err();
    assert!(text.contains("UNRELATED FAIL"), "{text}");
    // Unless it touches that, or is about that.
    let case = Case::new("X", "fails", wrong).catches(Planted::LocalSizes);
    let row = matrix::prove(&worlds, "suite", case);
    assert!(!row.disturbed.iter().any(|text| text.contains("I5")));
    let case = Case::new("I5", "fails", wrong).catches(Planted::NeverHits);
    let row = matrix::prove(&worlds, "suite", case);
    assert!(!row.disturbed.iter().any(|text| text.contains("I5")));
}

#[test]
fn every_control_is_a_case_and_bugs_touch_nothing_else() {
    for control in matrix::CONTROLS {
        let known = suites::cases().any(|(suite, case)| (suite, case.id) == *control);
        assert!(known, "{control:?} is no case");
    }
    for bug in Planted::ALL {
        for id in bug.touches() {
            let known = matrix::CONTROLS.iter().any(|(_, control)| control == id);
            assert!(known, "{} touches {id}, which is no control", bug.name());
        }
    }
}

#[test]
fn bugs_that_free_too_early_end_in_words_where_freed_memory_goes_at_once() {
    let harnesses = [Plain::Reused, Plain::Unmapped];
    for harness in harnesses {
        let worlds = Worlds::new(Arc::new(harness), Limits::SHORT);
        let early = suites::cases().filter(|(_, case)| {
            let frees_early = case.bug.is_some_and(|bug| FREES_EARLY.contains(&bug));
            frees_early && missing(&harness, case).is_none()
        });
        for (suite, case) in early {
            let name = case.name(suite);
            let Err(Failure(text)) = worlds.run(case, case.bug) else {
                panic!("{name}: its bug survived on {}", harness.name());
            };
            assert!(!text.contains("panicked"), "{name}: {text}");
        }
    }
}

/// Bugs by which memory goes that a graph, a peer or work in flight still uses.
const FREES_EARLY: [Planted; 12] = [
    Planted::ReplaceWithoutClaims,
    Planted::RetainForgotten,
    Planted::ExecutableOwnsNothing,
    Planted::CopyOwnsNothing,
    Planted::UpdateKeepsOldOwners,
    Planted::ChildOwnsNothing,
    Planted::CaptureHidden,
    Planted::GrowsInCapture,
    Planted::LeasesEndAtOnce,
    Planted::WaitsDropped,
    Planted::CapturedWaitsDropped,
    Planted::BarriersLeftOut,
];

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
