//! Worlds of ranks that serve many cases, and are rebuilt only after one that poisons them.

#[cfg(unix)]
mod exit;
#[cfg(target_os = "linux")]
pub(crate) mod processes;
mod rank;
mod threads;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::case::{Case, Outcome};
use crate::harness::{Harness, Ranks, Setup, Terrain};
use crate::planted::Planted;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A call that waits for other ranks.
    pub call: Duration,
    /// A case in which nothing happens on any rank; the parent waits half as long again. A case in which
    /// something happens all the time may take ten times as long.
    pub case: Duration,
}

impl Limits {
    /// For cases that should pass.
    pub const PATIENT: Self = Self {
        call: Duration::from_secs(20),
        case: Duration::from_secs(60),
    };
    /// For cases that a planted bug may make hang.
    pub const SHORT: Self = Self {
        call: Duration::from_secs(2),
        case: Duration::from_secs(12),
    };

    /// These, or what the environment says of how long nothing may happen in a case.
    ///
    /// # Errors
    ///
    /// A value that is no number of seconds.
    pub fn or_from_env(self) -> Result<Self, String> {
        let Ok(text) = std::env::var("COLLECTIVES_CASE_SECONDS") else {
            return Ok(self);
        };
        match text.parse() {
            Ok(seconds @ 1..) => Ok(Self {
                case: Duration::from_secs(seconds),
                call: self.call.min(Duration::from_secs(seconds) / 2),
            }),
            _ => Err(format!(
                "COLLECTIVES_CASE_SECONDS: `{text}` is no number of seconds"
            )),
        }
    }
}

/// The worlds of one backend.
#[derive(Debug)]
pub struct Worlds {
    harness: Arc<dyn Harness>,
    limits: Limits,
    idle: Mutex<HashMap<Setup, Vec<World>>>,
}

impl std::fmt::Debug for dyn Harness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Worlds {
    /// No world yet.
    #[must_use]
    pub fn new(harness: Arc<dyn Harness>, limits: Limits) -> Self {
        Self {
            harness,
            limits,
            idle: Mutex::default(),
        }
    }

    /// The backend.
    #[must_use]
    pub fn harness(&self) -> &Arc<dyn Harness> {
        &self.harness
    }

    /// The world that a case runs on.
    pub(crate) fn setup(&self, case: &Case) -> Setup {
        let mut setup = case.setup(self.limits.call);
        if !self.harness.heeds_terrain() {
            setup.terrain = Terrain::default();
        }
        setup
    }

    /// Runs a case on every rank of a world of its setup.
    ///
    /// # Errors
    ///
    /// Naming each rank that failed, how, and its last operation.
    pub fn run(&self, case: &Case, bug: Option<Planted>) -> Outcome {
        let setup = self.setup(case);
        #[cfg(unix)]
        let _inside = exit::Inside::of(format!("{} ({})", case.id, case.title));
        let idle = self.lock().get_mut(&setup).and_then(Vec::pop);
        let mut world = match idle {
            Some(world) => world,
            None => self.start(setup, bug)?,
        };
        let outcome = world.run(case, bug, self.limits.case * 3 / 2);
        if outcome.is_ok() {
            self.lock().entry(setup).or_default().push(world);
        }
        outcome
    }

    fn start(&self, setup: Setup, bug: Option<Planted>) -> Outcome<World> {
        #[cfg(not(target_os = "linux"))]
        let _ = bug;
        if self.harness.is_exclusive() {
            // They end here, and are waited for.
            let others = std::mem::take(&mut *self.lock());
            drop(others);
        }
        match self.harness.ranks() {
            #[cfg(target_os = "linux")]
            Ranks::Processes | Ranks::Launched => {
                processes::World::start(&*self.harness, setup, self.limits, bug)
                    .map(World::Processes)
            }
            _ => threads::World::start(&self.harness, setup, self.limits).map(World::Threads),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Setup, Vec<World>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ranks that have started and wait for a case.
#[derive(Debug)]
enum World {
    Threads(threads::World),
    #[cfg(target_os = "linux")]
    Processes(processes::World),
}

impl World {
    fn run(&mut self, case: &Case, bug: Option<Planted>, limit: Duration) -> Outcome {
        match self {
            Self::Threads(world) => world.run(case, bug, limit),
            #[cfg(target_os = "linux")]
            Self::Processes(world) => world.run(case, bug, limit),
        }
    }
}
