//! Ranks as processes: this program again, with the same command line and its place in the world.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::env::World;
use collectives_core::error::{Error as CollectiveError, ErrorKind, Result as CollectiveResult};
use collectives_testkit::launch::{self, Launch};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Backend, Joined, Ranks, host_processes, mpi, nccl};

/// The name of the body that ranks run.
const BODY: &str = "rank";
/// Which of the jobs that its command line asks for a rank is to run.
const JOB: &str = "COLLECTIVES_EXAMPLE_JOB";
/// How long ranks wait for each other.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `rank` and ends this process if it is a rank that another process started. Comes first in
/// `main`; `rank` reads the command line and [`serve`]s.
pub fn dispatch(rank: fn(&World) -> CollectiveResult<Vec<u8>>) {
    launch::dispatch(&[(BODY, rank)]);
}

/// The number of the job that this rank is to run.
///
/// # Errors
///
/// In a process that is no rank.
pub fn job() -> CollectiveResult<usize> {
    let number = env::var(JOB).map_err(|error| system(format!("{JOB}: {error}")))?;
    number
        .parse()
        .map_err(|error| system(format!("{JOB}: {error}")))
}

/// Joins the others, runs this rank's part, and gives what it saw as the parent reads it.
///
/// # Errors
///
/// Where the rank cannot join, and what its part returns.
pub fn serve<R: Serialize>(
    backend: Backend,
    ranks: &Ranks,
    world: &World,
    part: impl FnOnce(Joined) -> CollectiveResult<R>,
) -> CollectiveResult<Vec<u8>> {
    let bootstrap = meet(backend, world)?;
    let saw = part(join(backend, ranks, world, Arc::clone(&bootstrap))?)?;
    // The rank that hosts the control plane leaves last; how this ends tells nothing any more.
    let _left = bootstrap.all_gather("example/end", &[], PATIENCE);
    serde_json::to_vec(&saw).map_err(system)
}

/// Starts the ranks, through another launcher if there is a command, and gathers what they saw.
pub(super) fn run<R: DeserializeOwned>(
    ranks: &Ranks,
    job: usize,
    launcher: Vec<OsString>,
) -> Result<Vec<R>, Box<dyn Error>> {
    let launch = Launch::new(BODY, ranks.count)
        .deadline(ranks.deadline)
        .var(JOB, job.to_string())
        .through(launcher);
    let launch = env::args_os().skip(1).fold(launch, Launch::arg);
    let report = launch.run()?;
    match report.results() {
        Some(results) => Ok(results
            .into_iter()
            .map(serde_json::from_slice)
            .collect::<Result<_, _>>()?),
        None => Err(report.to_string().into()),
    }
}

/// The control plane of ranks that are processes.
pub(super) fn meet(backend: Backend, world: &World) -> CollectiveResult<Arc<dyn Bootstrap>> {
    match backend {
        Backend::Mpi => mpi::bootstrap(PATIENCE),
        _ => world.bootstrap(PATIENCE),
    }
}

/// This rank's communicator, on a backend whose ranks are processes.
pub(super) fn join(
    backend: Backend,
    ranks: &Ranks,
    world: &World,
    bootstrap: Arc<dyn Bootstrap>,
) -> CollectiveResult<Joined> {
    match backend {
        Backend::HostProcesses => host_processes::join(bootstrap, ranks),
        Backend::Mpi => mpi::join(bootstrap, ranks),
        Backend::Nccl => nccl::join(world, bootstrap),
        Backend::Host => Err(system("ranks of the embedded backend are threads")),
    }
}

pub(super) fn system(what: impl ToString) -> CollectiveError {
    CollectiveError::new(ErrorKind::System(what.to_string()))
}
