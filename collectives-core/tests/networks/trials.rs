//! Every network with every way of saying where to meet.

use std::process::{Child, ExitCode, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::machines::{Machines, Network, ipv4, ipv6, name, refusal};
use crate::rank::RANK;

/// How ranks are told where to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// torchrun's variables with a name or an address of loopback; all ranks on one machine.
    Localhost,
    LoopbackIpv4,
    LoopbackIpv6,
    /// torchrun's variables with an address or the name of the first machine.
    Ipv4,
    Ipv6,
    Name,
    /// Slurm's variables, which name the nodes.
    Slurm,
    /// Open MPI's variables, and a file.
    File,
}

const NETWORKS: [(Network, &str); 4] = [
    (Network::OnlyIpv4, "with_ipv4_alone"),
    (Network::OnlyIpv6, "with_ipv6_alone"),
    (Network::Both, "with_both"),
    (Network::Separate, "with_both_and_bindv6only"),
];

const WAYS: [(Way, &str); 8] = [
    (Way::Localhost, "at_localhost"),
    (Way::LoopbackIpv4, "at_ipv4_loopback"),
    (Way::LoopbackIpv6, "at_ipv6_loopback"),
    (Way::Ipv4, "at_an_ipv4_address"),
    (Way::Ipv6, "at_an_ipv6_address"),
    (Way::Name, "at_a_host_name"),
    (Way::Slurm, "at_slurms_first_node"),
    (Way::File, "at_a_file"),
];

/// The machine that each rank is on; the last rank is on the other machine where it can be.
const RANKS: [usize; 3] = [0, 0, 1];

pub(crate) fn run() -> ExitCode {
    let refusal = refusal();
    let trial = |(network, network_name): (Network, &str), (way, way_name): (Way, &str)| {
        let title = format!("ranks_meet_{way_name}_{network_name}");
        let test = move || meet(network, way);
        match &refusal {
            None => Trial::test(title, test),
            Some(why) => Trial::test(title, test)
                .with_ignored_flag(true)
                .with_kind(format!("skip: namespaces are not permitted here: {why}")),
        }
    };
    let mut trials = Vec::new();
    for network in NETWORKS {
        let ways = WAYS.into_iter().filter(|(way, _)| way.is_on(network.0));
        trials.extend(ways.map(|way| trial(network, way)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

impl Way {
    fn is_on(self, network: Network) -> bool {
        match self {
            Self::LoopbackIpv4 | Self::Ipv4 => network.has_ipv4(),
            Self::LoopbackIpv6 | Self::Ipv6 => network.has_ipv6(),
            Self::Localhost | Self::Name | Self::Slurm | Self::File => true,
        }
    }

    fn machines(self) -> Vec<usize> {
        let alone = [Self::Localhost, Self::LoopbackIpv4, Self::LoopbackIpv6];
        match alone.contains(&self) {
            true => vec![0; RANKS.len()],
            false => RANKS.to_vec(),
        }
    }

    fn variables(self, rank: usize, machines: &Machines) -> Vec<(&'static str, String)> {
        let ranks = RANKS.len().to_string();
        let rank = rank.to_string();
        let torchrun = |host: String| {
            vec![
                ("RANK", rank.clone()),
                ("LOCAL_RANK", rank.clone()),
                ("WORLD_SIZE", ranks.clone()),
                ("MASTER_ADDR", host),
                ("MASTER_PORT", "29500".to_owned()),
            ]
        };
        match self {
            Self::Localhost => torchrun("localhost".to_owned()),
            Self::LoopbackIpv4 => torchrun("127.0.0.1".to_owned()),
            Self::LoopbackIpv6 => torchrun("::1".to_owned()),
            Self::Ipv4 => torchrun(ipv4(0)),
            Self::Ipv6 => torchrun(ipv6(0)),
            Self::Name => torchrun(name(0)),
            Self::Slurm => vec![
                ("SLURM_PROCID", rank.clone()),
                ("SLURM_LOCALID", rank),
                ("SLURM_STEP_NUM_TASKS", ranks),
                ("SLURM_STEP_NODELIST", "node-[0-1]".to_owned()),
                ("SLURM_JOB_ID", "17".to_owned()),
            ],
            Self::File => vec![
                ("OMPI_COMM_WORLD_RANK", rank.clone()),
                ("OMPI_COMM_WORLD_LOCAL_RANK", rank),
                ("OMPI_COMM_WORLD_SIZE", ranks),
                (
                    "COLLECTIVES_STORE_FILE",
                    machines.file().to_string_lossy().into_owned(),
                ),
            ],
        }
    }
}

fn meet(network: Network, way: Way) -> Result<(), Failed> {
    let machines = Machines::new(network)?;
    let program = std::env::current_exe()?;
    let start = |(rank, machine): (usize, usize)| {
        let mut command = machines.on(machine, &program);
        command.env_clear().env(RANK, "1");
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command.envs(way.variables(rank, &machines));
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    };
    let ranks = way.machines().into_iter().enumerate().map(start);
    let ranks = ranks.collect::<Result<Vec<Child>, _>>()?;
    let mut faults = Vec::new();
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            faults.push(format!("rank {rank}: {}: {}", output.status, said.trim()));
        }
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(faults.join("\n").into()),
    }
}
