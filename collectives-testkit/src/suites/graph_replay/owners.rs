//! Who owns what a graph uses, once its handles, its allocator or its template are gone.
#![forbid(unsafe_code)]

use collectives_core::collectives::Collectives;
use collectives_core::path::{Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use crate::capability::Capability::{Graphs, Symmetric};
use crate::case::{Case, Outcome};
use crate::planted::Planted;
use crate::rig::{Handle, Replay, Rig};
use crate::suites::streams::no_conflict;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "A8",
        "a graph keeps buffers whose last handle is gone",
        dropped_buffers,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::RetainForgotten),
    Case::new(
        "A8",
        "a kernel that is no collective takes its turn, and a captured one keeps its buffers",
        own_kernels,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::RetainForgotten),
    Case::new(
        "A10",
        "a graph replays after its allocator is gone",
        dropped_allocator,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::LaunchDoesNothing),
    Case::new(
        "A15",
        "an executable owns what its dropped graph did",
        executable_owns,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::ExecutableOwnsNothing),
    Case::new(
        "I21",
        "copies and executables of a graph keep its slot in place",
        copies_own,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::CopyOwnsNothing),
];

fn dropped_buffers(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let count = rig.granule() / 4;
    let mut input = handle.symmetric_buffer::<f32>(count)?;
    let mut output = handle.symmetric_buffer::<f32>(count)?;
    input.write(&rig.input(count, 3), rig.stream())?;
    handle.set_staging(Staging::Never);
    let (graph, report) = rig.capture(|capture| {
        handle.all_reduce_into(&input, &mut output, ReduceOp::Sum, capture.stream())
    })?;
    ensure_eq!(
        report.path,
        Path::ZeroCopy,
        "the path of buffers in windows"
    );
    let mut graph = graph.instantiate()?;
    drop(input);
    let held = handle.trim()?;
    ensure!(
        held.held_bytes > 0,
        "a trim says that nothing is held: {held:?}"
    );
    let mut sentinel = handle.symmetric_buffer::<f32>(count)?;
    let marks = vec![-12_345.0_f32; count];
    sentinel.write(&marks, rig.stream())?;
    let device = rig.device();
    for _ in 0..3 {
        output.write(&vec![0.0; count], rig.stream())?;
        graph.launch(&*device, rig.stream())?;
        rig.expect_sum("output of a dropped input", &output, 3, rig.stream())?;
    }
    rig.expect_all("the sentinel", &sentinel, &marks, rig.stream())?;
    drop((graph, sentinel, output));
    rig.finish(handle)
}

fn own_kernels(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let (device, count) = (rig.device(), rig.granule() / 4);
    let beside = device.create_stream()?;
    handle.set_staging(Staging::Never);
    let mut hidden = handle.symmetric_buffer::<f32>(count)?;
    let mut output = handle.symmetric_buffer::<f32>(count)?;
    let mut tensor = rig.tensor::<f32>(count, 3)?;

    // Between two collectives, on another stream. The sum is the largest of what all ranks have.
    handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
    Rig::duplicate(&*device, &tensor, &mut hidden, &beside)?;
    handle.all_reduce_into(&hidden, &mut output, ReduceOp::Max, rig.stream())?;
    rig.expect_sum("what a kernel passed on", &output, 3, rig.stream())?;
    no_conflict(rig)?;

    let (graph, ()) = rig.capture(|capture| {
        Rig::duplicate(&*device, &tensor, &mut hidden, capture.stream())?;
        Rig::duplicate(&*device, &hidden, &mut output, capture.stream())
    })?;
    let mut graph = graph.instantiate()?;
    drop(hidden);
    let held = handle.trim()?;
    ensure!(
        held.held_bytes > 0,
        "a trim says that nothing is held: {held:?}"
    );
    for round in 0..3 {
        let input = rig.input(count, round);
        tensor.write(&input, rig.stream())?;
        graph.launch(&*device, rig.stream())?;
        rig.expect_all(
            "what captured kernels passed on",
            &output,
            &input,
            rig.stream(),
        )?;
    }
    drop((graph, output));
    rig.finish(handle)
}

fn dropped_allocator(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let bytes = rig.granule();
    let mut graph = {
        let scratch = rig.pool("geometric", rig.options())?;
        let mut handle = Collectives::new(&mut comm, scratch);
        handle.set_staging(Staging::Forced);
        let _plan = handle.reserve(&[Request::new(bytes)])?;
        let mut tensor = rig.tensor::<f32>(bytes / 4, 0)?;
        let (graph, _) =
            rig.capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
        Replay::new(&graph, tensor)?
    };
    let mut churn = rig.handle(comm, rig.pool("exact", rig.options())?);
    for round in 0..4 {
        rig.eager(&mut churn, (round + 1) * bytes, rig.stream())?;
        rig.replay(&mut graph, round, rig.stream())?;
        let _trimmed = churn.trim()?;
    }
    drop(graph);
    let _deferred = churn.close()?;
    Ok(())
}

/// Retires the slots of the handle, as far as nobody owns them, and checks that `graph` still works.
pub(super) fn works_after_churn(
    rig: &mut Rig<'_>,
    handle: &mut Handle,
    graph: &mut Replay,
) -> Outcome {
    let _trimmed = rig.settled_trim(handle)?;
    let granule = rig.granule();
    let mut filler = handle.symmetric_buffer::<u8>(granule)?;
    filler.write(&vec![0x3c; granule], rig.stream())?;
    for round in 0..3 {
        rig.replay(graph, round, rig.stream())?;
        rig.eager(handle, (round + 2) * granule, rig.stream())?;
    }
    Ok(())
}

fn executable_owns(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
    works_after_churn(rig, &mut handle, &mut graph)?;
    drop(graph);
    rig.finish(handle)
}

fn copies_own(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let (graph, tensor) = rig.captured(&mut handle, 1 << 10)?;
    let copy = graph.duplicate()?;
    drop(graph);
    let held = rig.settled_trim(&mut handle)?.held_bytes;
    ensure!(held > 0, "nothing is held while a copy of the graph lives");
    let mut graph = Replay::new(&copy, tensor)?;
    drop(copy);
    works_after_churn(rig, &mut handle, &mut graph)?;
    drop(graph);
    rig.finish(handle)
}
