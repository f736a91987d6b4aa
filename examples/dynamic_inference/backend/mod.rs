//! What the ranks are: one file for each backend, all of which serve the same workload.
//!
//! A backend starts as many ranks as the options say, gives each a communicator and a [`Gauge`], has
//! it run [`serve`](crate::workload::serve), and returns what each rank saw, in rank order.

mod host;
#[cfg(target_os = "linux")]
mod host_processes;
#[cfg(target_os = "linux")]
mod mpi;
#[cfg(target_os = "linux")]
mod nccl;
#[cfg(target_os = "linux")]
mod processes;

use std::error::Error;
use std::fmt;

use clap::ValueEnum;
use collectives_alloc::config::ScratchConfig;
#[cfg(target_os = "linux")]
use collectives_core::communicator::Communicator;

use crate::options::Options;
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::trace::Trace;

/// What the workload runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The embedded backend: each rank is a thread.
    #[default]
    Host,
    /// The embedded backend: each rank is a process of this machine.
    #[cfg(target_os = "linux")]
    HostProcesses,
    /// MPI: each rank is a process that its launcher starts. Needs the feature `system-mpi`.
    #[cfg(target_os = "linux")]
    Mpi,
    /// NCCL: each rank is a process and takes the next GPU, or shares the last of them.
    #[cfg(target_os = "linux")]
    Nccl,
}

/// One policy's run, as every rank sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) options: &'a Options,
    pub(crate) trace: &'a Trace,
    pub(crate) config: &'a ScratchConfig,
    pub(crate) progress: &'a Progress,
}

/// What only the backend can tell of a rank's device.
pub(crate) trait Gauge: fmt::Debug {
    /// Free bytes of the device, whoever uses the others.
    fn free_bytes(&self) -> Option<usize> {
        None
    }

    /// Bytes of ordinary memory that this rank has and has not given back.
    fn ordinary_bytes(&self) -> usize {
        0
    }

    /// Ranks that share the device.
    fn sharers(&self) -> usize {
        1
    }
}

/// A rank that has joined the others.
#[cfg(target_os = "linux")]
type Joined = (Box<dyn Communicator>, Box<dyn Gauge>);

/// The gauge of a backend that can tell nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoGauge;

impl Gauge for NoGauge {}

impl Backend {
    /// Ends this process if it is a rank that another process started. Comes first in `main`.
    pub(crate) fn dispatch() {
        #[cfg(target_os = "linux")]
        processes::dispatch();
    }

    /// The name that reports show.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            #[cfg(target_os = "linux")]
            Self::HostProcesses => "host-processes",
            #[cfg(target_os = "linux")]
            Self::Mpi => "mpi",
            #[cfg(target_os = "linux")]
            Self::Nccl => "nccl",
        }
    }

    /// Those of these policies that the backend can serve. Where processes share their windows by
    /// mapping each other's files, memory cannot grow under a window, which `arena` needs.
    pub(crate) fn policies<'a>(self, all: &[&'a str]) -> Vec<&'a str> {
        let grows = match self {
            Self::Host => true,
            #[cfg(target_os = "linux")]
            Self::Nccl => true,
            #[cfg(target_os = "linux")]
            Self::HostProcesses | Self::Mpi => false,
        };
        let serves = |name: &&str| grows || *name != "arena";
        all.iter().copied().filter(serves).collect()
    }

    /// Runs the job on all ranks.
    pub(crate) fn run(self, job: &Job<'_>) -> Result<Vec<Outcome>, Box<dyn Error>> {
        match self {
            Self::Host => host::run(job),
            #[cfg(target_os = "linux")]
            Self::HostProcesses => processes::run(job, Vec::new()),
            #[cfg(target_os = "linux")]
            Self::Mpi => processes::run(job, mpi::launcher(job.options.ranks)?),
            #[cfg(target_os = "linux")]
            Self::Nccl => {
                nccl::check()?;
                processes::run(job, Vec::new())
            }
        }
    }
}
