//! Hydra, the launcher of MPICH, Intel MPI and MVAPICH, and whatever else speaks its PMI.

use super::meeting::Meeting;
use super::vars::Vars;
use super::{Launcher, World, local};
use crate::rank::Rank;

/// srun with `--mpi=pmi2` sets the first two as well; what is local there is Slurm's to say.
pub(super) const HYDRA: Launcher = Launcher {
    name: "Hydra",
    marks: &["MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    beside: &["PMI_RANK", "PMI_SIZE"],
    rank: "PMI_RANK",
    world_size: "PMI_SIZE",
    read,
};

fn read(vars: &mut Vars) -> Option<World> {
    let rank = vars.require("PMI_RANK", "a rank");
    let world_size = vars.require("PMI_SIZE", "a number of ranks");
    let local_rank = vars.require("MPI_LOCALRANKID", "a rank");
    let local_world_size = vars.optional("MPI_LOCALNRANKS", "a number of ranks");
    let meeting = Meeting::read(vars, None, None, None);
    let world = World {
        rank: Rank(rank?),
        world_size: world_size?,
        local_rank: local_rank?,
        local_world_size,
        launcher: HYDRA.name,
        meeting: meeting?,
    };
    let names = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];
    local::check(&world, names, vars);
    Some(world)
}
