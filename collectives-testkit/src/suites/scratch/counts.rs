//! What is priced, reported and counted.
#![forbid(unsafe_code)]

use collectives_core::collective::Op;
use collectives_core::dtype::DType;
use collectives_core::error::Misuse;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_core::stats::SlotStats;

use super::Scratch;
use crate::capability::Capability::{CountsMemory, Symmetric};
use crate::case::{Case, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "I9",
        "reported bytes are what the device lost",
        reported_bytes,
    )
    .needs(&[Symmetric, CountsMemory])
    .catches(Planted::StatsUndercount),
    Case::new("I10", "the seed sweep is priced as published", seed_sweep)
        .on(1)
        .needs(&[Symmetric])
        .catches(Planted::PlanHalves),
    Case::new(
        "I50",
        "every request is a hit a growth a fallback or a refusal",
        counted,
    )
    .needs(&[Symmetric])
    .catches(Planted::HitsUncounted),
    Case::new(
        "E16",
        "a plan prices sizes beyond four gibibytes without loss",
        large_sizes,
    )
    .needs(&[Symmetric])
    .catches(Planted::PlanHalves),
    Case::new(
        "F16",
        "reserving what a plan priced costs what it said",
        plan_is_kept,
    )
    .needs(&[Symmetric])
    .catches(Planted::PlanHalves),
];

fn reported_bytes(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "exact")?;
    rig.settle();
    let base = rig.mapped_bytes().unwrap_or(0);
    for bytes in [1, 4097, rig.granule(), rig.granule() + 1] {
        scratch.touch(rig, bytes)?;
        let stats = scratch.pool.stats();
        let lost = rig.mapped_bytes().unwrap_or(0) - base;
        ensure_eq!(stats.mapped_bytes(), lost, "mapped bytes reported and lost");
        let priced = |slot: &SlotStats| scratch.comm.info().mapped(slot.capacity);
        let sum: usize = stats.slots.iter().map(priced).sum();
        ensure_eq!(
            stats.mapped_bytes(),
            sum,
            "mapped bytes and the sum of whole granules"
        );
    }
    scratch.close(rig)
}

fn seed_sweep(rig: &mut Rig<'_>) -> Outcome {
    // Sixteen prompt lengths beside five captured batches, in rows of 5120 two-byte elements.
    let padded = |tokens: usize| Request::new(tokens.next_multiple_of(64) * 10_240);
    let mut requests: Vec<_> = [1, 8, 64, 128, 256].map(padded).into();
    let prompts = [
        37, 64, 101, 150, 192, 230, 300, 350, 410, 480, 505, 570, 640, 655, 700, 768,
    ];
    requests.extend(prompts.map(padded));
    let mut comm = rig.communicator()?;
    for (policy, expected) in [
        ("exact", 51_118_080),           // 48.75 MiB
        ("geometric-class", 15_728_640), // 15 MiB
    ] {
        let mut pool = rig.pool(policy, rig.options())?;
        let plan = pool.plan(&mut *comm, &requests)?;
        ensure_eq!(plan.capacity_bytes, expected, "what `{policy}` keeps");
    }
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn counted(rig: &mut Rig<'_>) -> Outcome {
    let mut options = rig.options();
    options.cap = Some(4 * rig.granule());
    let mut handle = rig.collectives_with("geometric", options)?;
    let granules = [1, 1, 2, 9, 2, 4, 9, 1];
    for granules in granules {
        rig.eager(&mut handle, granules * rig.granule(), rig.stream())?;
    }
    handle.seal();
    let stats = handle.stats();
    let sum = stats.hits + stats.growths + stats.fallback_count() + stats.refusals;
    ensure_eq!(stats.requests, sum, "requests and the sum of outcomes");
    ensure_eq!(stats.requests, granules.len() as u64, "requests");
    ensure_eq!(stats.fallback_count(), 2, "fallbacks");
    ensure_eq!(
        stats.growths,
        stats.registrations,
        "growths and registrations"
    );
    let sizes: u64 = stats.histogram.0.iter().sum();
    ensure_eq!(sizes, stats.requests, "requests in the histogram");
    rig.expect_alike("the digest of decisions", &stats.digest.to_string())?;
    rig.finish(handle)
}

fn large_sizes(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("exact")?;
    let granule = rig.granule();
    for elements in [(1 << 29) - 1, 1 << 29, (1 << 29) + 1, (5 << 30) / 4 + 3] {
        let op = Op::AllReduce(ReduceOp::Sum);
        let dtype = DType::F32;
        let request = handle.request_for(op, dtype, elements)?;
        ensure_eq!(request, Some(Request::new(elements * 4)), "the request");
        let plan = handle.plan(&[Request::new(elements * 4)])?;
        ensure_eq!(plan.capacity_bytes, elements * 4, "capacity");
        let over = plan.mapped_bytes - plan.capacity_bytes;
        ensure!(over < 2 * granule, "{over} bytes more are mapped");
        let error = refused(
            "a size that overflows",
            handle.request_for(op, dtype, usize::MAX / 2),
        )?;
        let overflow = matches!(error.misuse(), Some(Misuse::SizeOverflow { .. }));
        ensure!(overflow, "a size that overflows: {error}");
    }
    ensure_eq!(handle.stats().mapped_bytes(), 0, "bytes that plans spent");
    rig.finish(handle)
}

fn plan_is_kept(rig: &mut Rig<'_>) -> Outcome {
    for policy in ["exact", "geometric", "geometric-class", "replace"] {
        let mut scratch = Scratch::new(rig, policy)?;
        let requests: Vec<_> = [1, 7, 3, 2, 7]
            .map(|granules| Request::new(granules * rig.granule() - 5))
            .into();
        let plan = scratch.pool.plan(&mut *scratch.comm, &requests)?;
        ensure_eq!(
            scratch.pool.stats().mapped_bytes(),
            0,
            "bytes that a plan spent"
        );
        scratch.pool.reserve(&mut *scratch.comm, &requests)?;
        let stats = scratch.pool.stats();
        ensure_eq!(
            stats.mapped_bytes(),
            plan.mapped_bytes,
            "mapped bytes of `{policy}`"
        );
        ensure_eq!(
            stats.capacity_bytes(),
            plan.capacity_bytes,
            "capacity of `{policy}`"
        );
        let registrations = stats.registrations;
        ensure_eq!(
            registrations,
            plan.registrations as u64,
            "registrations of `{policy}`"
        );
        for request in &requests {
            scratch.touch(rig, request.bytes)?;
        }
        let after = scratch.pool.stats().registrations;
        if policy != "exact" {
            ensure_eq!(
                after,
                registrations,
                "registrations after reserving, of `{policy}`"
            );
        }
        scratch.close(rig)?;
    }
    Ok(())
}
