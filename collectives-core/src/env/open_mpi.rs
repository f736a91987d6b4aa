//! Open MPI's mpirun, and prte's.

use super::meeting::Meeting;
use super::vars::Vars;
use super::{Launcher, World, local};
use crate::rank::Rank;

pub(super) const OPEN_MPI: Launcher = Launcher {
    name: "Open MPI",
    marks: &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    beside: &["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"],
    rank: "OMPI_COMM_WORLD_RANK",
    world_size: "OMPI_COMM_WORLD_SIZE",
    read,
};

fn read(vars: &mut Vars) -> Option<World> {
    let [rank_name, size_name] = [OPEN_MPI.marks[0], OPEN_MPI.marks[1]];
    let [local_name, local_size_name] = [OPEN_MPI.beside[0], OPEN_MPI.beside[1]];
    let rank = vars.require(rank_name, "a rank");
    let world_size = vars.require(size_name, "a number of ranks");
    let local_rank = vars.require(local_name, "a rank");
    let local_world_size = vars.optional(local_size_name, "a number of ranks");
    let meeting = Meeting::read(vars, None, None, None);
    let world = World {
        rank: Rank(rank?),
        world_size: world_size?,
        local_rank: local_rank?,
        local_world_size,
        launcher: OPEN_MPI.name,
        meeting: meeting?,
    };
    let names = [rank_name, size_name, local_name, local_size_name];
    local::check(&world, names, vars);
    Some(world)
}
