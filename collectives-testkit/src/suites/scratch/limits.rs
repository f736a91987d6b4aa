//! The cap on requests and the limit on bytes, and what makes room under it.
#![forbid(unsafe_code)]

use collectives_core::error::{ErrorKind, Refusal};
use collectives_core::path::{Path, Reason};
use collectives_core::reduce::ReduceOp;
use float8::F8E4M3;

use super::Scratch;
use crate::capability::Capability::Symmetric;
use crate::case::{Case, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new("I7", "neither cap nor limit is exceeded", cap_and_limit)
        .needs(&[Symmetric])
        .catches(Planted::LimitIgnored),
    Case::new(
        "E13",
        "what is larger than the cap takes the ordinary path",
        over_cap,
    )
    .needs(&[Symmetric])
    .catches(Planted::CapIgnored),
    Case::new("E14", "a request of exactly the cap is staged", at_cap)
        .needs(&[Symmetric])
        .catches(Planted::CapOffByOne),
    Case::new(
        "F1",
        "what a trim frees can be used for a larger slot",
        trim_and_grow,
    )
    .needs(&[Symmetric])
    .catches(Planted::TrimDoesNothing),
    Case::new(
        "F8",
        "what a larger slot replaces is freed before it is allocated",
        frees_first,
    )
    .needs(&[Symmetric])
    .catches(Planted::NeverGrowsAhead),
];

fn cap_and_limit(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let mut options = rig.options();
    options.limit = Some(4 * granule);
    options.cap = Some(6 * granule);
    let comm = rig.communicator()?;
    let pool = rig.pool("geometric", options)?;
    let mut scratch = Scratch { comm, pool };
    for bytes in [
        granule,
        2 * granule,
        3 * granule,
        granule,
        5 * granule,
        7 * granule,
    ] {
        let leased = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes);
        let mapped = scratch.pool.stats().mapped_bytes();
        ensure!(
            mapped <= 4 * granule,
            "{mapped} mapped bytes are over the limit"
        );
        match leased {
            Ok(lease) => {
                ensure!(bytes <= 4 * granule, "{bytes} bytes were leased");
                lease.complete()?;
            }
            Err(error) => {
                ensure!(
                    matches!(error.kind(), ErrorKind::Refused { .. }),
                    "not refused: {error}"
                );
            }
        }
    }
    scratch.touch(rig, granule)?;
    scratch.close(rig)
}

fn capped(rig: &mut Rig<'_>, bytes: usize) -> Outcome<(Path, Reason)> {
    let cap = 3 * rig.granule();
    let mut options = rig.options();
    options.cap = Some(cap);
    let mut handle = rig.collectives_with("geometric", options)?;
    let mut tensor = rig.tensor::<F8E4M3>(bytes, 1)?;
    let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
    rig.expect_sum("a call near the cap", &tensor, 1, rig.stream())?;
    let _deferred = handle.close()?;
    Ok((report.path, report.reason))
}

fn over_cap(rig: &mut Rig<'_>) -> Outcome {
    let cap = 3 * rig.granule();
    let taken = capped(rig, cap + 1)?;
    ensure_eq!(
        taken,
        (Path::Fallback, Reason::OverCap),
        "a byte more than the cap"
    );
    Ok(())
}

fn at_cap(rig: &mut Rig<'_>) -> Outcome {
    let cap = 3 * rig.granule();
    for bytes in [cap - 1, cap] {
        let (path, _) = capped(rig, bytes)?;
        ensure_eq!(
            path,
            Path::Staged,
            "the path of {bytes} bytes under a cap of {cap}"
        );
    }
    Ok(())
}

fn trim_and_grow(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let mut options = rig.options();
    options.limit = Some(4 * granule);
    let comm = rig.communicator()?;
    let pool = rig.pool("exact", options)?;
    let mut scratch = Scratch { comm, pool };
    scratch.touch(rig, granule)?;
    scratch.touch(rig, 2 * granule)?;
    let leased = rig.lease(&mut *scratch.comm, &mut *scratch.pool, 4 * granule);
    let error = refused("a slot beyond the limit", leased)?;
    let over = matches!(
        error.kind(),
        ErrorKind::Refused {
            why: Refusal::OverLimit { .. },
            ..
        }
    );
    ensure!(over, "not over the limit: {error}");
    let trimmed = scratch.pool.trim(&mut *scratch.comm)?;
    ensure_eq!(
        trimmed.mapped_bytes,
        3 * granule,
        "bytes that a trim gave back"
    );
    scratch.touch(rig, 4 * granule)?;
    scratch.close(rig)
}

fn frees_first(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let mut options = rig.options();
    options.limit = Some(5 * granule);
    let comm = rig.communicator()?;
    let pool = rig.pool("replace", options)?;
    let mut scratch = Scratch { comm, pool };
    scratch.touch(rig, 2 * granule)?;
    // Both together would be over the limit.
    scratch.touch(rig, 4 * granule)?;
    let stats = scratch.pool.stats();
    ensure_eq!(stats.mapped_bytes(), 4 * granule, "mapped bytes");
    ensure_eq!(stats.deregistrations, 1, "slots that went");
    scratch.close(rig)
}
