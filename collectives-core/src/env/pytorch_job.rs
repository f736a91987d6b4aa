//! Kubeflow's `PyTorchJob`, and whatever else starts one rank a pod: torchrun's variables, and no local
//! rank.

use super::torchrun::meeting;
use super::vars::Vars;
use super::{Launcher, World, local};
use crate::rank::Rank;

/// It speaks last: in a script that a launcher runs, the same variables say less than the launcher
/// does.
pub(super) const PYTORCH_JOB: Launcher = Launcher {
    name: "PyTorchJob",
    marks: &["RANK", "WORLD_SIZE"],
    beside: &["LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
    rank: "RANK",
    world_size: "WORLD_SIZE",
    read,
};

fn read(vars: &mut Vars) -> Option<World> {
    let rank: Option<u32> = vars.require("RANK", "a rank");
    let world_size = vars.require("WORLD_SIZE", "a number of ranks");
    let local_world_size = vars.optional("LOCAL_WORLD_SIZE", "a number of ranks");
    let meeting = meeting(vars);
    let world = World {
        rank: Rank(rank?),
        world_size: world_size?,
        local_rank: local_rank(Rank(rank?), local_world_size, vars)?,
        local_world_size,
        launcher: PYTORCH_JOB.name,
        meeting: meeting?,
    };
    let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
    local::check(&world, names, vars);
    Some(world)
}

/// Alone on its machine, unless it is said how many are, and then they are counted machine by machine.
fn local_rank(rank: Rank, local_world_size: Option<usize>, vars: &mut Vars) -> Option<usize> {
    let Some(size) = local_world_size else {
        return Some(0);
    };
    let local = rank.index().checked_rem(size);
    if local.is_none() {
        vars.fault(format!("LOCAL_WORLD_SIZE={size} is no number of ranks"));
    }
    local
}
