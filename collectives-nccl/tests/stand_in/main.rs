//! This backend on a driver and a library that are memory of the process, so that its own part is run
//! where there is no GPU: which functions are called in which order, that nothing is left or used after its
//! end, and what becomes of a call that fails, each in turn.
//!
//! The cases share one process, and run one after another.

#[cfg(target_os = "linux")]
mod calls;
#[cfg(target_os = "linux")]
#[expect(dead_code, reason = "shared with the kit over the stand-in")]
mod control;
#[cfg(target_os = "linux")]
mod faults;
#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
mod graphs;
#[cfg(target_os = "linux")]
mod life;
#[cfg(target_os = "linux")]
mod watchdog;
#[cfg(target_os = "linux")]
mod windows;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use libtest_mimic::{Arguments, Trial};

    if let Some(code) = control::run_again() {
        return std::process::ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let cases: &[(&str, fn())] = &[
        (
            "a_life_leaves_nothing_and_does_nothing_wrong",
            calls::whole_life,
        ),
        ("an_eager_call_asks_the_driver_two_things", calls::zero_copy),
        ("a_staged_call_is_two_copies_more", calls::staged),
        ("copies_are_around_whatever_is_staged", calls::staged_order),
        (
            "a_capture_that_somebody_else_began_is_noticed",
            calls::foreign_capture,
        ),
        ("a_wrong_call_reaches_nothing", calls::misuse),
        ("whatever_fails_is_an_error_and_no_hang", faults::everything),
        (
            "memory_that_one_rank_lacks_is_the_same_error_on_all",
            faults::out_of_memory,
        ),
        (
            "another_failure_of_one_rank_is_no_want_of_memory",
            faults::other_failures,
        ),
        (
            "a_buffer_that_one_rank_asks_for_otherwise_is_the_same_error_on_all",
            faults::odd_buffers,
        ),
        (
            "ranks_that_retire_different_windows_are_told_and_keep_both",
            windows::different,
        ),
        (
            "a_window_that_one_rank_is_refused_is_no_rank_s",
            windows::refused_on_one,
        ),
        (
            "memory_that_no_window_can_be_is_refused_on_all_ranks",
            windows::unsuitable,
        ),
        ("a_window_gives_the_addresses_of_peers", windows::peers),
        (
            "a_graph_of_a_barrier_outlives_the_communicator",
            graphs::barrier,
        ),
        (
            "a_communicator_that_graphs_own_is_deferred",
            graphs::deferred,
        ),
        (
            "a_registration_that_a_peer_never_comes_to_is_aborted",
            watchdog::registration,
        ),
        ("work_that_a_peer_never_comes_to_is_aborted", watchdog::work),
        (
            "a_rank_that_waits_hears_of_another_s_failure",
            watchdog::failure,
        ),
        ("a_watchdog_ends_with_its_communicator", watchdog::ends),
    ];
    let trials = cases.iter().map(|&(name, case)| {
        Trial::test(name, move || {
            case();
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: the stand-in is a library of Linux");
}
