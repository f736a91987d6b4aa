//! What a capture does, and what it must leave alone.
#![forbid(unsafe_code)]

use std::sync::Arc;

use collectives_core::collectives::Collectives;
use collectives_core::error::{CaptureFault, ErrorKind, MissedWhen, Misuse};
use collectives_core::graph::Capture;
use collectives_core::path::{Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use crate::capability::Capability::{Graphs, Symmetric};
use crate::case::{Case, Failure, Outcome, refused};
use crate::planted::Planted;
use crate::rig::{Handle, Replay, Rig};
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "A17",
        "a captured graph allocates nothing",
        no_allocation_nodes,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::AllocatesInCapture),
    Case::new(
        "B2",
        "what was warmed on one stream is there for a capture on another",
        warmed,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::SlotsPerStream),
    Case::new(
        "B7",
        "a capturing stream refuses a launch and the capture goes on",
        no_launch,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::CaptureHidden),
    Case::new(
        "B11",
        "a captured operation runs on exactly the requested bytes",
        exact_bytes,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::WholeSlotReduced),
    Case::new(
        "I23",
        "nothing is agreed or registered while a stream captures",
        quiet_capture,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::AgreesInCapture),
    Case::new(
        "I23",
        "no window is made or retired while a capture goes on that took no scratch",
        windows_stay,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::CapturesUnheard),
    Case::new(
        "I23",
        "no buffer is made or given back while a capture goes on",
        buffers_stay,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::CaptureHidden),
    Case::new(
        "I23",
        "a capture makes the host wait for nothing",
        no_host_wait,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::WaitsInCapture),
];

fn no_allocation_nodes(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let mut tensor = rig.tensor::<f32>(1 << 10, 0)?;
    let witness = Arc::clone(&rig.witness);
    let allocations = || witness.calls("allocate") + witness.calls("allocate_symmetric");
    let before = allocations();
    let (graph, _) = rig.capture(|capture| {
        for _ in 0..3 {
            handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
        }
        Ok(())
    })?;
    ensure_eq!(allocations(), before, "allocations so far, after a capture");
    // Copy in, operation, copy out, wait and record, three times over; a library may put a wait and a
    // record of its own around its kernel.
    ensure!(graph.node_count() <= 3 * 7, "{} nodes", graph.node_count());
    let mut graph = graph.instantiate()?;
    graph.launch(&*rig.device(), rig.stream())?;
    rig.device().synchronize(rig.stream())?;
    ensure_eq!(allocations(), before, "allocations so far, after a launch");
    drop(graph);
    rig.finish(handle)
}

fn warmed(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let other = rig.device().create_stream()?;
    let bytes = 2 * rig.granule();
    rig.eager(&mut handle, bytes, &other)?;
    let registrations = handle.stats().registrations;
    let (graph, tensor) = rig.captured(&mut handle, bytes / 4)?;
    ensure_eq!(handle.stats().registrations, registrations, "registrations");
    let mut graph = Replay::new(&graph, tensor)?;
    rig.replay(&mut graph, 1, &other)?;
    drop(graph);
    rig.finish(handle)
}

/// Captures two calls on a buffer in a window, with what `between` does meanwhile, and replays them.
fn around<R>(
    rig: &mut Rig<'_>,
    handle: &mut Handle,
    between: impl FnOnce(&mut Handle) -> R,
) -> Outcome<R> {
    handle.set_staging(Staging::Never);
    let count = 100;
    let mut buffer = handle.symmetric_buffer::<f32>(count)?;
    let changes = |rig: &Rig<'_>| {
        (
            rig.witness().windows().len(),
            rig.witness().calls("allocate_symmetric"),
        )
    };
    let before = changes(rig);
    let (graph, done) = rig.capture(|capture| {
        let report = handle.all_reduce(&mut buffer, ReduceOp::Sum, capture.stream())?;
        let done = between(handle);
        handle.all_reduce(&mut buffer, ReduceOp::Sum, capture.stream())?;
        Ok((report.path, done))
    })?;
    ensure_eq!(done.0, Path::ZeroCopy, "the path captured");
    ensure_eq!(changes(rig), before, "windows and allocations so far");
    let mut graph = graph.instantiate()?;
    buffer.write(&rig.input::<f32>(count, 3), rig.stream())?;
    graph.launch(&*rig.device(), rig.stream())?;
    let ranks = rig.ranks();
    let sum = crate::values::sum::<f32>(ranks, count, 3).into_iter();
    let twice: Vec<_> = sum.map(|sum| (0..ranks).map(|_| sum).sum()).collect();
    rig.expect_all("the capture that went on", &buffer, &twice, rig.stream())?;
    Ok(done.1)
}

/// Fails unless this is the error of a capture that goes on, alike on all ranks.
fn keeps_windows<T: std::fmt::Debug>(
    rig: &mut Rig<'_>,
    what: &str,
    result: collectives_core::error::Result<T>,
) -> Outcome {
    let error = refused(what, result)?;
    let typed = matches!(
        error.kind(),
        ErrorKind::Capture(CaptureFault::WindowChange)
            | ErrorKind::NeedsReserve {
                when: MissedWhen::Capturing,
                ..
            }
    );
    ensure!(typed, "{what} is another error: {error}");
    ensure!(!error.poisons(), "{what} poisons: {error}");
    rig.expect_alike(what, &format!("{:?}", error.kind()))
}

fn windows_stay(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let other = rig.device().create_stream()?;
    let mut handle = rig.collectives("geometric")?;
    // What a trim would give back.
    let _plan = handle.reserve(&[Request::new(granule)])?;
    let mut tensor = rig.tensor::<f32>(granule, 1)?;
    let (reserved, trimmed, grown) = around(rig, &mut handle, |handle| {
        let reserved = handle.reserve(&[Request::new(3 * granule)]);
        let trimmed = handle.trim();
        // A miss on a stream that captures nothing.
        handle.set_staging(Staging::Forced);
        let grown = handle.all_reduce(&mut tensor, ReduceOp::Sum, &other);
        handle.set_staging(Staging::Never);
        (reserved, trimmed, grown)
    })?;
    keeps_windows(rig, "reserving in a capture", reserved)?;
    keeps_windows(rig, "trimming in a capture", trimmed)?;
    keeps_windows(rig, "growing in a capture", grown)?;
    // Afterwards all of it works.
    let _plan = handle.reserve(&[Request::new(3 * granule)])?;
    let trimmed = rig.settled_trim(&mut handle)?;
    ensure!(trimmed.slots > 0, "nothing is given back after the capture");
    rig.finish(handle)
}

fn buffers_stay(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let mut handle = Collectives::new(comm, rig.pool("geometric", rig.options())?);
    handle.set_deadline(rig.deadline());
    let idle = handle.symmetric_buffer::<u8>(10)?;
    let (made, trimmed) = around(rig, &mut handle, |handle| {
        drop(idle);
        (handle.symmetric_buffer::<u32>(10), handle.trim())
    })?;
    keeps_windows(rig, "a buffer in a capture", made)?;
    keeps_windows(rig, "trimming in a capture", trimmed)?;
    drop(handle.symmetric_buffer::<u32>(10)?);
    let trimmed = rig.settled_trim(&mut handle)?;
    ensure!(
        trimmed.mapped_bytes > 0,
        "nothing is given back after the capture"
    );
    rig.finish(handle)
}

fn no_launch(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let mut graph = rig.replay_of(&mut handle, 1 << 10)?;
    let device = rig.device();
    let mut second = rig.device().create_stream()?;
    let capture = Capture::begin(&*device, &mut second)?;
    let error = refused(
        "a launch on a capturing stream",
        graph.executable.launch(&*device, capture.stream()),
    )?;
    ensure!(
        matches!(error.kind(), ErrorKind::Capture(_)),
        "not a capture fault: {error}"
    );
    let error = refused(
        "a read on a capturing stream",
        graph.tensor.read(capture.stream()),
    )?;
    ensure!(
        matches!(error.misuse(), Some(Misuse::BlocksInCapture { .. })),
        "not a misuse: {error}"
    );
    let mut tensor = rig.tensor::<f32>(64, 4)?;
    handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
    let mut fresh = capture.end()?.instantiate()?;
    fresh.launch(&*device, &second)?;
    rig.expect_sum("the capture that went on", &tensor, 4, &second)?;
    rig.replay(&mut graph, 1, rig.stream())?;
    drop((graph, fresh));
    rig.finish(handle)
}

fn exact_bytes(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let mut graph = rig.replay_of(&mut handle, 4 * rig.granule())?;
    let mut tensor = rig.tensor::<f32>(77, 0)?;
    rig.witness().forget();
    let (small, report) =
        rig.capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
    ensure_eq!(report.path, Path::Staged, "the path planned");
    let seen = rig.witness().moved();
    let [op] = seen.as_slice() else {
        return Err(Failure(format!("{} operations were captured", seen.len())));
    };
    ensure!(op.captured, "the operation was not captured");
    ensure_eq!((op.send.bytes, op.recv.bytes), (308, 308), "bytes reduced");
    ensure!(
        op.send.window.is_some(),
        "a staged operand lies in no window"
    );
    let mut small = Replay::new(&small, tensor)?;
    rig.replay(&mut small, 2, rig.stream())?;
    rig.replay(&mut graph, 3, rig.stream())?;
    drop((graph, small));
    rig.finish(handle)
}

fn quiet_capture(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let mut tensor = rig.tensor::<f32>(1 << 10, 0)?;
    let witness = Arc::clone(&rig.witness);
    let calls = || (witness.collective_calls(), witness.calls("allocate"));
    let before = calls();
    let (graph, _) = rig.capture(|capture| {
        for _ in 0..3 {
            handle.all_reduce(&mut tensor, ReduceOp::Max, capture.stream())?;
        }
        handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())
    })?;
    ensure_eq!(calls(), before, "collective calls and allocations so far");
    drop(graph);
    rig.finish(handle)
}

fn no_host_wait(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let other = rig.device().create_stream()?;
    // The slot was used on another stream, which is what tempts an allocator to wait.
    rig.eager(&mut handle, 1 << 12, &other)?;
    let mut tensor = rig.tensor::<f32>(1 << 10, 3)?;
    let witness = Arc::clone(&rig.witness);
    let before = witness.calls("host_wait");
    let (graph, _) = rig.capture(|capture| {
        handle.all_reduce(&mut tensor, ReduceOp::Max, capture.stream())?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())
    })?;
    ensure_eq!(witness.calls("host_wait"), before, "waits so far");
    drop(graph);
    rig.finish(handle)
}
