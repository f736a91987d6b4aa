//! What ranks decide depends on nothing that differs between them.
#![forbid(unsafe_code)]

use std::time::Duration;

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Sample;
use collectives_core::layered::Layered;
use collectives_core::path::Staging;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Lease;

use crate::capability::Capability::{Graphs, Symmetric};
use crate::case::{Case, Outcome};
use crate::decorators::{Perturbed, Skewed, Sorted};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::values::Dice;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "B5",
        "ranks with other histories capture the same windows",
        other_history,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::WindowsNumberedLocally),
    Case::new(
        "C1",
        "the nth lease is the same slot whatever the addresses",
        nth_lease,
    )
    .needs(&[Symmetric])
    .catches(Planted::TiesByAddress),
    Case::new(
        "C2",
        "addresses never decide between hit and miss",
        no_extra_round,
    )
    .needs(&[Symmetric])
    .catches(Planted::HitAgrees),
    Case::new(
        "I33",
        "decisions depend only on what all ranks see",
        same_decisions,
    )
    .needs(&[Symmetric])
    .catches(Planted::LocalSizes),
    Case::new(
        "I33",
        "what is measured to decide by is the same on all ranks",
        measured_decisions,
    )
    .needs(&[Symmetric])
    .catches(Planted::AgreementEchoes),
    Case::new(
        "I34",
        "uneven counts give the same decisions everywhere",
        uneven_decisions,
    )
    .needs(&[Symmetric])
    .catches(Planted::PartSizedRequests),
    Case::new(
        "I38",
        "ranks register and deregister in the same sequence",
        same_sequence,
    )
    .needs(&[Symmetric])
    .catches(Planted::WindowsNumberedLocally),
];

fn measured_decisions(rig: &mut Rig<'_>) -> Outcome {
    const SMALL: usize = 4 << 10;
    let comm = rig.communicator()?;
    let scratch = rig.pool("geometric", rig.options())?;
    let mut handle = rig.handle(comm, scratch);
    let mut stream = rig.device().create_stream()?;
    let calibration = handle.calibrate(&[SMALL, 4 * SMALL], &mut stream)?;
    rig.expect_alike("the calibration", &format!("{calibration:?}"))?;
    let timed = |sample: &Sample| !sample.direct.is_zero() && !sample.staged.is_zero();
    ensure!(
        !calibration.0.is_empty() && calibration.0.iter().all(timed),
        "not everything was timed: {calibration:?}"
    );
    handle.set_staging(Staging::Auto);
    for count in [SMALL / 8, SMALL, 4 * SMALL] {
        let mut tensor = rig.tensor::<f32>(count, 3)?;
        let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        rig.expect_sum("a call after", &tensor, 3, rig.stream())?;
        rig.expect_alike("the way it took", &report.path.to_string())?;
    }
    let kept = handle.stats();
    ensure!(
        kept.slots.iter().all(|slot| !slot.leased),
        "a lease is out: {kept:?}"
    );
    drop(stream);
    rig.finish(handle)
}

fn other_history(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let seed = u64::try_from(rig.rank()).unwrap_or(0) + 1;
    let perturbed = Layered::new(Perturbed::new(seed), comm);
    let scratch = rig.pool("exact", rig.options())?;
    let mut handle = rig.handle(Box::new(perturbed), scratch);
    let mut graphs = Vec::new();
    let mut windows = Vec::new();
    for granules in 1..4 {
        rig.witness().forget();
        graphs.push(rig.replay_of(&mut handle, granules * rig.granule())?);
        let seen = rig.witness().moved();
        let named = |op: &crate::witness::Seen| op.send.window.map(|w| (w.window, w.offset));
        windows.extend(seen.iter().map(named));
    }
    rig.expect_alike("the windows of captures", &format!("{windows:?}"))?;
    for (round, graph) in graphs.iter_mut().enumerate() {
        rig.replay(graph, round, rig.stream())?;
    }
    drop(graphs);
    rig.finish(handle)
}

fn nth_lease(rig: &mut Rig<'_>) -> Outcome {
    let addresses = Sorted::new(rig.rank() % 2 == 1);
    let mut comm = rig.communicator_under(addresses)?;
    let mut scratch = rig.pool("geometric", rig.options())?;
    let mut dice = Dice::new(23);
    let mut order = Vec::new();
    let mut live = Vec::new();
    // Several equal slots, which come back in one order and go out again.
    for _ in 0..5 {
        live.push(rig.lease(&mut *comm, &mut *scratch, 1000)?);
    }
    for _ in 0..60 {
        if live.len() > 4 || !live.is_empty() && dice.roll(2) == 0 {
            let lease: Lease = live.remove(dice.roll(live.len()));
            lease.complete()?;
        } else {
            let lease = rig.lease(&mut *comm, &mut *scratch, 1000)?;
            order.push((
                lease.slot(),
                lease.operand().window.map(|slice| slice.window),
            ));
            live.push(lease);
        }
    }
    for lease in live {
        lease.complete()?;
    }
    rig.expect_alike("slots and windows of leases", &format!("{order:?}"))?;
    rig.close(comm, scratch)
}

fn no_extra_round(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let mut scratch = rig.pool("geometric", rig.options())?;
    let mut dice = Dice::new(3);
    for _ in 0..20 {
        let bytes = 1 + dice.roll(8 * rig.granule());
        let registrations = scratch.stats().registrations;
        let calls = rig.witness().collective_calls();
        rig.lease(&mut *comm, &mut *scratch, bytes)?.complete()?;
        let grew = scratch.stats().registrations != registrations;
        let called = rig.witness().collective_calls() != calls;
        ensure_eq!(
            called,
            grew,
            "whether a request that grew or not asked other ranks"
        );
    }
    let calls = rig.witness().collective_calls();
    rig.expect_alike("collective calls", &calls.to_string())?;
    rig.close(comm, scratch)
}

fn same_decisions(rig: &mut Rig<'_>) -> Outcome {
    for policy in ["exact", "replace", "geometric", "geometric-class"] {
        let mut comm = rig.communicator()?;
        let mut scratch = rig.pool(policy, rig.options())?;
        let mut dice = Dice::new(17);
        for _ in 0..25 {
            let bytes = 1 + dice.roll(6 * rig.granule());
            rig.lease(&mut *comm, &mut *scratch, bytes)?.complete()?;
        }
        let stats = scratch.stats();
        let state = format!("{:?} {}", stats.slots, stats.digest);
        rig.expect_alike("slots and digest", &state)?;
        rig.close(comm, scratch)?;
    }
    Ok(())
}

fn uneven_decisions(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    for round in 1..5 {
        let counts: Vec<usize> = (0..rig.ranks())
            .map(|rank| round * 1000 * (rank + 1))
            .collect();
        let mine = rig.tensor::<i32>(counts[rig.rank()], round)?;
        let total: usize = counts.iter().sum();
        let device = rig.device();
        let mut gathered = Buffer::<i32>::zeroed(&device, total, rig.stream())?;
        handle.all_gather_v(&mine, &mut gathered, &counts, rig.stream())?;
        let expected: Vec<i32> = (0..rig.ranks())
            .flat_map(|rank| crate::values::input(rank, rig.ranks(), counts[rank], round))
            .collect();
        rig.expect_all("uneven parts", &gathered, &expected, rig.stream())?;
        let whole = rig.tensor::<i32>(total, round)?;
        let mut part = Buffer::<i32>::zeroed(&device, counts[rig.rank()], rig.stream())?;
        handle.reduce_scatter_v(&whole, &mut part, &counts, ReduceOp::Sum, rig.stream())?;
        let start: usize = counts[..rig.rank()].iter().sum();
        let sums = crate::values::sum::<i32>(rig.ranks(), total, round);
        let mine = &sums[start..start + counts[rig.rank()]];
        rig.expect_all("an uneven scatter", &part, mine, rig.stream())?;
    }
    rig.expect_alike("the digest", &handle.stats().digest.to_string())?;
    rig.finish(handle)
}

fn same_sequence(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let seed = u64::try_from(rig.rank()).unwrap_or(0) + 40;
    let comm = Layered::new(Skewed::new(Duration::from_micros(300), seed), comm);
    let scratch = rig.pool("replace", rig.options())?;
    let mut handle = rig.handle(Box::new(comm), scratch);
    let mut buffers = Vec::new();
    let mut numbers = Vec::new();
    for round in 1..6 {
        rig.eager(&mut handle, round * rig.granule(), rig.stream())?;
        let buffer = handle.symmetric_buffer::<u8>(round * 10)?;
        numbers.push(buffer.window().map(|slice| slice.window));
        buffers.push(buffer);
        if round % 2 == 0 {
            buffers.remove(0);
            let _trimmed = handle.trim()?;
        }
    }
    drop(buffers);
    let _deferred = handle.close()?;
    let events = rig.witness().windows();
    ensure!(events.len() > 10, "{} window events only", events.len());
    rig.expect_alike("the sequence", &format!("{events:?}"))?;
    rig.expect_alike("the windows of buffers", &format!("{numbers:?}"))
}
