//! Two machines and a cable, made of namespaces.
//!
//! A namespace lives as long as a process in it. That process reads from a pipe of ours, so it ends
//! with us, and nothing is left behind however a test ends.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The name of each machine's end of the cable.
const CABLE: &str = "cable0";

/// What the machines of a network have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// The kernel knows IPv6, and every interface, loopback too, goes without it.
    OnlyIpv4,
    /// No interface has an IPv4 address, loopback neither.
    OnlyIpv6,
    Both,
    /// Both, and a listener for IPv6 is one for IPv6 alone unless it says otherwise.
    Separate,
}

/// A machine, until it is dropped.
#[derive(Debug)]
struct Machine {
    holder: Child,
}

#[derive(Debug)]
pub(crate) struct Machines {
    machines: [Machine; 2],
    folder: Folder,
}

/// A folder with a file of host names, until it is dropped.
#[derive(Debug)]
struct Folder(PathBuf);

/// The name of a machine, which means both of its addresses on every network, as it would by DNS.
pub(crate) fn name(index: usize) -> String {
    format!("node-{index}")
}

pub(crate) fn ipv4(index: usize) -> String {
    format!("10.77.0.{}", index + 1)
}

pub(crate) fn ipv6(index: usize) -> String {
    format!("fd77::{}", index + 1)
}

/// Why this process may not make machines, if it may not.
pub(crate) fn refusal() -> Option<String> {
    let folder = Folder::new().map_err(|error| error.to_string());
    let machine = folder.and_then(|folder| {
        let machine = Machine::new(Network::OnlyIpv4, &folder);
        machine.map(drop).map_err(|error| error.to_string())
    });
    machine.err()
}

impl Network {
    /// What a shell does in a new namespace before there is a cable.
    fn set_up(self) -> &'static str {
        match self {
            Self::OnlyIpv4 => {
                "for of in all default lo; do echo 1 >/proc/sys/net/ipv6/conf/$of/disable_ipv6; done; ip link set lo up"
            }
            Self::OnlyIpv6 => "ip link set lo up; ip -4 address flush dev lo",
            Self::Both => "ip link set lo up",
            Self::Separate => "echo 1 >/proc/sys/net/ipv6/bindv6only; ip link set lo up",
        }
    }

    pub(crate) fn has_ipv4(self) -> bool {
        self != Self::OnlyIpv6
    }

    pub(crate) fn has_ipv6(self) -> bool {
        self != Self::OnlyIpv4
    }
}

impl Machine {
    /// A machine that knows the hosts that are listed in a file of this folder.
    fn new(network: Network, folder: &Folder) -> io::Result<Self> {
        let hosts = folder.hosts();
        let script = format!(
            "set -e; mount --bind '{}' /etc/hosts; {}; echo ready; exec cat",
            hosts.display(),
            network.set_up()
        );
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--", "sh", "-c", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut machine = Self {
            holder: command.stderr(Stdio::piped()).spawn()?,
        };
        let mut line = String::new();
        let output = machine.holder.stdout.take();
        output.map_or(Ok(0), |output| BufReader::new(output).read_line(&mut line))?;
        if line.trim() == "ready" {
            return Ok(machine);
        }
        // It says nothing more after what went wrong.
        drop(machine.holder.stdin.take());
        let errors = machine.holder.stderr.take();
        let text = errors.map_or(Ok(String::new()), io::read_to_string)?;
        Err(io::Error::other(text.trim().to_owned()))
    }

    fn pid(&self) -> String {
        self.holder.id().to_string()
    }

    /// A command that runs on this machine.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid(), "--net", "--mount", "--"]);
        command.arg(program).stdin(Stdio::null());
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _status = self.holder.wait();
    }
}

impl Machines {
    pub(crate) fn new(network: Network) -> io::Result<Self> {
        let folder = Folder::new()?;
        let machine = || Machine::new(network, &folder);
        let machines = [machine()?, machine()?];
        let mut cable = Command::new("ip");
        cable.args(["link", "add", CABLE, "netns", &machines[0].pid()]);
        cable.args(["type", "veth", "peer", "name", CABLE]);
        run(cable.args(["netns", &machines[1].pid()]))?;
        for (index, machine) in machines.iter().enumerate() {
            let ip = |words: &[&str]| run(machine.command("ip").args(words));
            ip(&["link", "set", CABLE, "up"])?;
            if network.has_ipv4() {
                ip(&["addr", "add", &format!("{}/24", ipv4(index)), "dev", CABLE])?;
            }
            if network.has_ipv6() {
                // The kernel need not look for duplicates before the address may be used.
                let address = format!("{}/64", ipv6(index));
                ip(&["addr", "add", &address, "dev", CABLE, "nodad"])?;
            }
        }
        Ok(Self { machines, folder })
    }

    pub(crate) fn on(&self, index: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.machines[index].command(program)
    }

    /// A file that both machines see.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.0.join("rendezvous")
    }
}

impl Folder {
    fn new() -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let own = format!("collectives-networks-{}-{number}", std::process::id());
        let folder = Self(std::env::temp_dir().join(own));
        fs::create_dir_all(&folder.0)?;
        let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        for index in 0..2 {
            for address in [ipv4(index), ipv6(index)] {
                hosts += &format!("{address} {}\n", name(index));
            }
        }
        fs::write(folder.hosts(), hosts)?;
        Ok(folder)
    }

    fn hosts(&self) -> PathBuf {
        self.0.join("hosts")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {}", text.trim())))
}
