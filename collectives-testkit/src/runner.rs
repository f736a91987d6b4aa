//! Lists every case and runs what it is asked to run.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::{Arguments, Trial};

use crate::capability::{Capability, Support};
use crate::case::{Case, Outcome, ranks_from_env};
use crate::claims;
use crate::harness::Harness;
use crate::planted::Planted;
use crate::report::{Entry, Report, Verdict};
use crate::suites;
use crate::world::{Limits, Worlds};

/// What `COLLECTIVES_REQUIRE` asks for.
#[derive(Clone, Debug, Default)]
pub struct Required(Vec<Capability>);

impl Required {
    /// The capabilities that the environment names.
    ///
    /// # Errors
    ///
    /// A name that is no capability.
    pub fn from_env() -> Result<Self, String> {
        Self::parse(&std::env::var("COLLECTIVES_REQUIRE").unwrap_or_default())
    }

    /// The capabilities that a text names, with commas between them.
    ///
    /// # Errors
    ///
    /// A name that is no capability.
    pub fn parse(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(|name| {
                Capability::named(name).ok_or_else(|| {
                    let known = Capability::ALL.map(Capability::name).join(", ");
                    format!("COLLECTIVES_REQUIRE: `{name}` is no capability; known are {known}")
                })
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether it may not be missing.
    #[must_use]
    pub fn contains(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }
}

/// The capabilities that a case needs and the backend lacks, and why.
pub fn lacking<'a>(
    harness: &'a dyn Harness,
    case: &'a Case,
) -> impl Iterator<Item = (Capability, String)> + 'a {
    let lacks = |capability, support| match support {
        Support::Yes => None,
        Support::No(reason) => Some((capability, reason)),
    };
    let platform = lacks(Capability::Platform, harness.platform());
    let needs = case.needs.iter();
    platform
        .into_iter()
        .chain(needs.filter_map(move |&need| lacks(need, harness.supports(need))))
}

/// The first capability that a case needs and the backend lacks, and why.
#[must_use]
pub fn missing(harness: &dyn Harness, case: &Case) -> Option<(Capability, String)> {
    lacking(harness, case).next()
}

/// The case that a capability is there or not, as the harness says, where that can be seen.
#[must_use]
pub fn claim(capability: Capability) -> Option<&'static Case> {
    claims::case(capability)
}

/// Runs this process's part of a case and ends the process, where it is a rank of a world of processes;
/// the first call of a `main` that is not one of the kit's.
pub fn dispatch(harness: &Arc<dyn Harness>) {
    #[cfg(target_os = "linux")]
    crate::world::processes::dispatch(harness);
    #[cfg(not(target_os = "linux"))]
    let _ = harness;
}

/// The bug that is planted in this process, which is a rank of a world of processes.
#[must_use]
pub fn planted() -> Option<Planted> {
    #[cfg(target_os = "linux")]
    return crate::world::processes::planted();
    #[cfg(not(target_os = "linux"))]
    None
}

/// Runs the kit as the test harness of the process: the `main` of
/// [`conformance_main!`](crate::conformance_main).
#[must_use]
pub fn main(harness: Arc<dyn Harness>) -> ExitCode {
    dispatch(&harness);
    let asked = Required::from_env().and_then(|required| {
        ranks_from_env()?;
        Ok((required, Limits::PATIENT.or_from_env()?))
    });
    let (required, limits) = match asked {
        Ok(asked) => asked,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::FAILURE;
        }
    };
    let mut arguments = Arguments::from_args();
    if harness.is_exclusive() {
        arguments.test_threads = Some(1);
    }
    let report = Arc::new(Mutex::new(Report::new(harness.name())));
    let trials = trials(&harness, limits, &required, &report);
    let listing = arguments.list;
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !listing
        && let Err(error) = report
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_where_asked()
    {
        eprintln!("the report could not be written: {error}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

fn trials(
    harness: &Arc<dyn Harness>,
    limits: Limits,
    required: &Required,
    report: &Arc<Mutex<Report>>,
) -> Vec<Trial> {
    let worlds = Arc::new(Worlds::new(Arc::clone(harness), limits));
    let mut cases: Vec<_> = suites::cases().collect();
    let claims = Capability::ALL.into_iter().filter_map(claims::case);
    cases.extend(claims.map(|case| ("claims", case)));
    if harness.is_exclusive() {
        // Where one world exists at a time, those that share one follow each other.
        cases.sort_by_key(|(_, case)| {
            let setup = worlds.setup(case);
            (setup.terrain.name(), setup.ranks)
        });
    }
    cases
        .into_iter()
        .map(|(suite, case)| trial(&worlds, required, report, suite, case))
        .collect()
}

fn trial(
    worlds: &Arc<Worlds>,
    required: &Required,
    report: &Arc<Mutex<Report>>,
    suite: &'static str,
    case: &'static Case,
) -> Trial {
    let harness = &**worlds.harness();
    let wanted = lacking(harness, case).find(|(capability, _)| required.contains(*capability));
    let is_required = wanted.is_some();
    let missing = wanted.or_else(|| missing(harness, case));
    let entry = Entry::new(suite, case);
    let note = {
        let report = Arc::clone(report);
        move |entry: &Entry, verdict: Verdict| {
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            report.note(entry.with(verdict));
        }
    };
    let Some((capability, reason)) = missing else {
        note(&entry, Verdict::NotRun);
        let worlds = Arc::clone(worlds);
        return Trial::test(case.name(suite), move || {
            let outcome = worlds.run(case, None);
            note(&entry, Verdict::of(&outcome));
            told(outcome)
        });
    };
    let why = format!("{capability}: {reason}");
    note(&entry, Verdict::Skipped(why.clone()));
    let text = format!("this backend lacks {why}");
    let failing = Trial::test(case.name(suite), move || {
        note(&entry, Verdict::Failed(text.clone()));
        Err(text.into())
    });
    if is_required {
        return failing;
    }
    failing
        .with_ignored_flag(true)
        .with_kind(format!("skip: {why}"))
}

fn told(outcome: Outcome) -> Result<(), libtest_mimic::Failed> {
    outcome.map_err(|failure| failure.0.into())
}
