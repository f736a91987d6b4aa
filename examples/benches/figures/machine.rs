//! What the figures were measured on.

use std::fs;
use std::num::NonZero;
use std::process::Command;
use std::thread;

use serde::Serialize;

/// The machine and the compiler.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) system: String,
    pub(crate) compiler: String,
    /// Processes that wanted a core in the last minute, as the measurements began.
    pub(crate) load: Option<f64>,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let processor = field("/proc/cpuinfo", "model name");
        let system = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        let compiler = Command::new(option_env!("RUSTC").unwrap_or("rustc"))
            .arg("--version")
            .output();
        let compiler = compiler.ok().filter(|output| output.status.success());
        let text =
            |text: Option<String>| text.map_or("unknown".to_owned(), |t| t.trim().to_owned());
        Self {
            processor: text(processor),
            cores: thread::available_parallelism().map_or(1, NonZero::get),
            system: text(system.map(|release| format!("Linux {release}"))),
            compiler: text(compiler.map(|out| String::from_utf8_lossy(&out.stdout).into_owned())),
            load: load(),
        }
    }
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.to_owned())
}

fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}
