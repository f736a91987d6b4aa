//! Ranks as processes: one binary is the parent and every rank.
//!
//! ```no_run
//! use collectives_core::env::World;
//! use collectives_core::error::Result;
//! use collectives_testkit::launch::{Launch, dispatch};
//!
//! fn hello(world: &World) -> Result<Vec<u8>> {
//!     let deadline = std::time::Duration::from_secs(10);
//!     let all = world.bootstrap(deadline)?.all_gather("hello", b"!", deadline)?;
//!     Ok(all.concat())
//! }
//!
//! fn main() -> Result<()> {
//!     dispatch(&[("hello", hello)]); // never returns in a rank
//!     let report = Launch::new("hello", 4).run()?;
//!     assert!(report.is_ok(), "{report}");
//!     Ok(())
//! }
//! ```
//!
//! The parent starts copies of its own executable with torchrun's variables, so that a rank finds
//! its place with [`World::from_env`](collectives_core::env::World::from_env) as it would anywhere.
//! The store's port is bound by the parent and handed to rank 0 as its standard input: it is never
//! free in between, and no number has to be guessed.
//!
//! Nothing is left behind. A rank dies with its parent, ends itself with code 124 when its deadline
//! passes, and is killed by the parent, by its own handle, when even that does not help. Every rank
//! is waited for. [Other launchers](Launch::through) start ranks as well: those die with it, and it with
//! the parent, where the system has `setpriv`. Results come over an abstract socket, which has no name in any file system.

pub(crate) mod channel;
mod child;
mod foreign;
mod output;
mod parent;
mod report;

use std::ffi::OsString;
use std::time::Duration;

use collectives_core::env::World;
use collectives_core::error::Result;

pub use child::dispatch;
pub use output::{Line, Stream};
pub use report::{Exit, RankReport, Report};

/// What a rank runs; what it returns is its result.
pub type Body = fn(&World) -> Result<Vec<u8>>;

/// The exit code of a rank whose deadline passed.
pub const DEADLINE_PASSED: i32 = 124;
/// The exit code of a rank that panicked.
pub const PANICKED: i32 = 101;
/// The exit code of a rank whose body returned an error.
pub const FAILED: i32 = 1;
/// The exit code of a rank that could not even begin.
pub const NOT_STARTED: i32 = 125;

/// A world of processes to be started.
#[derive(Clone, Debug)]
#[must_use]
pub struct Launch {
    body: String,
    world_size: usize,
    deadline: Duration,
    grace: Duration,
    args: Vec<OsString>,
    vars: Vec<(OsString, OsString)>,
    echo: bool,
    through: Vec<OsString>,
}

impl Launch {
    /// This many ranks, each of which runs the body that [`dispatch`] knows under this name.
    pub fn new(body: impl Into<String>, world_size: usize) -> Self {
        Self {
            body: body.into(),
            world_size,
            deadline: Duration::from_secs(60),
            grace: Duration::from_secs(5),
            args: Vec::new(),
            vars: Vec::new(),
            echo: false,
            through: Vec::new(),
        }
    }

    /// How long a rank may run, 60 s unless said. After it the rank ends itself, and half a
    /// second later the parent ends it.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long the others may run on after the first rank has failed, 5 s unless said.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Adds an argument for every rank.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds an environment variable for every rank, beside those of the parent.
    pub fn var(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.vars.push((name.into(), value.into()));
        self
    }

    /// Also prints what the ranks say to standard error, each line behind its rank.
    pub fn echo(mut self, echo: bool) -> Self {
        self.echo = echo;
        self
    }

    /// Starts the ranks by this command, mpirun and its arguments for example, to which the test's
    /// binary and its arguments are appended. It says how many ranks there are and who is who, in
    /// variables that [`World::from_env`](collectives_core::env::World::from_env) knows; where they
    /// meet is the body's business.
    ///
    /// How a single rank ended only the launcher knows: a rank without a result is reported with the
    /// launcher's exit.
    pub fn through(mut self, command: Vec<OsString>) -> Self {
        self.through = command;
        self
    }

    /// Starts the ranks and waits for all of them. The thread must be one that stays, since to the
    /// system it is the parent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::System`](collectives_core::error::ErrorKind::System) when the ranks cannot be
    /// started; those that were are gone by then. How they fared is the report's business.
    pub fn run(self) -> Result<Report> {
        parent::run(&self)
    }
}

/// What the parent tells a rank beside torchrun's variables.
mod variables {
    pub(super) const BODY: &str = "COLLECTIVES_LAUNCH_BODY";
    pub(super) const SOCKET: &str = "COLLECTIVES_LAUNCH_SOCKET";
    /// The parent's process, where ranks are its children.
    pub(super) const PARENT: &str = "COLLECTIVES_LAUNCH_PARENT";
    pub(super) const TOKEN: &str = "COLLECTIVES_STORE_TOKEN";
    pub(super) const DEADLINE: &str = "COLLECTIVES_LAUNCH_DEADLINE_MS";
}
