//! Bytes that come back when graphs end, on each rank at another time or before they began.
#![forbid(unsafe_code)]

use collectives_core::buffer::Buffer;
use collectives_core::error::ErrorKind;
use collectives_core::graph::Capture;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use crate::capability::Capability::{CountsMemory, DelaysDestructors, Graphs, Symmetric};
use crate::case::{Case, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "A13",
        "destroyed graphs give their bytes back",
        destroyed_graphs,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::RetainForever),
    Case::new(
        "A19",
        "a disposed graph leaves the allocator usable and flat",
        disposed,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::RetainForever),
    Case::new("B13", "graph and communicator go in any order", drop_orders)
        .needs(&[Symmetric, Graphs])
        .catches(Planted::LaunchErrorsSwallowed),
    Case::new(
        "C4",
        "bytes come back when the last rank has destroyed its graph",
        uneven_ends,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::AgreementEchoes),
    Case::new(
        "A7",
        "a trim frees nothing a graph uses and says so",
        trim_with_graph,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::TrimHidesHeld),
    Case::new(
        "I25",
        "claims end when the queued destructor has run",
        queued_release,
    )
    .needs(&[Symmetric, Graphs, DelaysDestructors])
    .catches(Planted::RetainForgotten),
    Case::new(
        "I25",
        "the end of a graph frees nothing before the next collective point",
        freed_at_a_collective_point,
    )
    .needs(&[Symmetric, Graphs, CountsMemory])
    .catches(Planted::RetainForever),
    Case::new(
        "A13",
        "failed and abandoned captures give back what they used",
        abandoned,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::RetainForever),
];

fn destroyed_graphs(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    for round in 0..40 {
        let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
        if round % 10 == 0 {
            rig.replay(&mut graph, round, rig.stream())?;
        }
    }
    let trimmed = rig.settled_trim(&mut handle)?;
    ensure_eq!(
        trimmed.held_bytes,
        0,
        "bytes held after all graphs are gone"
    );
    ensure_eq!(handle.stats().mapped_bytes(), 0, "bytes kept after a trim");
    rig.finish(handle)
}

fn disposed(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
    rig.replay(&mut graph, 1, rig.stream())?;
    drop(graph);
    rig.settle();
    rig.meet()?;
    for index in 0..60 {
        rig.eager(&mut handle, 256 * (1 + index * 37 % 64), rig.stream())?;
    }
    let _trimmed = handle.trim()?;
    ensure_eq!(handle.stats().mapped_bytes(), 0, "bytes kept after a trim");
    rig.finish(handle)
}

fn drop_orders(rig: &mut Rig<'_>) -> Outcome {
    for order in 0..4 {
        let mut handle = rig.collectives("geometric")?;
        let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
        rig.replay(&mut graph, order, rig.stream())?;
        let device = rig.device();
        match order {
            0 => {
                let deferred = handle.close()?;
                ensure_eq!(deferred.windows, 1, "windows left to the graph");
                ensure!(
                    deferred.communicator,
                    "the graph does not own the communicator"
                );
                let launched = graph.executable.launch(&*device, rig.stream());
                let error = refused("a launch after close", launched)?;
                ensure_eq!(*error.kind(), ErrorKind::Closed, "a launch after close");
                drop(graph);
            }
            1 => {
                drop(graph);
                rig.settle();
                rig.meet()?;
                let deferred = handle.close()?;
                ensure_eq!(deferred.windows, 0, "windows left to nobody");
            }
            2 => {
                drop(graph.executable);
                let _deferred = handle.close()?;
                drop(graph.tensor);
            }
            _ => {
                drop(graph.tensor);
                let _deferred = handle.close()?;
                drop(graph.executable);
            }
        }
    }
    Ok(())
}

fn uneven_ends(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let mut graph = Some(rig.replay_of(&mut handle, 1 << 12)?);
    rig.eager(&mut handle, 2 * rig.granule(), rig.stream())?;
    for last in (0..rig.ranks()).rev() {
        let held = handle.trim()?.held_bytes;
        ensure!(held > 0, "nothing is held while rank {last} has its graph");
        if let Some(graph) = &mut graph
            && last == rig.ranks() - 1
        {
            rig.replay(graph, last, rig.stream())?;
        }
        if rig.rank() == last {
            graph = None;
        }
        rig.settle();
        rig.meet()?;
    }
    let trimmed = handle.trim()?;
    ensure_eq!(
        trimmed.held_bytes,
        0,
        "bytes held after the last rank let go"
    );
    ensure_eq!(handle.stats().mapped_bytes(), 0, "bytes kept");
    rig.finish(handle)
}

fn trim_with_graph(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("exact")?;
    let granule = rig.granule();
    let mut graph = rig.replay_of(&mut handle, granule)?;
    rig.eager(&mut handle, 3 * granule, rig.stream())?;
    let kept = handle.stats().mapped_bytes();
    let trimmed = handle.trim()?;
    ensure_eq!(
        trimmed.mapped_bytes + trimmed.held_bytes,
        kept,
        "freed and held bytes"
    );
    ensure!(
        trimmed.held_bytes >= granule,
        "the graph's slot is not held: {trimmed:?}"
    );
    ensure_eq!(trimmed.slots, 1, "slots retired");
    rig.replay(&mut graph, 4, rig.stream())?;
    drop(graph);
    rig.finish(handle)
}

fn queued_release(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let graph = rig.replay_of(&mut handle, 1 << 12)?;
    let _trimmed = handle.trim()?;
    ensure!(
        handle.stats().mapped_bytes() > 0,
        "the slot of a graph is gone"
    );
    // The last handle goes on this thread; what it owned is released on another, later.
    drop(graph);
    let trimmed = rig.settled_trim(&mut handle)?;
    ensure_eq!(
        (trimmed.slots, trimmed.held_bytes),
        (1, 0),
        "slots freed and bytes held"
    );
    rig.finish(handle)
}

fn freed_at_a_collective_point(rig: &mut Rig<'_>) -> Outcome {
    let before = rig.mapped_bytes();
    let mut handle = rig.collectives("replace")?;
    let graph = rig.replay_of(&mut handle, rig.granule())?;
    let with_graph = rig.mapped_bytes();
    drop(graph);
    // By now the destructor has run, on whichever thread runs destructors.
    rig.settle();
    rig.meet()?;
    ensure_eq!(
        rig.mapped_bytes(),
        with_graph,
        "bytes of the device after the destructor"
    );
    ensure_eq!(handle.stats().deregistrations, 0, "windows retired");
    let trimmed = rig.settled_trim(&mut handle)?;
    ensure_eq!(trimmed.held_bytes, 0, "bytes held after the destructor");
    rig.settle();
    ensure_eq!(
        rig.mapped_bytes(),
        before,
        "bytes of the device after the trim"
    );
    rig.finish(handle)
}

fn abandoned(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let device = rig.device();
    let mut tensor = rig.tensor::<f32>(1 << 10, 6)?;
    for _ in 0..3 {
        let capture = Capture::begin(&*device, &mut rig.stream)?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
        drop(capture);
    }
    let error = rig.failing_capture(|stream| {
        handle
            .all_reduce(&mut tensor, ReduceOp::Sum, stream)
            .map(drop)
    })?;
    ensure!(
        matches!(error.kind(), ErrorKind::Capture(_)),
        "a capture with a lost branch: {error}"
    );
    // A template that is never instantiated.
    let (template, _) =
        rig.capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
    drop(template);
    rig.expect_all(
        "what was never run",
        &tensor,
        &rig.input(1 << 10, 6),
        rig.stream(),
    )?;
    drop::<Buffer<f32>>(tensor);
    let trimmed = rig.settled_trim(&mut handle)?;
    ensure_eq!(trimmed.held_bytes, 0, "bytes held after abandoned captures");
    rig.finish(handle)
}
