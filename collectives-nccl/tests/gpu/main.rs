//! The suite that needs a GPU, a driver and NCCL.
//!
//! Ranks are processes: this binary again, with its place in the environment. Every case is listed,
//! for every world size; where something is missing, of the machine or of this version of NCCL, it is
//! ignored, with the reason beside its name. `COLLECTIVES_REQUIRE_GPU=1` makes failures of those that
//! miss something of the machine, `COLLECTIVES_GPU_RANKS=2,4` chooses
//! world sizes.

mod case;
mod eight_bits;
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
mod several;
mod values;
mod windows;

use std::env;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use case::{Case, Here, Missing};

/// Cases that leave the world as it was; they share its processes.
const SHARED: &[Case] = &[
    Case::plain("sums_of_every_type_are_exact", operations::sums),
    Case::plain("every_reduction_is_exact", operations::reductions),
    Case::plain("every_operation_moves_what_it_should", operations::movement),
    Case::plain("parts_of_different_length", operations::uneven),
    Case::plain("groups_and_messages", operations::groups),
    Case::plain("averages_of_every_float", operations::averages),
    Case::plain("eight_bits_saturate", eight_bits::too_large),
    Case::plain("host_slices", operations::host_slices),
    Case::plain("split_renumbers_and_works", operations::split),
    Case::symmetric("kernels_are_what_the_table_says", paths::kernels),
    Case::symmetric("kernels_by_size_are_told", paths::sweep),
    Case::symmetric("a_selected_kernel_is_used_or_refused", paths::selection),
    Case::symmetric("staged_by_exact", scratch::exact),
    Case::symmetric("staged_by_replace", scratch::replace),
    Case::symmetric("staged_by_geometric", scratch::geometric),
    Case::symmetric("staged_by_geometric_class", scratch::geometric_class),
    Case::symmetric("staged_by_reserved", scratch::reserved),
    Case::symmetric("staged_by_arena", scratch::arena),
    Case::symmetric("graphs_replay_across_growths", endurance::replays),
    Case::plain("a_stream_of_somebody_else", graphs::foreign_stream),
    Case::symmetric("many_captures_leave_nothing", endurance::captures),
    Case::symmetric("streams_and_graphs_share_a_slot_in_order", graphs::mixed),
    Case::symmetric("a_global_capture_elsewhere_is_unharmed", global::capture),
    Case::plain(
        "a_closed_communicator_stays_for_its_graphs",
        graphs::close_first,
    ),
    Case::plain("every_drop_order_ends", graphs::drop_orders),
    Case::symmetric("an_extended_window_shares_its_bytes", windows::extended),
    Case::symmetric("peers_are_reached_by_address", windows::peers),
    Case::symmetric(
        "what_cannot_be_registered_is_refused_everywhere",
        windows::refused,
    ),
    Case::symmetric("different_windows_are_caught", windows::mismatch),
];

/// Cases after which the world is gone, or that have one of their own.
const ALONE: &[Case] = &[
    Case::plain(
        "set_up_ends_when_a_peer_stays_away",
        failing::missing_in_set_up,
    ),
    Case::symmetric(
        "registration_ends_when_a_peer_stays_away",
        failing::missing_in_registration,
    ),
    Case::plain(
        "set_up_ends_when_a_peer_is_killed",
        failing::killed_in_set_up,
    ),
    Case::symmetric(
        "registration_ends_when_a_peer_is_killed",
        failing::killed_in_registration,
    ),
    Case::plain("work_ends_when_a_peer_exits", failing::peer_exits),
    Case::plain("work_ends_when_a_peer_hangs", failing::peer_hangs),
    Case::plain("an_abort_reaches_everybody", failing::abort),
    Case::symmetric("one_process_drives_every_gpu", several::one_process).on(2),
];

fn main() -> ExitCode {
    if let Some(place) = rank::Place::from_env() {
        return rank::run(&place, SHARED.iter().chain(ALONE).chain(memory::CASES));
    }
    let mut arguments = Arguments::from_args();
    // One GPU, one world at a time.
    arguments.test_threads = Some(1);
    let here = Here::look();
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
            for case in cases {
                let missing = here.missing(case, ranks);
                trials.push(trial(case.name, ranks, alone, missing, required));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(
    name: &'static str,
    ranks: usize,
    alone: bool,
    missing: Option<Missing>,
    required: bool,
) -> Trial {
    let (why, ignored) = match missing {
        None => (None, false),
        Some(Missing::OfMachine(why)) => (Some(why), !required),
        Some(Missing::OfVersion(why) | Missing::Gpus(why)) => (Some(why), true),
    };
    let reason = why.clone();
    let trial = Trial::test(format!("{ranks}_ranks::{name}"), move || {
        if let Some(why) = why {
            return Err(format!("cannot run here: {why}").into());
        }
        parent::outcome(name, ranks, alone).map_err(Into::into)
    });
    match reason {
        Some(reason) => trial
            .with_kind(format!("skipped: {reason}"))
            .with_ignored_flag(ignored),
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
