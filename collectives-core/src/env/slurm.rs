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
    read,
};

/// Where ports that are made of job numbers begin, and how many there are: above those that systems
/// reserve, below those that they hand out.
const FIRST_PORT: u64 = 16_384;
const PORTS: u64 = 16_000;

fn read(vars: &mut Vars) -> Option<World> {
    let rank = vars.require("SLURM_PROCID", "a rank");
    let world_size = vars.require("SLURM_STEP_NUM_TASKS", "a number of ranks");
    let local_rank = vars.require("SLURM_LOCALID", "a rank");
    let nodes: Option<String> = vars.optional("SLURM_STEP_NODELIST", "a list of hosts");
    let host = nodes.and_then(|nodes| first_host(&nodes));
    let job: Option<u64> = vars.optional("SLURM_JOB_ID", "a number");
    let step: Option<u64> = vars.optional("SLURM_STEP_ID", "a number");
    let number = job.map(|job| job.wrapping_add(step.unwrap_or(0)));
    let port = number.and_then(|number| u16::try_from(FIRST_PORT + number % PORTS).ok());
    let token = job.map(|job| format!("slurm {job}.{}", step.unwrap_or(0)));
    let meeting = Meeting::read(vars, host, port, token);
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

/// The first of the hosts in a list such as `gpu[003-010,12],login`.
fn first_host(list: &str) -> Option<String> {
    let list = list.trim();
    let end = list.find([',', '[']).unwrap_or(list.len());
    let prefix = &list[..end];
    let host = match list[end..].strip_prefix('[') {
        None => prefix.to_owned(),
        Some(ranges) => {
            let (ranges, after) = ranges.split_once(']')?;
            let first = ranges.split([',', '-']).next()?;
            let suffix = &after[..after.find(',').unwrap_or(after.len())];
            // Hosts of several dimensions are not taken apart.
            (!suffix.contains('[')).then(|| format!("{prefix}{first}{suffix}"))?
        }
    };
    (!host.is_empty()).then_some(host)
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
    #[case("r[1-2]n[1-4]", None)]
    #[case("broken[1-2", None)]
    #[case("", None)]
    fn the_first_host_hosts_the_store(#[case] list: &str, #[case] host: Option<&str>) {
        assert_eq!(first_host(list).as_deref(), host);
    }
}
