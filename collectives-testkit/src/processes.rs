//! Ranks as processes: the parent starts a world per case, from its own binary.

use std::env;
use std::sync::{Arc, OnceLock};

use collectives_core::env::World;
use collectives_core::error::{Error, ErrorKind, Result};

use crate::capability::Capability;
use crate::case::{Case, Failure, Outcome};
use crate::harness::{Harness, Ranks};
use crate::launch::{self, Launch};
use crate::planted::Planted;
use crate::world::{self, Limits};
use crate::{suites, unclaimed};

/// The name of the body that runs one case.
const BODY: &str = "kit-case";
const CASE: &str = "COLLECTIVES_KIT_CASE";
const BUG: &str = "COLLECTIVES_KIT_BUG";

static HARNESS: OnceLock<Arc<dyn Harness>> = OnceLock::new();

/// Runs this rank's part of a case and ends the process, or returns where the process is no rank.
pub(crate) fn dispatch(harness: &Arc<dyn Harness>) {
    let _known = HARNESS.set(Arc::clone(harness));
    launch::dispatch(&[(BODY, body)]);
}

/// Runs a case on processes of their own.
pub(crate) fn run(
    harness: &dyn Harness,
    limits: Limits,
    case: &Case,
    bug: Option<Planted>,
) -> Outcome {
    let mut launch = Launch::new(BODY, case.ranks)
        .deadline(limits.case)
        .var(CASE, key(case))
        .var(BUG, bug.map_or("", Planted::name));
    if harness.ranks() == Ranks::Launched {
        launch = launch.through(harness.launcher(case.ranks));
    }
    let report = launch.run()?;
    if report.is_ok() {
        return Ok(());
    }
    Err(Failure(report.to_string()))
}

/// The bug that the parent named.
pub(crate) fn planted() -> Option<Planted> {
    let name = env::var(BUG).unwrap_or_default();
    Planted::ALL.iter().copied().find(|bug| bug.name() == name)
}

fn key(case: &Case) -> String {
    format!("{}/{}/{}", case.id, case.terrain.name(), case.title)
}

fn body(world: &World) -> Result<Vec<u8>> {
    let failed = |text: String| Error::new(ErrorKind::System(text));
    let wanted = env::var(CASE).unwrap_or_default();
    let case = suites::cases()
        .map(|(_, case)| case)
        .chain(Capability::ALL.into_iter().filter_map(unclaimed::case))
        .find(|case| key(case) == wanted)
        .ok_or_else(|| failed(format!("there is no case `{wanted}`")))?;
    let bug = planted();
    let harness = HARNESS
        .get()
        .ok_or_else(|| failed("no harness was set".to_owned()))?;
    let limits = match bug {
        Some(_) => Limits::SHORT,
        None => Limits::PATIENT,
    };
    let bootstrap = harness.bootstrap(world, limits.call)?;
    let outcome = world::alone(harness, limits, bootstrap, case, bug);
    outcome.map_err(|Failure(text)| failed(text))?;
    Ok(Vec::new())
}
