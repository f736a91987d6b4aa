//! Many captures and replays: exact, and without a leak.
#![forbid(unsafe_code)]

use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use crate::capability::Capability::{CountsMemory, Graphs, Symmetric};
use crate::case::{Case, Outcome, refused};
use crate::ensure_eq;
use crate::planted::Planted;
use crate::rig::{Handle, Rig};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "A14",
        "captures leak no memory of the device",
        captures_leak_nothing,
    )
    .needs(&[Symmetric, Graphs, CountsMemory])
    .catches(Planted::RetainForever),
    Case::new("B4", "a hundred captures and replays are exact", hundred)
        .needs(&[Symmetric, Graphs])
        .catches(Planted::LaunchesAreFlaky),
    Case::new(
        "B8",
        "replays back to back read what the one before wrote",
        back_to_back,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::LaunchesTwice),
    Case::new(
        "B12",
        "many replays mixed with eager calls keep memory flat",
        flat_memory,
    )
    .needs(&[Symmetric, Graphs, CountsMemory])
    .catches(Planted::LaunchesLeak),
    Case::new(
        "I50",
        "a replay is counted once for every slot that its graph owns",
        counted,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::ReplaysForgotten),
];

fn captures_leak_nothing(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let warm = rig.replay_of(&mut handle, 1 << 12)?;
    rig.settle();
    let before = (rig.probe().ordinary_bytes(), handle.stats().slots.len());
    for _ in 0..100 {
        drop(rig.replay_of(&mut handle, 1 << 12)?);
    }
    rig.settle();
    let after = (rig.probe().ordinary_bytes(), handle.stats().slots.len());
    ensure_eq!(after, before, "memory and slots after a hundred captures");
    drop(warm);
    rig.finish(handle)
}

fn hundred(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let mut kept = rig.replay_of(&mut handle, 640)?;
    for round in 0..100 {
        let mut graph = rig.replay_of(&mut handle, 64 * (1 + round % 7))?;
        rig.replay(&mut graph, round, rig.stream())?;
        if round % 3 == 0 {
            rig.replay(&mut kept, round, rig.stream())?;
        }
    }
    drop(kept);
    rig.finish(handle)
}

fn back_to_back(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
    let count = graph.tensor.len();
    let device = rig.device();
    graph.tensor.write(&rig.input(count, 1), rig.stream())?;
    for _ in 0..4 {
        graph.executable.launch(&*device, rig.stream())?;
    }
    // The first makes the sum; each of the others multiplies it by the number of ranks.
    let ranks = f32::from(u8::try_from(rig.ranks()).unwrap_or(1));
    let sums = crate::values::sum::<f32>(rig.ranks(), count, 1);
    let expected: Vec<f32> = sums.into_iter().map(|sum| sum * ranks.powi(3)).collect();
    rig.expect_all("four replays", &graph.tensor, &expected, rig.stream())?;
    drop(graph);
    rig.finish(handle)
}

fn flat_memory(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
    let device = rig.device();
    for _ in 0..2 {
        graph.executable.launch(&*device, rig.stream())?;
        rig.eager(&mut handle, 1 << 11, rig.stream())?;
    }
    rig.settle();
    let before = (rig.mapped_bytes(), rig.probe().ordinary_bytes());
    for round in 0..300 {
        graph.executable.launch(&*device, rig.stream())?;
        if round % 10 == 0 {
            rig.eager(&mut handle, 1 << 11, rig.stream())?;
        }
    }
    device.synchronize(rig.stream())?;
    rig.settle();
    let after = (rig.mapped_bytes(), rig.probe().ordinary_bytes());
    ensure_eq!(after, before, "memory after many replays");
    drop(graph);
    let trimmed = rig.settled_trim(&mut handle)?;
    ensure_eq!(trimmed.held_bytes, 0, "bytes held after the graph is gone");
    rig.finish(handle)
}

fn counted(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("exact")?;
    let (device, sizes) = (rig.device(), [1 << 12, 2 * rig.granule()]);
    let _plan = handle.reserve(&sizes.map(Request::new))?;
    let mut of_one = rig.replay_of(&mut handle, sizes[0])?;
    let mut small = rig.tensor::<f32>(sizes[0] / 4, 0)?;
    let mut large = rig.tensor::<f32>(sizes[1] / 4, 0)?;
    let (template, _) = rig.capture(|capture| {
        handle.all_reduce(&mut small, ReduceOp::Sum, capture.stream())?;
        handle.all_reduce(&mut small, ReduceOp::Sum, capture.stream())?;
        handle.all_reduce(&mut large, ReduceOp::Sum, capture.stream())
    })?;
    let mut of_both = template.instantiate()?;
    drop(template);
    let counts = |handle: &Handle| {
        let stats = handle.stats();
        let of_slots = stats.slots.iter().map(|slot| slot.replays);
        (of_slots.collect::<Vec<_>>(), stats.replays)
    };
    ensure_eq!(counts(&handle), (vec![0, 0], 0), "replays before the first");
    for round in 0..3 {
        rig.replay(&mut of_one, round, rig.stream())?;
        rig.eager(&mut handle, sizes[0], rig.stream())?;
    }
    for _ in 0..2 {
        of_both.launch(&*device, rig.stream())?;
    }
    // What was not launched does not count.
    let (_nothing, launched) =
        rig.capture(|capture| Ok(of_one.executable.launch(&*device, capture.stream())))?;
    refused("a launch on a capturing stream", launched)?;
    ensure_eq!(
        counts(&handle),
        (vec![5, 2], 7),
        "replays by slot and in all"
    );
    device.synchronize(rig.stream())?;
    drop(of_both);
    let _trimmed = rig.settled_trim(&mut handle)?;
    ensure_eq!(
        counts(&handle),
        (vec![5], 7),
        "replays after a slot is gone"
    );
    rig.replay(&mut of_one, 9, rig.stream())?;
    ensure_eq!(counts(&handle), (vec![6], 8), "replays after one more");
    drop(of_one);
    rig.finish(handle)
}
