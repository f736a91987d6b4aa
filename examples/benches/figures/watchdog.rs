//! Child processes that end, whatever they do.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// What a child gets to end by itself after it was asked to.
const GRACE: Duration = Duration::from_secs(3);

/// Runs a command in a process group of its own and returns what it printed.
///
/// # Errors
///
/// A text, when it cannot be started, fails, or is still running after `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("{name}: {error}"))?;
    let output = reader(child.stdout.take());
    let complaint = reader(child.stderr.take());
    let ended = wait(&mut child, limit);
    if ended.is_none() {
        end_group(&mut child);
    }
    let text = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    let (output, complaint) = (text(output), text(complaint));
    match ended {
        Some(true) => Ok(output),
        Some(false) => {
            let complaint = complaint.lines().rfind(|line| !line.trim().is_empty());
            Err(format!(
                "{name} failed: {}",
                complaint.unwrap_or("without a word")
            ))
        }
        None => Err(format!("{name} was ended after {} s", limit.as_secs())),
    }
}

/// Whether the child succeeded, or `None` if it still runs after the limit.
fn wait(child: &mut Child, limit: Duration) -> Option<bool> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if begun.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
            Ok(None) => return None,
            Err(_) => return Some(false),
        }
    }
}

/// Ends the group that was made for the child, first politely, so that it can end its own children.
fn end_group(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let signal = |signal| {
        if let Some(group) = group {
            // It fails only if the group is gone already, which is what is wanted.
            let _ = kill_process_group(group, signal);
        }
    };
    signal(Signal::TERM);
    let ended = wait(child, GRACE);
    signal(Signal::KILL);
    if ended.is_none() {
        let _ = child.wait();
    }
}

/// Drains a pipe, so that the child never waits for us.
fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What could be read before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
