//! What is launched, and what must have become of it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use collectives_mpi::launcher::Launcher;
use collectives_testkit::launch::{Exit, Launch, RankReport, Report};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::counts;

type Verdict = Result<(), Failed>;
type Test = fn() -> Verdict;

/// More than any of them takes, and less than a hang that nobody would wait for.
const DEADLINE: Duration = Duration::from_secs(30);

/// For two gigabytes a rank.
const LONG: Duration = Duration::from_secs(240);

pub(crate) fn run() -> ExitCode {
    let tests: [(&str, Test); 17] = [
        ("a_panic_ends_the_job_with_a_message", a_panic),
        ("a_killed_rank_ends_the_job", a_kill),
        ("a_rank_that_fails_ends_the_job", an_error),
        (
            "an_operation_without_a_rank_ends_at_its_deadline",
            an_absent_rank,
        ),
        (
            "a_failure_elsewhere_ends_an_operation_that_waits",
            a_peer_that_failed,
        ),
        ("operations_larger_than_a_call_are_cut", || {
            all_well("large", 3, &[])
        }),
        ("threads_that_take_turns_do_not_mix_operations", || {
            all_well("serialized", 3, &[])
        }),
        ("half_sums_are_rounded_once", || {
            all_well("rounding", 3, &[])
        }),
        ("averages_and_extremes_follow_the_rules", || {
            all_well("rules", 3, &[])
        }),
        ("mpi_that_ended_early_is_an_error", finalized),
        ("mpi_begun_elsewhere_is_taken_as_it_is", || {
            all_well("adopted", 2, &[])
        }),
        ("mpi_for_one_thread_is_refused", funneled),
        ("the_launcher_of_another_mpi_is_named", wrong_launcher),
        ("floats_are_summed_in_rank_order_where_asked", || {
            all_well("ordered", 3, &[])
        }),
        ("ranks_that_order_sums_differently_do_not_connect", || {
            let report = launch("orders-apart", 3).run()?;
            results_say(&report, "rank 1 and rank 0 do not say the same")
        }),
        ("compared_counts_name_the_odd_rank", || {
            all_well("checked-counts", 3, &[])
        }),
        (
            "counts_that_nobody_compares_never_hang",
            counts_not_compared,
        ),
    ];
    let mut arguments = Arguments::from_args();
    // MPI polls: one job fills the machine.
    arguments.test_threads = Some(1);
    let trials = tests
        .into_iter()
        .map(|(name, test)| Trial::test(name, test));
    let trials = trials.chain([beyond_int()]);
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn launch(body: &str, ranks: usize) -> Launch {
    let command = Launcher::of_this_mpi().crowded().command(ranks);
    Launch::new(body, ranks).deadline(DEADLINE).through(command)
}

fn all_well(body: &str, ranks: usize, vars: &[(&str, &str)]) -> Verdict {
    let mut launch = launch(body, ranks);
    for (name, value) in vars {
        launch = launch.var(name, value);
    }
    let report = launch.run()?;
    check(report.is_ok(), &report, "the job failed")
}

fn check(holds: bool, report: &Report, what: &str) -> Verdict {
    match holds {
        true => Ok(()),
        false => Err(format!("{what}:\n{report}").into()),
    }
}

/// The job failed by itself, long before anybody had to end it, and said this.
fn failed_saying(report: &Report, words: &[&str]) -> Verdict {
    let by_itself = report
        .ranks
        .iter()
        .all(|rank| !matches!(rank.exit, Exit::Killed | Exit::Code(124)));
    check(by_itself, report, "somebody had to end the job")?;
    check(!report.is_ok(), report, "the job ended well")?;
    let text = report.to_string();
    for word in words {
        check(
            text.contains(word),
            report,
            &format!("nobody said `{word}`"),
        )?;
    }
    Ok(())
}

/// Every rank ended with a result, which contains these words.
fn results_say(report: &Report, words: &str) -> Verdict {
    for rank in &report.ranks {
        let text = rank.result.as_deref().map(String::from_utf8_lossy);
        let says = text.as_deref().is_some_and(|text| text.contains(words));
        check(
            says,
            report,
            &format!("rank {} has {text:?} to say", rank.rank),
        )?;
    }
    Ok(())
}

fn a_panic() -> Verdict {
    let report = launch("panics", 3).run()?;
    failed_saying(&report, &["a rank panics here", "the job ends", "code 101"])
}

fn a_kill() -> Verdict {
    let report = launch("is-killed", 3).run()?;
    failed_saying(&report, &[])
}

fn an_error() -> Verdict {
    let report = launch("fails", 3).run()?;
    failed_saying(&report, &["this rank has had enough", "the job ends"])
}

fn an_absent_rank() -> Verdict {
    let report = launch("is-late", 3).run()?;
    let words = ["inside all_reduce", "MPI cannot take the operation back"];
    failed_saying(&report, &words)
}

fn a_peer_that_failed() -> Verdict {
    let report = launch("aborts", 3).run()?;
    failed_saying(&report, &["inside all_reduce", "rank 1 failed: on purpose"])
}

fn finalized() -> Verdict {
    let report = launch("finalizes", 2).run()?;
    let texts: Vec<_> = report
        .ranks
        .iter()
        .map(|rank| String::from_utf8_lossy(rank.result.as_deref().unwrap_or_default()))
        .collect();
    // A rank that finds out drops its communicator, which the other may hear of before it calls.
    let knows = |text: &str| text.contains("MPI was finalised");
    let hears = |text: &str| text.contains("it dropped the communicator");
    let found = texts.iter().any(|text| knows(text));
    let all = texts.iter().all(|text| knows(text) || hears(text));
    check(found && all, &report, &format!("{texts:?}"))
}

fn funneled() -> Verdict {
    let report = launch("funneled", 1).run()?;
    results_say(&report, "MPI_THREAD_SERIALIZED")
}

/// Runs under the other MPI's launcher, where the machine has one.
fn wrong_launcher() -> Verdict {
    let others = ["mpiexec.mpich", "mpirun.openmpi"];
    let own = Launcher::of_this_mpi().command(2)[0].clone();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there =
        |name: &&&str| std::env::split_paths(&path).any(|folder| folder.join(name).exists());
    let other = others.iter().filter(there).find(|name| own != **name);
    let Some(other) = other else {
        println!("(skipped: this machine has the launcher of one MPI only)");
        return Ok(());
    };
    let mut command: Vec<OsString> = vec![other.into()];
    if other.contains("openmpi") {
        command.extend(["--allow-run-as-root", "--oversubscribe"].map(OsString::from));
    }
    command.extend(["-n", "2"].map(OsString::from));
    let launch = Launch::new("strangers", 2).deadline(DEADLINE);
    let report = launch.through(command).run()?;
    failed_saying(&report, &["each of which is alone", "MPICC"])
}

/// Every rank says how it ended, or the watchdog ended the job; what they say is printed.
fn counts_not_compared() -> Verdict {
    for operation in ["all_reduce", "broadcast", "all_gather"] {
        for count in [8, 1_000_000] {
            let case = format!("{operation} {count}");
            let report = launch("unchecked-counts", 3)
                .var(counts::CASE, &case)
                .run()?;
            let hung = report
                .ranks
                .iter()
                .any(|rank| matches!(rank.exit, Exit::Killed | Exit::Code(124)));
            // Once the watchdog has said so its process ends within seconds. Open MPI's mpirun may hang
            // all the same, with nobody left.
            let ended = report.to_string().contains("collectives-mpi: the job ends");
            check(!hung || ended, &report, "somebody had to end the job")?;
            let said = |rank: &RankReport| match &rank.result {
                Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                None => format!("{:?}", rank.exit),
            };
            let said: Vec<_> = report.ranks.iter().map(said).collect();
            println!("{case}: {}", said.join("; "));
        }
    }
    Ok(())
}

/// Two ranks with a tensor each, what MPI buffers beside it, and the page cache's share.
const ROOM: u64 = 14 << 30;

fn beyond_int() -> Trial {
    let name = "counts_above_an_int_are_carried_for_real";
    let available = available_memory();
    let trial = Trial::test(name, || {
        let report = launch("beyond-int", 2).deadline(LONG).run()?;
        check(report.is_ok(), &report, "the job failed")
    });
    if available >= ROOM {
        return trial;
    }
    let why = format!(
        "skip: {} MiB of memory are free, it takes {}",
        available >> 20,
        ROOM >> 20
    );
    trial.with_ignored_flag(true).with_kind(why)
}

/// Bytes that processes may have yet.
fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kibibytes.unwrap_or(0_u64) << 10
}
