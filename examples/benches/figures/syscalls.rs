//! System calls of the hot path, counted from outside.

use std::env;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::mpi::is_command;
use crate::watchdog;

/// What `strace` counted over a whole process.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Syscalls {
    /// With set-up only.
    pub(crate) without_hits: u64,
    /// With set-up and hits.
    pub(crate) with_hits: u64,
    pub(crate) hits: u64,
}

impl Syscalls {
    /// Those that hits made; threads of the set-up may differ by a few.
    #[expect(clippy::cast_precision_loss, reason = "both are small")]
    pub(crate) fn per_hit(&self) -> f64 {
        self.with_hits.saturating_sub(self.without_hits) as f64 / self.hits as f64
    }
}

/// Runs this program under `strace`, without and with hits.
pub(crate) fn measure(hits: u64) -> Result<Syscalls, String> {
    if !is_command("strace") {
        return Err("strace is not installed".to_owned());
    }
    Ok(Syscalls {
        without_hits: count(0)?,
        with_hits: count(hits)?,
        hits,
    })
}

fn count(hits: u64) -> Result<u64, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-o", "/dev/stdout"]).arg(program);
    command.args(["--spin-hits", &hits.to_string()]);
    let said = watchdog::run(&mut command, Duration::from_secs(120))?;
    let total = said
        .lines()
        .rfind(|line| line.trim_end().ends_with(" total"));
    let calls = total.and_then(|line| line.split_whitespace().nth(3));
    calls
        .and_then(|calls| calls.parse().ok())
        .ok_or_else(|| format!("strace said {said:?}"))
}
