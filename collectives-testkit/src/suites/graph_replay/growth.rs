//! What graphs survive: slots that are replaced, trimmed and shared, in any order of sizes.
#![forbid(unsafe_code)]

use collectives_core::scratch::Request;

use crate::capability::Capability::{Graphs, Symmetric};
use crate::case::{Case, Outcome};
use crate::ensure_eq;
use crate::planted::Planted;
use crate::rig::Rig;

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "A1",
        "a graph outlives every replacement of its slot",
        outlives_replacement,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::ReplaceWithoutClaims),
    Case::new(
        "A4",
        "graphs captured at ascending sizes replay in any order",
        ascending,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::RetainForgotten),
    Case::new(
        "A5",
        "graphs survive eager growth between captures",
        eager_growth_between,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::ReplaceWithoutClaims),
    Case::new(
        "I22",
        "old graphs replay alike after any growth",
        any_growth,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::ReplaceWithoutClaims),
    Case::new(
        "A21",
        "graphs of different sizes share one slot",
        share_a_slot,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::CapturedCopiesShort),
];

fn outlives_replacement(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let mut graph = rig.replay_of(&mut handle, 1 << 10)?;
    let granule = rig.granule();
    for (round, granules) in [2, 4, 8, 16].into_iter().enumerate() {
        rig.eager(&mut handle, granules * granule, rig.stream())?;
        // Freed space gets another pattern.
        let mut filler = handle.symmetric_buffer::<u8>(granule)?;
        filler.write(&vec![0x5a; granule], rig.stream())?;
        for again in 0..3 {
            rig.replay(&mut graph, 3 * round + again, rig.stream())?;
        }
    }
    drop(graph);
    rig.finish(handle)
}

fn ascending(rig: &mut Rig<'_>) -> Outcome {
    for policy in ["replace", "exact", "geometric"] {
        for sizes in [[1, 2, 4, 8], [8, 4, 2, 1]] {
            let mut handle = rig.collectives(policy)?;
            let granule = rig.granule();
            let mut graphs = Vec::new();
            for size in sizes {
                graphs.push(rig.replay_of(&mut handle, size * granule)?);
            }
            let _trimmed = handle.trim()?;
            for (round, index) in [0, 3, 1, 2, 0, 0, 2].into_iter().enumerate() {
                rig.replay(&mut graphs[index], round, rig.stream())?;
            }
            drop(graphs);
            rig.finish(handle)?;
        }
    }
    Ok(())
}

fn eager_growth_between(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let other = rig.device().create_stream()?;
    let granule = rig.granule();
    let mut graphs = Vec::new();
    for size in [1, 2, 4] {
        graphs.push(rig.replay_of(&mut handle, size * granule)?);
        rig.eager(&mut handle, 3 * size * granule, rig.stream())?;
    }
    for round in 0..3 {
        for (index, graph) in graphs.iter_mut().enumerate() {
            let on = if (index + round) % 2 == 0 {
                rig.stream()
            } else {
                &other
            };
            rig.replay(graph, round, on)?;
        }
        rig.eager(&mut handle, (13 + round) * granule, &other)?;
    }
    drop(graphs);
    rig.finish(handle)
}

fn share_a_slot(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let granule = rig.granule();
    let _plan = handle.reserve(&[Request::new(8 * granule)])?;
    let registrations = handle.stats().registrations;
    let mut small = rig.replay_of(&mut handle, granule)?;
    let mut large = rig.replay_of(&mut handle, 8 * granule)?;
    ensure_eq!(handle.stats().registrations, registrations, "registrations");
    for round in 0..6 {
        rig.replay(&mut small, round, rig.stream())?;
        rig.replay(&mut large, round + 1, rig.stream())?;
        rig.replay(&mut large, round + 2, rig.stream())?;
    }
    drop((small, large));
    rig.finish(handle)
}

fn any_growth(rig: &mut Rig<'_>) -> Outcome {
    for policy in ["replace", "geometric", "geometric-class"] {
        let mut handle = rig.collectives(policy)?;
        let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
        rig.replay(&mut graph, 5, rig.stream())?;
        let first = graph.tensor.read(rig.stream())?;
        for granules in 1..=6 {
            rig.eager(&mut handle, granules * rig.granule(), rig.stream())?;
            let _trimmed = handle.trim()?;
            rig.replay(&mut graph, 5, rig.stream())?;
            ensure_eq!(graph.tensor.read(rig.stream())?, first, "a later replay");
        }
        drop(graph);
        rig.finish(handle)?;
    }
    Ok(())
}
