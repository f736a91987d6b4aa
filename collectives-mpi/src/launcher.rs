//! The command that starts ranks of the MPI that this program was built with.

use std::ffi::OsString;

use crate::environment::is_open_mpi;

/// How to start ranks on this machine; for tests and examples that start themselves.
#[derive(Clone, Debug)]
#[must_use]
pub struct Launcher {
    words: Vec<OsString>,
    is_open_mpi: bool,
}

impl Launcher {
    /// The launcher of the library this program is linked with: Open MPI's `mpirun`, or MPICH's
    /// `mpiexec`, as Debian names them where both are installed. `COLLECTIVES_MPI_LAUNCHER` names
    /// another, with arguments.
    pub fn of_this_mpi() -> Self {
        let is_open_mpi = is_open_mpi();
        let told = std::env::var("COLLECTIVES_MPI_LAUNCHER").ok();
        let words = match &told {
            Some(told) => told.split_whitespace().map(OsString::from).collect(),
            None if is_open_mpi => vec![first_of(&["mpirun.openmpi", "mpirun"]).into()],
            None => vec![first_of(&["mpiexec.mpich", "mpiexec.hydra", "mpiexec"]).into()],
        };
        Self { words, is_open_mpi }
    }

    /// More ranks than processors, and whoever may start them, root too: for tests.
    pub fn crowded(mut self) -> Self {
        if self.is_open_mpi {
            let words = "--oversubscribe --allow-run-as-root --bind-to none \
                         --mca btl_vader_single_copy_mechanism none \
                         --mca mpi_yield_when_idle 1";
            self.words
                .extend(words.split_whitespace().map(OsString::from));
        }
        self
    }

    /// The whole command for this many ranks; the program and its arguments follow.
    #[must_use]
    pub fn command(mut self, ranks: usize) -> Vec<OsString> {
        self.words.push("-n".into());
        self.words.push(ranks.to_string().into());
        self.words
    }
}

/// The first of these programs that the path leads to, or the last.
fn first_of(names: &[&'static str]) -> &'static str {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |name: &&&str| std::env::split_paths(&path).any(|folder| folder.join(name).exists());
    names
        .iter()
        .find(is_there)
        .or(names.last())
        .copied()
        .unwrap_or("mpiexec")
}
