//! Who this process is, as its launcher says in environment variables.
//!
//! [`World::from_env`] asks each launcher in turn whether its variables are there:
//!
//! | launcher | variables |
//! |---|---|
//! | torchrun | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`; `LOCAL_WORLD_SIZE` if present |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE` |
//! | Hydra | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
//! | Slurm | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`; the rest as said below |
//! | PyTorchJob | torchrun's without `LOCAL_RANK` |
//!
//! They are asked in this order, so that a launcher which another one started speaks. Hydra is what
//! starts the ranks of MPICH, Intel MPI and MVAPICH. One of which variables are missing yields to the
//! next that is complete and says the same rank and world size where both say them: a script may export
//! `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` and call `srun` or `mpirun`. Two that do not fit
//! together are an error that names both.
//!
//! What starts one rank a pod, as Kubeflow's `PyTorchJob` does, says no local rank. It is 0 then, or
//! the rank modulo `LOCAL_WORLD_SIZE` where that is set. Several ranks of a machine with neither would all
//! take its first device, so give them `LOCAL_RANK`.
//!
//! torchrun says where ranks meet. Under Slurm it is the first host of `SLURM_STEP_NODELIST`, or of
//! `SLURM_JOB_NODELIST` where that is not set, at a port made of the job's and the step's number. Open MPI and Hydra do not say: the ranks meet over MPI
//! (`MpiBootstrap` of `collectives-mpi`), or as the variables say that every launcher passes on:
//!
//! | variable | meaning |
//! |---|---|
//! | `COLLECTIVES_STORE_FILE` | a file that all ranks have in common, by which they [meet](crate::file_store) |
//! | `COLLECTIVES_STORE_HOST` | the host of rank 0's store, in place of the launcher's or of `MASTER_ADDR` |
//! | `COLLECTIVES_STORE_PORT` | its port, in place of the launcher's or of `MASTER_PORT` |
//! | `COLLECTIVES_STORE_TOKEN` | what the ranks of one session have in common and those of another have not |
//! | `COLLECTIVES_STORE_LISTENER` | `stdin`: rank 0's standard input is the listening socket |
//!
//! torchrun itself often serves a store of its own on `MASTER_PORT`, and says so with
//! `TORCHELASTIC_USE_AGENT_STORE=True`. The next port is taken then, unless
//! `COLLECTIVES_STORE_PORT` says which; without a token, torchrun's `TORCHELASTIC_RUN_ID` is one.
//!
//! A new launcher is a file with a `Launcher` in it, and a line in the list.

mod choice;
mod hydra;
mod local;
mod meeting;
mod open_mpi;
mod pytorch_job;
mod slurm;
mod store;
mod torchrun;
mod vars;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use meeting::Meeting;
use vars::Vars;

use crate::bootstrap::Bootstrap;
use crate::error::{Error, Misuse, Result};
use crate::file_store::FileJoin;
use crate::rank::Rank;
use crate::tcp_store::Join;

/// Tried in this order; the first one of which any variable is set speaks, if it is complete.
const LAUNCHERS: [&Launcher; 4] = [
    &torchrun::TORCHRUN,
    &open_mpi::OPEN_MPI,
    &hydra::HYDRA,
    &slurm::SLURM,
];

/// Speaks where no other one is complete.
const LAST: &Launcher = &pytorch_job::PYTORCH_JOB;

/// One rank's place among all ranks, and where they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct World {
    /// This rank.
    pub rank: Rank,
    /// Ranks in the world.
    pub world_size: usize,
    /// This rank among those of its machine, by which it chooses its device.
    pub local_rank: usize,
    /// Ranks on this machine, if the launcher says so.
    pub local_world_size: Option<usize>,
    /// The launcher whose variables were found.
    pub launcher: &'static str,
    meeting: Meeting,
}

/// One way of starting ranks.
struct Launcher {
    name: &'static str,
    /// Any of them says that this launcher was at work.
    marks: &'static [&'static str],
    /// What else it reads, for errors.
    beside: &'static [&'static str],
    /// The variables of the rank and of the world size.
    rank: &'static str,
    world_size: &'static str,
    read: fn(&mut Vars) -> Option<World>,
}

impl World {
    /// This process's place, from its environment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::error::ErrorKind::Config), saying which variables were looked
    /// for, which of them are missing, and what is wrong with those that are there.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(std::env::vars_os())
    }

    /// As [`World::from_env`], with these variables instead of the environment.
    ///
    /// # Errors
    ///
    /// Those of [`World::from_env`].
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Result<Self>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let mut vars = Vars::new(vars);
        choice::world(&mut vars).map_err(Error::config)
    }

    /// This rank's end of the control plane, over [TCP](crate::tcp_store), or by a
    /// [file](crate::file_store) where one is given.
    ///
    /// Over TCP it waits for rank 0's store until the deadline, and for no other rank.
    ///
    /// # Errors
    ///
    /// Those of [`Join::join`] and [`FileJoin::join`];
    /// [`ErrorKind::Config`](crate::error::ErrorKind::Config) when nobody says where the ranks meet;
    /// [`ErrorKind::System`](crate::error::ErrorKind::System) when standard input should be the
    /// listener and is none.
    pub fn bootstrap(&self, deadline: Duration) -> Result<Arc<dyn Bootstrap>> {
        if let Meeting::File(path) = &self.meeting {
            let join = FileJoin::new(path, self.rank, self.world_size);
            return join.deadline(deadline).join();
        }
        Ok(Arc::new(self.place()?.deadline(deadline).join()?))
    }

    /// Whether it is known where the ranks meet, so that [`World::bootstrap`] can work.
    #[must_use]
    pub fn knows_where_to_meet(&self) -> bool {
        !matches!(self.meeting, Meeting::Unsaid)
    }

    /// The place that [`World::bootstrap`] takes, for who wants to set more than its deadline.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::System`](crate::error::ErrorKind::System) when standard input should be the
    /// listener and is none; [`ErrorKind::Config`](crate::error::ErrorKind::Config) when nobody says
    /// where the ranks meet.
    pub fn place(&self) -> Result<Join> {
        let store = match &self.meeting {
            Meeting::Tcp(store) => store,
            Meeting::File(path) => {
                let text = format!("the ranks meet at the file {}", path.display());
                return Err(Misuse::Other(text).into());
            }
            Meeting::Unsaid => return Err(meeting::unsaid(self.launcher)),
        };
        let join = Join::new(self.rank, self.world_size, store.host.clone(), store.port);
        let join = join.token(store.token.clone());
        if store.inherited && self.rank == Rank(0) {
            return Ok(join.listener(store::listener_on_stdin()?));
        }
        Ok(join)
    }
}

#[cfg(test)]
mod tests;
