//! The suite that needs a GPU, a driver and NCCL.
//!
//! Ranks are processes: this binary again, with its place in the environment. Every case is listed,
//! for every world size; where something is missing each is ignored, with the reason beside its
//! name. `COLLECTIVES_REQUIRE_GPU=1` turns those into failures, `COLLECTIVES_GPU_RANKS=2,4` chooses
//! world sizes.

mod endurance;
mod failing;
mod global;
mod graphs;
mod memory;
mod operations;
mod parent;
mod paths;
mod rank;
mod scratch;
mod values;
mod windows;

use std::env;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use rank::Case;

/// Cases that leave the world as it was; they share its processes.
const SHARED: &[Case] = &[
    ("sums_of_every_type_are_exact", operations::sums),
    ("every_reduction_is_exact", operations::reductions),
    ("every_operation_moves_what_it_should", operations::movement),
    ("parts_of_different_length", operations::uneven),
    ("groups_and_messages", operations::groups),
    ("averages_of_every_float", operations::averages),
    ("host_slices", operations::host_slices),
    ("split_renumbers_and_works", operations::split),
    ("kernels_are_what_the_table_says", paths::kernels),
    ("kernels_by_size_are_told", paths::sweep),
    ("a_selected_kernel_is_used_or_refused", paths::selection),
    ("staged_by_exact", scratch::exact),
    ("staged_by_replace", scratch::replace),
    ("staged_by_geometric", scratch::geometric),
    ("staged_by_geometric_class", scratch::geometric_class),
    ("staged_by_reserved", scratch::reserved),
    ("staged_by_arena", scratch::arena),
    ("graphs_replay_across_growths", endurance::replays),
    ("a_stream_of_somebody_else", graphs::foreign_stream),
    ("many_captures_leave_nothing", endurance::captures),
    ("streams_and_graphs_share_a_slot_in_order", graphs::mixed),
    ("a_global_capture_elsewhere_is_unharmed", global::capture),
    (
        "a_closed_communicator_stays_for_its_graphs",
        graphs::close_first,
    ),
    ("every_drop_order_ends", graphs::drop_orders),
    ("an_extended_window_shares_its_bytes", windows::extended),
    ("peers_are_reached_by_address", windows::peers),
    (
        "what_cannot_be_registered_is_refused_everywhere",
        windows::refused,
    ),
    ("different_windows_are_caught", windows::mismatch),
];

/// Cases after which the world is gone.
const ALONE: &[Case] = &[
    (
        "set_up_ends_when_a_peer_stays_away",
        failing::missing_in_set_up,
    ),
    (
        "registration_ends_when_a_peer_stays_away",
        failing::missing_in_registration,
    ),
    (
        "set_up_ends_when_a_peer_is_killed",
        failing::killed_in_set_up,
    ),
    (
        "registration_ends_when_a_peer_is_killed",
        failing::killed_in_registration,
    ),
    ("work_ends_when_a_peer_exits", failing::peer_exits),
    ("work_ends_when_a_peer_hangs", failing::peer_hangs),
    ("an_abort_reaches_everybody", failing::abort),
];

fn main() -> ExitCode {
    if let Some(place) = rank::Place::from_env() {
        return rank::run(&place, SHARED.iter().chain(ALONE).chain(memory::CASES));
    }
    let mut arguments = Arguments::from_args();
    // One GPU, one world at a time.
    arguments.test_threads = Some(1);
    let missing = collectives_nccl::setup::check_platform().err();
    let reason = missing.map(|error| error.kind().to_string());
    let required = env::var("COLLECTIVES_REQUIRE_GPU").is_ok_and(|value| value == "1");
    let chosen = env::var("COLLECTIVES_GPU_RANKS").unwrap_or_else(|_| "1,2,4,8".to_owned());
    let mut trials = Vec::new();
    for ranks in chosen
        .split(',')
        .filter_map(|text| text.trim().parse().ok())
    {
        for (alone, cases) in [(false, SHARED), (true, ALONE), (true, memory::CASES)] {
            if alone && ranks == 1 {
                continue;
            }
            for (name, _) in cases {
                trials.push(trial(name, ranks, alone, reason.as_deref(), required));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(
    name: &'static str,
    ranks: usize,
    alone: bool,
    reason: Option<&str>,
    required: bool,
) -> Trial {
    let why = reason.map(ToOwned::to_owned);
    let trial = Trial::test(format!("{ranks}_ranks::{name}"), move || {
        if let Some(why) = why {
            return Err(format!("cannot run here: {why}").into());
        }
        parent::outcome(name, ranks, alone).map_err(Into::into)
    });
    match reason {
        Some(reason) => trial
            .with_kind(format!("skipped: {reason}"))
            .with_ignored_flag(!required),
        None => trial,
    }
}

/// What a case may say.
type Outcome = Result<(), String>;

/// Turns an error into words, with where it came from.
trait Said<T> {
    fn said(self, what: &str) -> Result<T, String>;
}

impl<T, E: std::fmt::Display> Said<T> for Result<T, E> {
    fn said(self, what: &str) -> Result<T, String> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

/// Fails with words unless something holds.
fn ensure(holds: bool, words: impl FnOnce() -> String) -> Outcome {
    match holds {
        true => Ok(()),
        false => Err(words()),
    }
}
