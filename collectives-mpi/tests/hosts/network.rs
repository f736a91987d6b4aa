//! Two hosts and a cable, made of namespaces, and gone when this is dropped.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The name of each host's end of the cable.
const CABLE: &str = "mpi0";

pub(crate) struct Network {
    hosts: [Host; 2],
    folder: PathBuf,
}

pub(crate) struct Host {
    /// Of the namespace, and of the host inside it.
    pub(crate) name: String,
    pub(crate) address: String,
}

fn run(program: &str, words: &[&str]) -> io::Result<()> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let text = String::from_utf8_lossy(&output.stderr);
            let words = words.join(" ");
            Err(io::Error::other(format!(
                "{program} {words}: {}",
                text.trim()
            )))
        }
    }
}

impl Network {
    /// Two hosts, or why this machine does not permit them.
    pub(crate) fn new() -> io::Result<Self> {
        let number = std::process::id();
        let host = |index: u32| Host {
            name: format!("collectives-{number}-{index}"),
            address: format!("10.77.{}.{}", number % 250, index + 1),
        };
        let folder = std::env::temp_dir().join(format!("collectives-hosts-{number}"));
        fs::create_dir_all(&folder)?;
        let network = Self {
            hosts: [host(0), host(1)],
            folder,
        };
        let [one, other] = &network.hosts;
        for host in &network.hosts {
            run("ip", &["netns", "add", &host.name])?;
        }
        let peer = ["peer", "name", CABLE, "netns", &other.name];
        let link = ["link", "add", CABLE, "netns", &one.name, "type", "veth"];
        run("ip", &[&link[..], &peer].concat())?;
        for host in &network.hosts {
            let address = format!("{}/24", host.address);
            run(
                "ip",
                &["-n", &host.name, "addr", "add", &address, "dev", CABLE],
            )?;
            run("ip", &["-n", &host.name, "link", "set", CABLE, "up"])?;
            run("ip", &["-n", &host.name, "link", "set", "lo", "up"])?;
        }
        run("unshare", &["--uts", "true"])?;
        network.wait_for_cable()?;
        network.write_agent()?;
        Ok(network)
    }

    /// The kernel says a moment later that an interface runs, and UCX overlooks one that does not.
    fn wait_for_cable(&self) -> io::Result<()> {
        let is_up = |host: &Host| {
            let show = ["-n", &host.name, "-brief", "link", "show", "dev", CABLE];
            let output = Command::new("ip").args(show).output();
            output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(" UP "))
        };
        for _ in 0..100 {
            if self.hosts.iter().all(is_up) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err(io::Error::other(
            "the cable between the hosts does not come up",
        ))
    }

    /// What an MPI launcher calls in place of ssh: host, and then a command for its shell.
    fn write_agent(&self) -> io::Result<()> {
        let [one, other] = &self.hosts;
        let case =
            |host: &Host| format!("    {}) host={}; shift; break;;\n", host.address, host.name);
        let text = format!(
            "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n  case \"$1\" in\n{}{}    *) shift;;\n  esac\ndone\n\
             exec ip netns exec \"$host\" unshare --uts sh -c \"hostname $host; $*\"\n",
            case(one),
            case(other)
        );
        fs::write(self.agent(), text)?;
        fs::set_permissions(self.agent(), fs::Permissions::from_mode(0o755))
    }

    pub(crate) fn agent(&self) -> PathBuf {
        self.folder.join("agent")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn hosts(&self) -> &[Host; 2] {
        &self.hosts
    }

    /// What a command begins with that runs on the first host.
    pub(crate) fn on_first(&self) -> Command {
        let host = &self.hosts[0].name;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", host, "unshare", "--uts", "sh", "-c"]);
        command.arg(format!("hostname {host}; exec \"$@\""));
        command.arg("sh");
        command
    }

    /// Cuts the cable.
    pub(crate) fn cut(&self) -> io::Result<()> {
        run(
            "ip",
            &["-n", &self.hosts[1].name, "link", "set", CABLE, "down"],
        )
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            // Whoever is left in a namespace that was made here was started from here.
            let pids = Command::new("ip")
                .args(["netns", "pids", &host.name])
                .output();
            let pids = pids.map(|output| output.stdout).unwrap_or_default();
            for pid in String::from_utf8_lossy(&pids).split_whitespace() {
                if let Some(pid) = pid
                    .parse()
                    .ok()
                    .filter(|&pid| pid > 1)
                    .and_then(Pid::from_raw)
                {
                    let _gone = kill_process(pid, Signal::KILL);
                }
            }
            let _gone = run("ip", &["netns", "del", &host.name]);
        }
        let _gone = fs::remove_dir_all(&self.folder);
    }
}
