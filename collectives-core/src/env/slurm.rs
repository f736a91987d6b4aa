//! Slurm's srun.
//!
//! A batch script that runs a program without srun has `SLURM_PROCID=0` as well, and is alone. The
//! variables of the step tell the two apart.

use super::meeting::Meeting;
use super::vars::Vars;
use super::{Launcher, World, local};
use crate::rank::Rank;

pub(super) const SLURM: Launcher = Launcher {
    name: "Slurm",
    marks: &["SLURM_STEP_NUM_TASKS"],
    beside: &["SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NODELIST"],
    rank: "SLURM_PROCID",
    world_size: "SLURM_STEP_NUM_TASKS",
    read,
};

/// The step's nodes, and where they are not said those of the job, whose first the step's is unless
/// srun was told otherwise.
const NODE_LISTS: [&str; 3] = [
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
];

/// Where ports that are made of job numbers begin, and how many there are: above those that systems
/// reserve, below those that they hand out.
const FIRST_PORT: u64 = 16_384;
const PORTS: u64 = 16_000;

fn read(vars: &mut Vars) -> Option<World> {
    let rank = vars.require("SLURM_PROCID", "a rank");
    let world_size = vars.require("SLURM_STEP_NUM_TASKS", "a number of ranks");
    let local_rank = vars.require("SLURM_LOCALID", "a rank");
    let job: Option<u64> = vars.optional("SLURM_JOB_ID", "a number");
    let step: Option<u64> = vars.optional("SLURM_STEP_ID", "a number");
    let number = job.map(|job| job.wrapping_add(step.unwrap_or(0)));
    let port = number.and_then(|number| u16::try_from(FIRST_PORT + number % PORTS).ok());
    let token = job.map(|job| format!("slurm {job}.{}", step.unwrap_or(0)));
    let meeting = match Meeting::is_told(vars) {
        true => Meeting::read(vars, None, port, token),
        false => first_node(vars).and_then(|host| Meeting::read(vars, Some(host), port, token)),
    };
    let world = World {
        rank: Rank(rank?),
        world_size: world_size?,
        local_rank: local_rank?,
        // Slurm compresses it, and this is the only place that would need it apart.
        local_world_size: None,
        launcher: SLURM.name,
        meeting: meeting?,
    };
    let names = [
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
    ];
    local::check(&world, names, vars);
    Some(world)
}

/// The node where rank 0 is, unless ranks are placed in some other way than block by block.
fn first_node(vars: &mut Vars) -> Option<String> {
    let Some(name) = NODE_LISTS.into_iter().find(|name| vars.has(name)) else {
        let names = NODE_LISTS.join(", ");
        vars.fault(format!(
            "no host to meet at is known: none of {names} is set, nor MASTER_ADDR or COLLECTIVES_STORE_HOST"
        ));
        return None;
    };
    let nodes: String = vars.optional(name, "a list of hosts")?;
    let host = first_host(&nodes);
    if host.is_none() {
        let nodes = nodes.escape_debug();
        vars.fault(format!(
            "{name}={nodes} is not a list of hosts: set MASTER_ADDR or COLLECTIVES_STORE_HOST"
        ));
    }
    host
}

/// The first of the hosts in a list such as `rack[0-3]node[00-15],login`: of each bracket the first
/// number, as it is written.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(end) = rest.find([',', '[']) {
        host += &rest[..end];
        if rest[end..].starts_with(',') {
            rest = "";
            break;
        }
        let (ranges, after) = rest[end + 1..].split_once(']')?;
        let first = ranges.split([',', '-']).next()?;
        if first.is_empty() || !first.chars().all(|digit| digit.is_ascii_alphanumeric()) {
            return None;
        }
        host += first;
        rest = after;
    }
    host += rest;
    let is_name = !host.is_empty() && !host.contains(']');
    is_name.then_some(host)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("node1", Some("node1"))]
    #[case("node1,node2", Some("node1"))]
    #[case("gpu[003-010,12],login", Some("gpu003"))]
    #[case("gpu[7,9]", Some("gpu7"))]
    #[case("rack[1-2]-a", Some("rack1-a"))]
    #[case("r[1-2]n[1-4]", Some("r1n1"))]
    #[case("rack[0-3]node[00-15]", Some("rack0node00"))]
    #[case("a[1-2]b[3,5-6]-c,d", Some("a1b3-c"))]
    #[case("broken[1-2", None)]
    #[case("broken[]", None)]
    #[case("broken[-2]", None)]
    #[case("broken]", None)]
    #[case("broken[a[1-2]]", None)]
    #[case(",broken", None)]
    #[case("", None)]
    fn the_first_host_hosts_the_store(#[case] list: &str, #[case] host: Option<&str>) {
        assert_eq!(first_host(list).as_deref(), host);
    }
}
