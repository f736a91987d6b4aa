//! Collectives over MPI: CPU clusters run on the engine they have.
//!
//! * `communicator::MpiCommunicator` is a rank's end, on a `HostDevice`: streams, graphs and windows
//!   are those of the embedded backend, bytes travel by MPI.
//! * `bootstrap::MpiBootstrap` is a control plane for any backend whose ranks an MPI launcher started,
//!   NCCL's among them.
//! * `environment::Mpi` is MPI itself: initialised once, its errors returned, and ended with the
//!   process, so that a rank that fails ends the job with a message and never a hang.
//! * `launcher::Launcher` is the command that starts ranks of the MPI this was built with.
//!
//! # The feature `system-mpi`
//!
//! It links the MPI that `mpicc`, or what `MPICC` names, belongs to; Open MPI and MPICH are tested.
//! It is off unless asked for: without it this crate is [`availability`] and nothing else, and needs
//! no MPI.
//!
//! # What MPI decides
//!
//! * **Threads.** With `MPI_THREAD_MULTIPLE`, each asynchronous stream runs its operations on a thread
//!   of its own, and communicators do not wait for each other. With `MPI_THREAD_SERIALIZED` all
//!   operations of a process run one at a time, in the order in which they were enqueued on whichever
//!   communicator: every rank must enqueue in one order across communicators. Less is refused.
//! * **Sums.** Integers and 32 and 64-bit floats are summed and multiplied by MPI, in an order of its
//!   choice, unless `Mpi::sum_in_rank_order` says otherwise; what is exact in any order is equal
//!   everywhere. Everything else, 16 and 8-bit floats,
//!   smallest and largest floats, pre-multiplied sums, is [exchanged and folded](collectives_core::reduce)
//!   in rank order, with one rounding.
//! * **Disagreement.** Calls are not compared, unless `Checked` of `collectives-alloc` is around the
//!   communicator. Counts that differ without it: where too much arrives the message is mostly
//!   truncated, which is an error there and a failed peer on the others; where too little does,
//!   elements are stale, and nobody says so. MPICH's all-reduce ends well everywhere, with wrong sums.
//! * **Time.** MPI cannot take an operation back, so the memory of one that waits for ever can never
//!   be given back either. When its deadline passes, or its communicator failed elsewhere, a
//!   watchdog ends the job with a message. Where calls are compared they wait before anything is
//!   enqueued, and get a typed error.

#[cfg(feature = "system-mpi")]
pub mod bootstrap;
#[cfg(feature = "system-mpi")]
pub mod communicator;
#[cfg(feature = "system-mpi")]
pub mod environment;
#[cfg(feature = "system-mpi")]
pub mod launcher;

#[cfg(feature = "system-mpi")]
mod arithmetic;
#[cfg(feature = "system-mpi")]
mod error;
#[cfg(feature = "system-mpi")]
mod exit;
#[cfg(feature = "system-mpi")]
mod folded;
#[cfg(feature = "system-mpi")]
mod group;
#[cfg(feature = "system-mpi")]
mod launched;
#[cfg(feature = "system-mpi")]
mod messages;
#[cfg(feature = "system-mpi")]
mod movement;
#[cfg(feature = "system-mpi")]
mod raw;
#[cfg(feature = "system-mpi")]
mod reductions;
#[cfg(feature = "system-mpi")]
mod requests;
#[cfg(feature = "system-mpi")]
mod transport;
#[cfg(feature = "system-mpi")]
mod watchdog;

use collectives_core::error::{Error, Result, Unsupported};

/// Whether this build has MPI, or what to do about it.
///
/// # Errors
///
/// [`Unsupported`] without the feature `system-mpi`, saying what was left out and what to install.
pub fn availability() -> Result<()> {
    if cfg!(feature = "system-mpi") {
        return Ok(());
    }
    let text = "collectives-mpi was built without its feature `system-mpi`, which leaves out the \
                communicator and the bootstrap over MPI. To have them, install an MPI (on Debian \
                `libopenmpi-dev openmpi-bin libclang-dev` or `libmpich-dev mpich libclang-dev`) and \
                build with `--features system-mpi`";
    Err(Error::unsupported(Unsupported::Operation(text.to_owned())).on_backend("mpi"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_mpi_says_what_it_left_out() {
        let available = availability();
        assert_eq!(available.is_ok(), cfg!(feature = "system-mpi"));
        if let Err(error) = available {
            let text = error.to_string();
            for part in ["system-mpi", "libopenmpi-dev", "libmpich-dev", "bootstrap"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }
}
