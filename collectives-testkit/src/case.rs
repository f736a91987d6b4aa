//! A case: an id, a sentence, a function of one rank, and the bug it must catch.

use std::fmt;
use std::time::Duration;

use collectives_core::error::Error;

use crate::capability::Capability;
use crate::harness::{Setup, Terrain};
use crate::planted::Planted;
use crate::rig::Rig;

/// What a case's function returns: an error ends the case, on every rank.
pub type Outcome<T = ()> = Result<T, Failure>;

/// One testable sentence about a backend, and how to test it on one rank.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The invariant (`I21`) or public report (`A4`) that it covers.
    pub id: &'static str,
    /// The sentence.
    pub title: &'static str,
    /// Runs on every rank of the world at once.
    pub run: fn(&mut Rig<'_>) -> Outcome,
    /// What the backend must have.
    pub needs: &'static [Capability],
    /// Ranks of the world, where the case needs a certain number of them.
    pub ranks: Option<usize>,
    /// How the devices behave.
    pub terrain: Terrain,
    /// The bug that makes it fail; a case without one is a defect.
    pub bug: Option<Planted>,
}

impl Case {
    /// A case of any number of ranks on hostile devices, which needs nothing.
    #[must_use]
    pub const fn new(
        id: &'static str,
        title: &'static str,
        run: fn(&mut Rig<'_>) -> Outcome,
    ) -> Self {
        Self {
            id,
            title,
            run,
            needs: &[],
            ranks: None,
            terrain: Terrain::Hostile,
            bug: None,
        }
    }

    /// With what the backend must have.
    #[must_use]
    pub const fn needs(mut self, needs: &'static [Capability]) -> Self {
        self.needs = needs;
        self
    }

    /// With the bug it must catch.
    #[must_use]
    pub const fn catches(mut self, bug: Planted) -> Self {
        self.bug = Some(bug);
        self
    }

    /// On a world of this many ranks.
    #[must_use]
    pub const fn on(mut self, ranks: usize) -> Self {
        self.ranks = Some(ranks);
        self
    }

    /// On streams that run beside their callers.
    #[must_use]
    pub const fn concurrent(mut self) -> Self {
        self.terrain = Terrain::Concurrent;
        self
    }

    /// The world it wants.
    #[must_use]
    pub fn setup(&self, deadline: Duration) -> Setup {
        Setup {
            ranks: self.ranks.unwrap_or_else(usual_ranks),
            terrain: self.terrain,
            deadline,
        }
    }

    /// The name runners list: suite, id and sentence.
    #[must_use]
    pub fn name(&self, suite: &str) -> String {
        let sentence: String = self
            .title
            .chars()
            .map(|c| if c.is_alphanumeric() { c } else { '_' })
            .collect();
        format!("{suite}::{}::{sentence}", self.id)
    }
}

/// Ranks of a case that does not say how many: three, unless the environment says otherwise.
fn usual_ranks() -> usize {
    ranks_from_env().unwrap_or_default().unwrap_or(3)
}

/// The number of ranks that the environment asks for, if it does.
///
/// # Errors
///
/// A value that is no number of ranks, of which there must be two at least.
pub(crate) fn ranks_from_env() -> Result<Option<usize>, String> {
    let Ok(text) = std::env::var("COLLECTIVES_RANKS") else {
        return Ok(None);
    };
    match text.parse() {
        Ok(ranks @ 2..) => Ok(Some(ranks)),
        _ => Err(format!(
            "COLLECTIVES_RANKS: `{text}` is no number of ranks from 2 on"
        )),
    }
}

/// Why a case failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(format!("unexpected error: {error}"))
    }
}

/// The error that a call must give.
///
/// # Errors
///
/// When the call succeeded.
pub fn refused<T>(what: &str, result: Result<T, Error>) -> Outcome<Error> {
    match result {
        Err(error) => Ok(error),
        Ok(_) => Err(Failure(format!("{what} succeeded and must fail"))),
    }
}

/// Fails the case unless a condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        let holds: bool = $condition;
        if !holds {
            return Err($crate::case::Failure(format!($($text)+)));
        }
    };
}

/// Fails the case unless two values are equal.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($text:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            let what = format!($($text)+);
            return Err($crate::case::Failure(format!("{what}: {left:?} is not {right:?}")));
        }
    }};
}
