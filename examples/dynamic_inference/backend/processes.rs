//! Ranks as processes: this program again, with the same command line and its place in the world.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::env::World;
use collectives_core::error::{Error as CollectiveError, ErrorKind, Result as CollectiveResult};
use collectives_testkit::launch::{self, Launch};

use super::{Backend, Job, Joined, host_processes, mpi, nccl};
use crate::options::Options;
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::workload;

/// The name of the body that ranks run.
const BODY: &str = "dynamic-inference";
/// Which of the configurations a rank is to run, by its place among them.
const POLICY: &str = "DYNAMIC_INFERENCE_POLICY";
/// How long ranks wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs this rank's part and ends the process, or returns where the process is no rank.
pub(super) fn dispatch() {
    launch::dispatch(&[(BODY, body)]);
}

/// Starts the ranks, through another launcher if there is a command, and gathers what they saw.
pub(super) fn run(job: &Job<'_>, launcher: Vec<OsString>) -> Result<Vec<Outcome>, Box<dyn Error>> {
    let configs = job.options.scratch_configs(job.trace)?;
    let index = configs.iter().position(|config| config == job.config);
    let index = index.ok_or("the configuration is none of the command line's")?;
    let launch = Launch::new(BODY, job.options.ranks)
        .deadline(Duration::from_secs(job.options.deadline))
        .var(POLICY, index.to_string())
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

fn body(world: &World) -> CollectiveResult<Vec<u8>> {
    let outcome = rank(world).map_err(|error| match error.downcast::<CollectiveError>() {
        Ok(error) => *error,
        Err(other) => CollectiveError::new(ErrorKind::System(other.to_string())),
    })?;
    let json = serde_json::to_vec(&outcome);
    json.map_err(|error| CollectiveError::new(ErrorKind::System(error.to_string())))
}

fn rank(world: &World) -> Result<Outcome, Box<dyn Error>> {
    let options = Options::parse();
    let trace = options.trace.load()?;
    let configs = options.scratch_configs(&trace)?;
    let index: usize = env::var(POLICY)?.parse()?;
    let config = configs.get(index).ok_or("there is no such configuration")?;
    let job = Job {
        options: &options,
        trace: &trace,
        config,
        progress: &Progress::hidden(),
    };
    let bootstrap = match options.backend {
        Backend::Mpi => mpi::bootstrap(PATIENCE)?,
        _ => world.bootstrap(PATIENCE)?,
    };
    let (comm, gauge) = join(&options, world, Arc::clone(&bootstrap))?;
    let outcome = workload::serve(comm, &*gauge, &job)?;
    // The rank that hosts the control plane leaves last; how this ends tells nothing any more.
    let _left = bootstrap.all_gather("dynamic-inference/end", &[], PATIENCE);
    Ok(outcome)
}

/// This rank's communicator, on a backend whose ranks are processes.
fn join(
    options: &Options,
    world: &World,
    bootstrap: Arc<dyn Bootstrap>,
) -> Result<Joined, Box<dyn Error>> {
    let granule = options.granule.get();
    match options.backend {
        Backend::HostProcesses => Ok(host_processes::join(bootstrap, granule)?),
        Backend::Mpi => Ok(mpi::join(bootstrap, granule)?),
        Backend::Nccl => Ok(nccl::join(world, bootstrap)?),
        Backend::Host => Err("ranks of the embedded backend are threads".into()),
    }
}
