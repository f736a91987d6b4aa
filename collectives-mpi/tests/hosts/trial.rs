//! Starts ranks on two hosts, and cuts one off in the middle of an operation.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use collectives_mpi::launcher::Launcher;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::network::Network;
use crate::rank::FOLDER;

/// Longer than any of this takes; ranks end themselves before.
const PATIENCE: Duration = Duration::from_secs(50);

pub(crate) fn run() -> ExitCode {
    let arguments = Arguments::from_args();
    let name = "a_host_that_is_cut_off_ends_the_job_on_both_sides";
    let skipped = |why: String| {
        let text = why.clone();
        let failing = Trial::test(name, move || Err(text.into()));
        failing
            .with_ignored_flag(true)
            .with_kind(format!("skip: {why}"))
    };
    let trial = match Network::new() {
        Ok(network) => Trial::test(name, move || cut_off(&network)),
        Err(error) => skipped(format!("hosts are not permitted here: {error}")),
    };
    libtest_mimic::run(&arguments, vec![trial]).exit_code()
}

fn cut_off(network: &Network) -> Result<(), Failed> {
    let mut launcher = launch(network)?;
    let ranks = wait_for(
        || running(network.folder()),
        &mut launcher,
        "ranks that run",
    )?;
    for (_, windows) in &ranks {
        if !windows.contains("2 machines") {
            return Err(format!("ranks of two hosts have windows: {windows}").into());
        }
    }
    thread::sleep(Duration::from_millis(300));
    network.cut()?;
    let gone = || {
        let alive = |pid: &String| Path::new(&format!("/proc/{pid}")).exists();
        (!ranks.iter().any(|(pid, _)| alive(pid))).then_some(())
    };
    wait_for(gone, &mut launcher, "ranks that end")?;
    // Launchers may wait for daemons that they cannot reach; the ranks are gone all the same.
    let _killed = launcher.kill();
    let _status = launcher.wait();
    let wrong = fs::read_to_string(network.folder().join("error")).unwrap_or_default();
    match wrong.contains("a wrong sum") {
        true => Err(wrong.into()),
        false => Ok(()),
    }
}

fn launch(network: &Network) -> Result<Child, Failed> {
    let words = Launcher::of_this_mpi().crowded().command(2);
    let [one, other] = network.hosts().each_ref().map(|host| host.address.as_str());
    let agent = network.agent();
    let agent = agent.to_string_lossy();
    let subnet = format!("{}.0/24", one.rsplit_once('.').map_or("", |(net, _)| net));
    let hosts = format!("{one},{other}");
    let folder = network.folder().to_string_lossy();
    let mut command: Command = network.on_first();
    command.args(&words);
    if words[0].to_string_lossy().contains("mpirun") {
        command.args(["--host", &hosts, "--map-by", "node"]);
        for (name, value) in [
            ("plm_rsh_agent", &*agent),
            ("pml", "ob1"),
            ("btl", "tcp,self"),
            ("btl_tcp_if_include", &subnet),
            ("oob_tcp_if_include", &subnet),
        ] {
            command.args(["--mca", name, value]);
        }
        command.args(["-x", &format!("{FOLDER}={folder}")]);
    } else {
        command.args([
            "-launcher",
            "ssh",
            "-launcher-exec",
            &agent,
            "-hosts",
            &hosts,
        ]);
        command.args(["-ppn", "1", "-genv", FOLDER, &folder]);
        command.args(["-genv", "UCX_TLS", "tcp,self"]);
    }
    command.arg(std::env::current_exe()?);
    Ok(command.stdin(Stdio::null()).spawn()?)
}

/// Process and windows of each rank, once both have written them.
fn running(folder: &Path) -> Option<Vec<(String, String)>> {
    let rank = |rank: usize| {
        let text = fs::read_to_string(folder.join(format!("rank-{rank}"))).ok()?;
        let (pid, windows) = text.split_once('\n')?;
        Some((pid.to_owned(), windows.to_owned()))
    };
    (0..2).map(rank).collect()
}

fn wait_for<T>(
    what: impl Fn() -> Option<T>,
    launcher: &mut Child,
    name: &str,
) -> Result<T, Failed> {
    let begun = Instant::now();
    let mut over = false;
    loop {
        if let Some(found) = what() {
            return Ok(found);
        }
        if over || begun.elapsed() > PATIENCE {
            return Err(
                format!("there are no {name} (launcher: {:?})", launcher.try_wait()).into(),
            );
        }
        over = name == "ranks that run" && launcher.try_wait().is_ok_and(|end| end.is_some());
        thread::sleep(Duration::from_millis(50));
    }
}
