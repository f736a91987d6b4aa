//! MPI libraries that are installed, measured by a small program in C.

use std::env;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use collectives_core::collective::OpKind;
use serde::Serialize;

use crate::case::{Case, Shape};
use crate::watchdog;

const SOURCE: &str = include_str!("peer.c");
/// Seconds after which a measurement ends itself; the watchdog waits a little longer.
const LIMIT: u64 = 40;

/// A library that might be installed, as Debian names its commands.
struct Known {
    name: &'static str,
    compile: &'static str,
    launch: &'static str,
    /// How to ask the launcher for its version.
    version: &'static [&'static str],
    arguments: &'static [&'static str],
    /// Arguments for more ranks than cores.
    crowded: &'static [&'static str],
}

const KNOWN: [Known; 2] = [
    Known {
        name: "Open MPI",
        compile: "mpicc.openmpi",
        launch: "mpirun.openmpi",
        version: &["--version"],
        // Without single copy, which only slows it down here; the option of version 5 is `smsc`,
        // and each version ignores the other's.
        arguments: &[
            "--allow-run-as-root",
            "--mca",
            "btl_vader_single_copy_mechanism",
            "none",
            "--mca",
            "smsc",
            "^cma",
        ],
        crowded: &["--oversubscribe"],
    },
    Known {
        name: "MPICH",
        compile: "mpicc.mpich",
        launch: "mpirun.mpich",
        version: &["--version"],
        arguments: &[],
        crowded: &[],
    },
];

/// A peer, or why there is none.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// The version, or `not installed`, or what went wrong.
    pub(crate) status: String,
    #[serde(skip)]
    program: Option<PathBuf>,
}

/// Peers with their programs, which are removed with it.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) all: Vec<Peer>,
    directory: PathBuf,
}

impl Peers {
    /// Compiles the program for every library that is installed, or for none of them.
    pub(crate) fn build(wanted: bool) -> Self {
        let directory = env::temp_dir().join(format!("collectives-figures-{}", std::process::id()));
        let all = KNOWN.iter().map(|known| known.build(&directory, wanted));
        Self {
            all: all.collect(),
            directory,
        }
    }

    /// Nanoseconds of one operation on each peer that works.
    pub(crate) fn measure(&self, case: &Case, shape: Shape) -> Vec<(&'static str, f64)> {
        let mut figures = Vec::new();
        for (known, peer) in KNOWN.iter().zip(&self.all) {
            let Some(program) = &peer.program else {
                continue;
            };
            match known.measure(program, case, shape) {
                Ok(figure) => figures.push((known.name, figure)),
                Err(error) => eprintln!("{}: {case}: {error}", known.name),
            }
        }
        figures
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        if self.directory.exists()
            && let Err(error) = fs::remove_dir_all(&self.directory)
        {
            eprintln!("{}: {error}", self.directory.display());
        }
    }
}

impl Known {
    fn build(&self, directory: &Path, wanted: bool) -> Peer {
        let built = match wanted {
            false => Err("not asked for".to_owned()),
            true if !(is_command(self.compile) && is_command(self.launch)) => {
                Err("not installed".to_owned())
            }
            true => self.compile(directory),
        };
        let (status, program) = match built {
            Ok(program) => (self.version(), Some(program)),
            Err(why) => (why, None),
        };
        Peer {
            name: self.name,
            status,
            program,
        }
    }

    fn compile(&self, directory: &Path) -> Result<PathBuf, String> {
        let write = || {
            fs::create_dir_all(directory)?;
            fs::write(directory.join("peer.c"), SOURCE)
        };
        write().map_err(|error| format!("{}: {error}", directory.display()))?;
        let program = directory.join(self.compile);
        let mut command = Command::new(self.compile);
        command.args(["-O3", "-march=native", "-o"]).arg(&program);
        command.arg(directory.join("peer.c"));
        watchdog::run(&mut command, Duration::from_secs(60))?;
        Ok(program)
    }

    fn version(&self) -> String {
        let asked = watchdog::run(
            Command::new(self.launch).args(self.version),
            Duration::from_secs(10),
        );
        let said = asked.unwrap_or_default();
        let number = said.split_whitespace().find(|word| {
            word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.')
        });
        number.unwrap_or("of unknown version").to_owned()
    }

    fn measure(&self, program: &Path, case: &Case, shape: Shape) -> Result<f64, String> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let mut command = Command::new(self.launch);
        command.args(self.arguments);
        if case.ranks > cores {
            command.args(self.crowded);
        }
        command.args(["-n", &case.ranks.to_string()]).arg(program);
        let bytes = match case.operation {
            OpKind::Barrier => 0,
            _ => case.bytes,
        };
        command.args([case.operation.name(), case.dtype.name()]);
        let warm_up = shape.warm_up.max(1);
        let numbers = [bytes, shape.operations, shape.batches, warm_up];
        command.args(numbers.map(|number| number.to_string()));
        command.arg(LIMIT.to_string());
        let said = watchdog::run(&mut command, Duration::from_secs(LIMIT + 5))?;
        let figure = said.lines().find_map(|line| line.strip_prefix("FIGURE "));
        figure
            .and_then(|figure| figure.trim().parse().ok())
            .ok_or_else(|| format!("no figure in {said:?}"))
    }
}

/// Whether a command is on the search path.
pub(crate) fn is_command(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(name).is_file())
}
