//! torchrun, and everything that sets the same variables.

use super::meeting::Meeting;
use super::store::Store;
use super::vars::Vars;
use super::{Launcher, World, local};
use crate::rank::Rank;

pub(super) const TORCHRUN: Launcher = Launcher {
    name: "torchrun",
    marks: &["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    beside: &["MASTER_ADDR", "MASTER_PORT"],
    rank: "RANK",
    world_size: "WORLD_SIZE",
    read,
};

fn read(vars: &mut Vars) -> Option<World> {
    let rank = vars.require("RANK", "a rank");
    let world_size = vars.require("WORLD_SIZE", "a number of ranks");
    let local_rank = vars.require("LOCAL_RANK", "a rank");
    let local_world_size = vars.optional("LOCAL_WORLD_SIZE", "a number of ranks");
    let meeting = meeting(vars);
    let world = World {
        rank: Rank(rank?),
        world_size: world_size?,
        local_rank: local_rank?,
        local_world_size,
        launcher: TORCHRUN.name,
        meeting: meeting?,
    };
    let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
    local::check(&world, names, vars);
    Some(world)
}

pub(super) fn meeting(vars: &mut Vars) -> Option<Meeting> {
    if let Some(file) = Meeting::file(vars) {
        return Some(file);
    }
    let host: Option<String> = vars.require("MASTER_ADDR", "a host");
    if host.as_deref() == Some("") {
        vars.fault("MASTER_ADDR is empty".to_owned());
    }
    let port = vars.require("MASTER_PORT", "a port");
    let port = beside_agent(vars, port);
    let run = vars.optional("TORCHELASTIC_RUN_ID", "a token");
    Store::read(vars, host, port, run).map(Meeting::Tcp)
}

/// Not the port that torchrun's agent has taken for itself.
fn beside_agent(vars: &mut Vars, master: Option<u16>) -> Option<u16> {
    let agent: Option<String> = vars.optional("TORCHELASTIC_USE_AGENT_STORE", "a truth value");
    let taken = agent.is_some_and(|agent| agent.eq_ignore_ascii_case("true"));
    match master {
        Some(port) if taken => Some(port.checked_add(1).unwrap_or(port - 1)),
        port => port,
    }
}
