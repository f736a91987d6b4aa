//! The embedded backend under the limits that batch systems set: sizes of files, descriptors,
//! addresses, data, threads, and a small `/dev/shm`.
//!
//! What one rank has not enough of is the same typed error on every rank, and the next smaller request
//! works. A limit counts for a whole process, so every case has processes of its own.

#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "a test, which clippy knows only by its attribute"
)]

mod bodies;
mod limit;
mod scratch;

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use bodies::BODIES;
use collectives_testkit::launch::{Launch, PANICKED, Report, dispatch};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::geteuid;

use crate::limit::Limit;
use crate::scratch::{Ranks, Scenario};

/// Far longer than a case takes, and far shorter than any deadline of the ranks.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    dispatch(&BODIES);
    let mut trials: Vec<_> = Scenario::all().into_iter().map(scratch_trial).collect();
    trials.extend([
        trial("a_segment_beyond_the_limit_of_files_fails_alike", || {
            alike("connect", 3, Limit::FileSize, 0, "out of memory: rank 0")
        }),
        trial(
            "ranks_are_on_one_machine_though_one_cannot_read_which",
            || {
                let expected =
                    "rank 2 failed: it cannot say which machine it is on: Too many open files";
                alike("connect", 3, Limit::Descriptors, 2, expected)
            },
        ),
        trial("a_rank_without_a_descriptor_says_so_at_once", || {
            let report = launch("meets", 2, Limit::Descriptors, 1).run()?;
            let error = report.ranks[1].error.clone().unwrap_or_default();
            match error.contains("Too many open files") && !error.contains("did not arrive") {
                true => Ok(()),
                false => Err(report.to_string().into()),
            }
        }),
        trial(
            "a_store_without_descriptors_fails_the_rank_it_cannot_take",
            || {
                let report = launch("meets", 2, Limit::FewDescriptors, 0).run()?;
                every_error_contains(&report, "Too many open files")
            },
        ),
        needs_root(trial("a_world_without_threads_ends_at_once", no_threads)),
        small_shared_memory(),
    ]);
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, test: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::test(name, test)
}

fn skipped(trial: Trial, why: &str) -> Trial {
    trial
        .with_ignored_flag(true)
        .with_kind(format!("skip: {why}"))
}

fn launch(body: &str, ranks: usize, limit: Limit, limited: usize) -> Launch {
    Launch::new(body, ranks)
        .deadline(PATIENCE)
        .var(limit::VARIABLE, limit.name())
        .var(limit::RANK, limited.to_string())
}

/// Every rank returns the same text, with this in it.
fn alike(
    body: &str,
    ranks: usize,
    limit: Limit,
    limited: usize,
    expected: &str,
) -> Result<(), Failed> {
    told_alike(&launch(body, ranks, limit, limited).run()?, expected)
}

fn told_alike(report: &Report, expected: &str) -> Result<(), Failed> {
    let results = report.results().ok_or_else(|| report.to_string())?;
    let texts: Vec<_> = results
        .iter()
        .map(|text| String::from_utf8_lossy(text))
        .collect();
    let same = texts.iter().all(|text| *text == texts[0]);
    match same && texts[0].contains(expected) {
        true => Ok(()),
        false => Err(format!("expected `{expected}`, found {texts:?}").into()),
    }
}

fn every_error_contains(report: &Report, expected: &str) -> Result<(), Failed> {
    let told = |error: &Option<String>| error.as_ref().is_some_and(|text| text.contains(expected));
    match report.ranks.iter().all(|rank| told(&rank.error)) {
        true => Ok(()),
        false => Err(report.to_string().into()),
    }
}

fn scratch_trial(scenario: Scenario) -> Trial {
    let name = scenario.name();
    trial(&name, move || {
        let (ranks, limited) = match scenario.ranks {
            Ranks::Threads => (1, 0),
            Ranks::Processes => (scratch::RANKS, scratch::RANKS - 1),
        };
        let launch = launch("scratch", ranks, scenario.limit, limited);
        let launch = launch.var(scratch::POLICY, scenario.policy);
        let launch = launch.var(scratch::KIND, format!("{:?}", scenario.ranks));
        told_alike(&launch.run()?, &scenario.expected(limited))
    })
}

fn no_threads() -> Result<(), Failed> {
    let report = launch("threads", 1, Limit::Threads, 0).run()?;
    let rank = &report.ranks[0];
    let told = rank
        .panics
        .iter()
        .any(|text| text.contains("no thread for the rank"));
    match rank.exit == collectives_testkit::launch::Exit::Code(PANICKED) && told {
        true => Ok(()),
        false => Err(report.to_string().into()),
    }
}

fn needs_root(trial: Trial) -> Trial {
    match geteuid().is_root() {
        true => trial,
        false => skipped(trial, "it takes root to become a user with few threads"),
    }
}

/// The cases whose ranks are processes, again, where `/dev/shm` has room for nothing.
fn small_shared_memory() -> Trial {
    let mount = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec \"$@\"";
    let within = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", mount, "sh"]);
        command.args(words).stdin(Stdio::null());
        command
    };
    let permitted = within(&["true"]).output();
    let trial = trial("processes_need_no_dev_shm", move || {
        let program = std::env::current_exe()?;
        let program = program.to_str().ok_or("the path is not Unicode")?;
        let output = within(&[program, "processes_and_geometric"]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        match output.status.success() && text.contains("test result: ok") {
            true => Ok(()),
            false => Err(text.into_owned().into()),
        }
    });
    match permitted {
        Ok(output) if output.status.success() => trial,
        Ok(output) => skipped(trial, String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => skipped(trial, &error.to_string()),
    }
}
