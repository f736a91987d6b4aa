//! What a plan says is what `reserve` does: all of it, or nothing.
#![forbid(unsafe_code)]

use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::Options;
use collectives_core::error::{Error, ErrorKind, Misuse, Refusal};
use collectives_core::scratch::{Request, ScratchAllocator};

use super::Scratch;
use crate::capability::Capability::Symmetric;
use crate::case::{Case, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new("I7", "a plan says what the rules refuse", plan_is_right)
        .needs(&[Symmetric])
        .catches(Planted::PlanHopes),
    Case::new(
        "I7",
        "where one request is refused nothing is registered for the others",
        all_or_nothing,
    )
    .needs(&[Symmetric])
    .catches(Planted::ReservesOneByOne),
];

/// A rule that stands in the way of a second, larger slot.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Limit,
    Windows,
    Cap,
    Seal,
}

const RULES: [Rule; 4] = [Rule::Limit, Rule::Windows, Rule::Cap, Rule::Seal];

impl Rule {
    fn change(self, options: &mut Options, granule: usize) {
        match self {
            Self::Limit => options.limit = Some(8 * granule),
            Self::Windows => options.max_windows = Some(1),
            Self::Cap => options.cap = Some(8 * granule),
            Self::Seal => {}
        }
    }

    fn refuses(self, error: &Error) -> bool {
        let why = match error.kind() {
            ErrorKind::Refused { why, .. } => Some(why),
            _ => None,
        };
        match self {
            Self::Limit => matches!(why, Some(Refusal::OverLimit { .. })),
            Self::Windows => matches!(why, Some(Refusal::OverWindows { .. })),
            Self::Cap => matches!(why, Some(Refusal::OverCap { .. })),
            Self::Seal => error.misuse() == Some(&Misuse::Sealed),
        }
    }
}

/// A pool under a rule.
fn under(rig: &mut Rig<'_>, rule: Rule, policy: &str) -> Outcome<Scratch> {
    let mut options = rig.options();
    rule.change(&mut options, rig.granule());
    let comm = rig.communicator()?;
    let mut pool = rig.pool_of(&ScratchConfig::with_policy(policy), options)?;
    if matches!(rule, Rule::Seal) {
        pool.seal();
    }
    Ok(Scratch { comm, pool })
}

fn plan_is_right(rig: &mut Rig<'_>) -> Outcome {
    let requests = [1, 9].map(|granules| Request::new(granules * rig.granule()));
    for rule in RULES {
        let mut scratch = under(rig, rule, "geometric")?;
        let plan = scratch.pool.plan(&mut *scratch.comm, &requests)?;
        // After the seal there is nothing for the first one either.
        let refused = 1 + usize::from(matches!(rule, Rule::Seal));
        ensure_eq!(plan.refused, refused, "requests that {rule:?} refuses");
        scratch.close(rig)?;
    }
    Ok(())
}

fn all_or_nothing(rig: &mut Rig<'_>) -> Outcome {
    let requests = [1, 9].map(|granules| Request::new(granules * rig.granule()));
    for policy in ["exact", "geometric", "geometric-class"] {
        for rule in RULES {
            let mut scratch = under(rig, rule, policy)?;
            let before = rig.witness().calls("allocate_symmetric");
            let reserved = scratch.pool.reserve(&mut *scratch.comm, &requests);
            let error = refused("a reservation that a rule forbids", reserved)?;
            ensure!(rule.refuses(&error), "not by {rule:?}: {error}");
            rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
            let allocations = rig.witness().calls("allocate_symmetric");
            ensure_eq!(allocations, before, "allocations under {rule:?}");
            if !matches!(rule, Rule::Seal) {
                let _plan = scratch.pool.reserve(&mut *scratch.comm, &requests[..1])?;
                scratch.touch(rig, rig.granule())?;
            }
            scratch.close(rig)?;
        }
    }
    Ok(())
}
