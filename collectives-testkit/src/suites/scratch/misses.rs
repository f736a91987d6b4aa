//! When something is registered, and what happens when nothing may be.
#![forbid(unsafe_code)]

use collectives_alloc::options::OnMiss;
use collectives_core::error::{ErrorKind, MissedWhen, Misuse};
use collectives_core::layered::symmetric_of;
use collectives_core::path::Reason;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use super::{Scratch, workload};
use crate::capability::Capability::Symmetric;
use crate::case::{Case, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new("I8", "a second sweep registers nothing", second_sweep)
        .needs(&[Symmetric])
        .catches(Planted::NeverHits),
    Case::new(
        "A11",
        "a steady loop sees no new address after its first sweep",
        steady_loop,
    )
    .needs(&[Symmetric])
    .catches(Planted::NeverHits),
    Case::new(
        "C3",
        "hits releases and drops make no collective call",
        local_hits,
    )
    .needs(&[Symmetric])
    .catches(Planted::HitAgrees),
    Case::new("I40", "after the seal nothing is registered", sealed)
        .needs(&[Symmetric])
        .catches(Planted::SealIgnored),
    Case::new(
        "A3",
        "after the seal a larger request names what it needs",
        larger_than_sealed,
    )
    .needs(&[Symmetric])
    .catches(Planted::SealIgnored),
    Case::new(
        "F9",
        "a miss is an error or a fallback as configured",
        on_miss,
    )
    .needs(&[Symmetric])
    .catches(Planted::OnMissFlipped),
];

fn second_sweep(rig: &mut Rig<'_>) -> Outcome {
    for policy in ["exact", "geometric", "geometric-class", "replace"] {
        let mut scratch = Scratch::new(rig, policy)?;
        let sizes = workload(3, rig.granule());
        for &bytes in &sizes {
            scratch.touch(rig, bytes)?;
        }
        let before = scratch.pool.stats();
        for &bytes in &sizes {
            scratch.touch(rig, bytes)?;
        }
        let after = scratch.pool.stats();
        ensure_eq!(
            after.registrations,
            before.registrations,
            "registrations of `{policy}`"
        );
        ensure_eq!(
            after.mapped_bytes(),
            before.mapped_bytes(),
            "bytes of `{policy}`"
        );
        scratch.close(rig)?;
    }
    Ok(())
}

fn sealed(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let _plan = handle.reserve(&[Request::new(2 * rig.granule())])?;
    handle.seal();
    let before = handle.stats();
    for granules in [1, 2, 5, 1, 9] {
        let count = granules * rig.granule() / 4;
        let mut tensor = rig.tensor::<f32>(count, 1)?;
        let done = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
        ensure_eq!(
            done.is_ok(),
            granules <= 2,
            "whether {granules} granules are staged"
        );
    }
    // What is there may be asked for again.
    let plan = handle.reserve(&[Request::new(1)])?;
    ensure_eq!(plan.registrations, 0, "registrations for what is there");
    let error = refused(
        "reserving after the seal",
        handle.reserve(&[Request::new(1), Request::new(5 * rig.granule())]),
    )?;
    ensure_eq!(
        error.misuse(),
        Some(&Misuse::Sealed),
        "reserving after the seal"
    );
    let after = handle.stats();
    ensure_eq!(after.registrations, before.registrations, "registrations");
    ensure_eq!(
        after.registrations_after_seal,
        0,
        "registrations after the seal"
    );
    rig.finish(handle)
}

fn larger_than_sealed(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    rig.eager(&mut handle, rig.granule(), rig.stream())?;
    handle.seal();
    let bytes = 10 * rig.granule();
    let mut tensor = rig.tensor::<f32>(bytes / 4, 1)?;
    let before = rig.witness().calls("allocate_symmetric");
    let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
    let error = refused("a larger request after the seal", reduced)?;
    let asked = match error.kind() {
        ErrorKind::NeedsReserve { bytes, when, .. } => Some((*bytes, *when)),
        _ => None,
    };
    ensure_eq!(
        asked,
        Some((bytes, MissedWhen::Sealed)),
        "what was asked for"
    );
    ensure_eq!(
        rig.witness().calls("allocate_symmetric"),
        before,
        "allocations so far"
    );
    rig.expect_all(
        "the tensor",
        &tensor,
        &rig.input(bytes / 4, 1),
        rig.stream(),
    )?;
    rig.eager(&mut handle, rig.granule(), rig.stream())?;
    rig.finish(handle)
}

fn steady_loop(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    let sizes = [100, 5000, rig.granule(), 2 * rig.granule() + 5, 700];
    let mut places = [None; 5];
    let mut changes = 0;
    for round in 0..200 {
        for (index, &bytes) in sizes.iter().enumerate() {
            let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
            // A new slot may be where an old one was.
            let place = Some((lease.slot(), lease.operand().addr));
            // The first sweep grows, the second settles which slot serves which size.
            changes += usize::from(round > 1 && places[index] != place);
            places[index] = place;
            lease.complete()?;
        }
    }
    ensure_eq!(changes, 0, "changes of slot or address in a steady loop");
    scratch.close(rig)
}

fn local_hits(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    scratch.touch(rig, 2 * rig.granule())?;
    let before = rig.witness().collective_calls();
    for _ in 0..20 {
        scratch.touch(rig, rig.granule())?;
    }
    let abandoned = rig.lease(&mut *scratch.comm, &mut *scratch.pool, 10)?;
    drop(abandoned);
    let calls = rig.witness().collective_calls();
    ensure_eq!(calls, before, "collective calls after hits and releases");
    let Scratch { mut comm, mut pool } = scratch;
    let _deferred = pool.close(&mut *comm)?;
    let before = rig.witness().collective_calls();
    drop(pool);
    ensure_eq!(
        rig.witness().collective_calls(),
        before,
        "calls after a drop"
    );
    let left = symmetric_of(&mut *comm)?.window_count();
    ensure_eq!(left, 0, "windows left");
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn on_miss(rig: &mut Rig<'_>) -> Outcome {
    for policy in [OnMiss::Error, OnMiss::Fallback] {
        let mut options = rig.options();
        options.on_miss = policy;
        let mut handle = rig.collectives_with("geometric", options)?;
        rig.eager(&mut handle, 100, rig.stream())?;
        handle.seal();
        let count = 3 * rig.granule() / 4;
        let mut tensor = rig.tensor::<f32>(count, 1)?;
        let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
        match policy {
            OnMiss::Fallback => {
                let report = reduced?;
                ensure_eq!(report.reason, Reason::MissAfterSeal, "the reason");
                rig.expect_sum("the fallback", &tensor, 1, rig.stream())?;
            }
            _ => {
                let error = refused("a miss after the seal", reduced)?;
                let reserve = matches!(error.kind(), ErrorKind::NeedsReserve { .. });
                ensure!(reserve, "not NeedsReserve: {error}");
            }
        }
        rig.finish(handle)?;
    }
    Ok(())
}
