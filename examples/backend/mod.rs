//! What the ranks of a program are: one file for each backend, all of which run the same program.
//!
//! A backend starts as many ranks as it is told, gives each a communicator and a [`Gauge`], has it run
//! what the program does on a rank, and returns what each rank saw, in rank order.

mod host;
#[cfg(target_os = "linux")]
mod host_processes;
#[cfg(target_os = "linux")]
mod launched;
#[cfg(target_os = "linux")]
mod mpi;
#[cfg(target_os = "linux")]
mod nccl;
#[cfg(target_os = "linux")]
mod processes;
mod start;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result as CollectiveResult;
use collectives_host::model::{DeviceModel, StreamMode};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[cfg(target_os = "linux")]
use launched::world_size;
#[cfg(target_os = "linux")]
pub use processes::{dispatch, job, serve};
pub use start::{MOST_RANKS, Start, command_line};

/// What the ranks of a program run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Backend {
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

/// How many ranks there are, and what their devices are like where the backend lets one choose.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    count: usize,
    granule: usize,
    streams: StreamMode,
    deadline: Duration,
    launched: bool,
}

/// A rank that has joined the others.
#[derive(Debug)]
#[non_exhaustive]
pub struct Joined {
    /// Its end of the communicator.
    pub comm: Box<dyn Communicator>,
    /// What can be told of its device.
    pub gauge: Box<dyn Gauge>,
}

/// What only the backend can tell of a rank's device.
pub trait Gauge: fmt::Debug {
    /// Free bytes of the device, whoever uses the others.
    fn free_bytes(&self) -> Option<usize> {
        None
    }

    /// Bytes of ordinary memory that this rank has and has not given back.
    fn ordinary_bytes(&self) -> usize {
        0
    }

    /// The GPU that the device is, by its number among those the process sees.
    fn gpu(&self) -> Option<usize> {
        None
    }

    /// Ranks that share the device.
    fn sharers(&self) -> usize {
        1
    }

    /// Bytes of symmetric memory that are mapped, once all that can be given back was.
    fn mapped_bytes(&self) -> Option<usize> {
        None
    }
}

impl Ranks {
    /// This many, whose devices map memory in multiples of `granule` bytes and whose streams run their
    /// work at once.
    #[must_use]
    pub fn new(count: usize, granule: usize) -> Self {
        Self {
            count,
            granule,
            streams: StreamMode::Inline,
            deadline: Duration::from_secs(900),
            launched: false,
        }
    }

    /// Streams run beside their rank, on threads of their own.
    #[must_use]
    pub fn with_asynchronous_streams(mut self) -> Self {
        self.streams = StreamMode::Asynchronous;
        self
    }

    /// How long ranks that are processes may run, 15 minutes unless said.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// A launcher started the ranks, of which this process is one, and not the program itself.
    #[must_use]
    pub fn launched(mut self, launched: bool) -> Self {
        self.launched = launched;
        self
    }

    fn model(&self) -> DeviceModel {
        DeviceModel::default()
            .with_granule(self.granule)
            .with_stream_mode(self.streams)
    }
}

impl Backend {
    /// The name that reports show.
    #[must_use]
    pub fn name(self) -> &'static str {
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

    /// Whether every sum has the bits that adding in the order of ranks gives.
    #[must_use]
    pub fn sums_in_rank_order(self) -> bool {
        match self {
            #[cfg(target_os = "linux")]
            Self::Nccl => false,
            _ => true,
        }
    }

    /// Whether memory is on a GPU.
    #[must_use]
    pub fn is_on_gpu(self) -> bool {
        match self {
            #[cfg(target_os = "linux")]
            Self::Nccl => true,
            _ => false,
        }
    }

    /// Runs a program on all ranks: `rank`, where they are threads, and otherwise what the program
    /// gave to [`dispatch`], which is told the number of the `job`. Of [launched](Ranks::launched)
    /// ranks, which all call this, only rank 0 gets what they saw.
    ///
    /// # Errors
    ///
    /// Where the ranks cannot be started, or one of them fails.
    pub fn run<R: Serialize + DeserializeOwned + Send>(
        self,
        ranks: &Ranks,
        job: usize,
        rank: impl Fn(Joined) -> CollectiveResult<R> + Sync,
    ) -> Result<Option<Vec<R>>, Box<dyn Error>> {
        #[cfg(not(target_os = "linux"))]
        let _ = job;
        #[cfg(target_os = "linux")]
        if ranks.launched {
            return Ok(launched::run(self, ranks, job, rank)?);
        }
        let saw = match self {
            Self::Host => Ok(host::run(ranks, rank)?),
            #[cfg(target_os = "linux")]
            Self::HostProcesses => processes::run(ranks, job, Vec::new()),
            #[cfg(target_os = "linux")]
            Self::Mpi => processes::run(ranks, job, mpi::launcher(ranks.count)?),
            #[cfg(target_os = "linux")]
            Self::Nccl => {
                nccl::check()?;
                processes::run(ranks, job, Vec::new())
            }
        };
        saw.map(Some)
    }
}
