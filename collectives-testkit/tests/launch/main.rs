//! Ranks as processes: how they meet, how they end, and that nothing is left of them.
//!
//! This binary is the tests, every rank, and, for one test, a parent that is killed.

#![expect(
    clippy::unwrap_used,
    reason = "a test, which clippy knows only by its attribute"
)]

mod bodies;

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bodies::{BODIES, LONG, SHORT};
use collectives_core::rank::Rank;
use collectives_testkit::launch::{
    DEADLINE_PASSED, Exit, FAILED, Launch, NOT_STARTED, PANICKED, Report, Stream, dispatch,
};
use libtest_mimic::{Arguments, Trial};

const PARENT: &str = "COLLECTIVES_LAUNCH_TEST_PARENT";

fn main() -> ExitCode {
    dispatch(&BODIES);
    if std::env::var_os(PARENT).is_some() {
        let _ = Launch::new("sleeps", 4).echo(true).run();
        return ExitCode::FAILURE;
    }
    let tests: [(&str, fn()); 15] = [
        ("worlds_of_every_size_gather", worlds_of_every_size_gather),
        (
            "a_rank_that_is_killed_fails_the_others_at_once",
            a_rank_is_killed,
        ),
        (
            "the_store_dies_with_rank_0_and_everybody_knows",
            rank_0_is_killed,
        ),
        ("a_rank_that_hangs_ends_itself", a_rank_hangs),
        ("a_rank_that_is_stopped_is_killed", a_rank_is_stopped),
        ("a_panic_is_reported_with_its_message", a_rank_panics),
        ("an_exit_code_is_reported", a_rank_exits),
        ("an_error_is_reported", every_rank_fails),
        ("output_is_kept_by_rank_and_stream", output_is_kept),
        (
            "strangers_in_the_middle_are_not_noticed",
            strangers_are_not_noticed,
        ),
        (
            "records_over_the_store_agree_on_who_is_odd",
            one_rank_disagrees,
        ),
        ("a_late_rank_gets_the_same_timeout", a_rank_comes_late),
        ("ranks_that_never_connect_are_named", ranks_never_come),
        ("ranks_die_with_their_parent", ranks_die_with_their_parent),
        (
            "large_results_and_lingering_children",
            large_results_and_lingering_children,
        ),
    ];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let mut arguments = Arguments::from_args();
    // More processes at once than this only wait for each other.
    arguments.test_threads.get_or_insert(2);
    let trials = tests.into_iter().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs it and sees that nothing is left.
fn run(launch: Launch) -> Report {
    let report = launch.run().unwrap();
    for rank in &report.ranks {
        let left = fs::exists(format!("/proc/{}", rank.pid)).unwrap();
        assert!(!left, "rank {} is still there, or a zombie", rank.rank);
    }
    report
}

fn exits(report: &Report) -> Vec<Exit> {
    report.ranks.iter().map(|rank| rank.exit).collect()
}

/// The text that all ranks but the last returned, which must be one.
fn told(report: &Report, but: usize) -> String {
    let others = report.ranks.iter().filter(|rank| rank.rank.index() != but);
    let texts: HashSet<_> = others
        .map(|rank| rank.result.clone().unwrap_or_else(|| panic!("{report}")))
        .collect();
    let lossy: Vec<_> = texts
        .iter()
        .map(|text| String::from_utf8_lossy(text))
        .collect();
    assert_eq!(texts.len(), 1, "{lossy:?}\n{report}");
    String::from_utf8(texts.into_iter().next().unwrap()).unwrap()
}

fn worlds_of_every_size_gather() {
    for world_size in 1..=8 {
        let report = run(Launch::new("rounds", world_size));
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| [u8::try_from(rank).unwrap()])
            .collect();
        assert_eq!(
            report.results().unwrap_or_else(|| panic!("{report}")),
            ranks
        );
    }
    assert!(run(Launch::new("rounds", 0)).is_ok());
}

fn a_rank_is_killed() {
    let report = run(Launch::new("dies", 4));
    assert_eq!(exits(&report)[3], Exit::Signal(9), "{report}");
    let text = told(&report, 3);
    assert!(
        text.starts_with("rank 3 failed: its connection to the store was lost"),
        "{text}"
    );
}

fn rank_0_is_killed() {
    let report = run(Launch::new("rank 0 dies", 4));
    assert_eq!(exits(&report)[0], Exit::Signal(9), "{report}");
    for rank in &report.ranks[1..] {
        let text =
            String::from_utf8(rank.result.clone().unwrap_or_else(|| panic!("{report}"))).unwrap();
        assert!(text.starts_with("rank 0 failed: the store"), "{text}");
    }
}

fn a_rank_hangs() {
    let report = run(Launch::new("hangs", 3).deadline(SHORT * 8).grace(LONG));
    assert_eq!(exits(&report)[2], Exit::Code(DEADLINE_PASSED), "{report}");
    let error = report.ranks[2].error.clone().unwrap();
    assert!(error.contains("deadline of 800ms passed"), "{error}");
    assert!(!report.is_ok() && report.results().is_none());
}

fn a_rank_is_stopped() {
    let begun = Instant::now();
    let launch = Launch::new("stops", 3)
        .deadline(SHORT * 4)
        .grace(Duration::ZERO);
    let report = run(launch);
    assert_eq!(exits(&report)[2], Exit::Killed, "{report}");
    assert!(begun.elapsed() >= SHORT * 4);
}

fn a_rank_panics() {
    let report = run(Launch::new("panics", 3));
    assert_eq!(
        exits(&report),
        [Exit::Code(0), Exit::Code(0), Exit::Code(PANICKED)],
        "{report}"
    );
    let panic = &report.ranks[2].panics[0];
    assert!(
        panic.starts_with("on purpose at ") && panic.contains("bodies.rs"),
        "{panic}"
    );
    assert_eq!(told(&report, 2), "rank 2 failed: it panicked");
    assert!(
        report.to_string().contains("rank 2 panicked: on purpose"),
        "{report}"
    );
}

fn a_rank_exits() {
    let report = run(Launch::new("exits", 3));
    assert_eq!(exits(&report)[2], Exit::Code(3), "{report}");
    assert!(told(&report, 2).starts_with("rank 2 failed: "));
}

fn every_rank_fails() {
    let report = run(Launch::new("fails", 2));
    assert_eq!(exits(&report), [Exit::Code(FAILED); 2]);
    let error = report.ranks[1].error.clone().unwrap();
    assert!(error.contains("rank 1 has no luck"), "{error}");
    let report = run(Launch::new("no such body", 1));
    assert_eq!(exits(&report), [Exit::Code(NOT_STARTED)]);
    let error = report.ranks[0].error.clone().unwrap();
    assert!(error.contains("no body `no such body`"), "{error}");
}

fn output_is_kept() {
    let report = run(Launch::new("says", 3));
    for rank in &report.ranks {
        let number = rank.rank;
        let lines = |stream| report.lines(number, stream).collect::<Vec<_>>();
        assert_eq!(lines(Stream::Stdout), [format!("out of {number}")]);
        assert_eq!(lines(Stream::Stderr), [format!("err of {number}")]);
        assert_eq!(rank.result.as_deref(), Some(&rank.pid.to_le_bytes()[..]));
    }
    assert!(report.to_string().contains("[rank 2] out of 2"), "{report}");
}

fn strangers_are_not_noticed() {
    let report = run(Launch::new("strangers", 3));
    assert!(report.is_ok(), "{report}");
}

fn one_rank_disagrees() {
    let report = run(Launch::new("disagrees", 4));
    assert!(report.is_ok(), "{report}");
    let text = told(&report, usize::MAX);
    assert_eq!(
        text,
        "rank 2 disagrees on the bytes requested: it has 4096, the others have 1024"
    );
}

fn a_rank_comes_late() {
    let report = run(Launch::new("comes late", 4));
    assert!(report.is_ok(), "{report}");
    assert_eq!(
        told(&report, usize::MAX),
        "rank(s) 3 did not arrive within 100ms"
    );
}

fn ranks_never_come() {
    let report = run(Launch::new("never comes", 5));
    assert!(report.is_ok(), "{report}");
    let texts: HashSet<_> = report
        .ranks
        .iter()
        .step_by(2)
        .map(|rank| &rank.result)
        .collect();
    assert_eq!(texts.len(), 1, "{report}");
    let text = String::from_utf8(report.ranks[0].result.clone().unwrap()).unwrap();
    assert!(text.contains('1') && text.contains('3'), "{text}");
    assert!(text.ends_with("did not arrive within 100ms"), "{text}");
}

fn ranks_die_with_their_parent() {
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .env(PARENT, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stderr.take().unwrap()).lines();
    let pid = || {
        let line = lines.next().expect("a rank's line").unwrap();
        line.rsplit_once("process ")
            .map(|(_, pid)| pid.parse::<u32>().unwrap())
    };
    let pids: Vec<_> = std::iter::repeat_with(pid).flatten().take(4).collect();
    assert!(pids.iter().all(|&pid| is_alive(pid)), "{pids:?}");
    parent.kill().unwrap();
    parent.wait().unwrap();
    let begun = Instant::now();
    while pids.iter().any(|&pid| is_alive(pid)) {
        assert!(begun.elapsed() < LONG, "they outlive their parent");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process runs; one that only waits for a foster parent to reap it does not.
fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}

fn large_results_and_lingering_children() {
    let report = run(Launch::new("large", 2));
    let results = report.results().unwrap();
    assert!(results.iter().all(|bytes| bytes.len() == 5 << 20));
    let begun = Instant::now();
    let report = run(Launch::new("leaves a child", 1));
    assert!(report.is_ok(), "{report}");
    assert_eq!(
        report.lines(Rank(0), Stream::Stdout).collect::<Vec<_>>(),
        ["before"]
    );
    assert!(begun.elapsed() < LONG);
}
