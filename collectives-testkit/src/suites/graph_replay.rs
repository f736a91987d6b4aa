//! Captured graphs: what they own, what they replay, and when their memory comes back.
#![forbid(unsafe_code)]

use std::sync::Arc;

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::error::{ErrorKind, MissedWhen, Misuse};
use collectives_core::graph::Capture;
use collectives_core::path::Path;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use crate::capability::Capability::{
    CountsMemory, DelaysDestructors, GraphUpdate, Graphs, Symmetric,
};
use crate::case::{Case, Failure, Outcome, refused};
use crate::planted::Planted;
use crate::rig::{Replay, Rig};
use crate::{ensure, ensure_eq};

const STAGED: &[crate::capability::Capability] = &[Symmetric, Graphs];

/// The cases.
pub const CASES: &[Case] = &ALL;

/// The same on streams that run beside their callers, which drift apart.
pub const CONCURRENT: &[Case] = &concurrent(ALL);

const fn concurrent<const N: usize>(mut cases: [Case; N]) -> [Case; N] {
    let mut index = 0;
    while index < N {
        cases[index] = cases[index].concurrent();
        index += 1;
    }
    cases
}

const ALL: [Case; COUNT] = [
    Case::new(
        "A1",
        "a graph outlives every replacement of its slot",
        outlives_replacement,
    )
    .needs(STAGED)
    .catches(Planted::ReplaceWithoutClaims),
    Case::new(
        "A4",
        "graphs captured at ascending sizes replay in any order",
        ascending,
    )
    .needs(STAGED)
    .catches(Planted::RetainForgotten),
    Case::new(
        "A5",
        "graphs survive eager growth between captures",
        eager_growth_between,
    )
    .needs(STAGED)
    .catches(Planted::ReplaceWithoutClaims),
    Case::new(
        "A8",
        "a graph keeps buffers whose last handle is gone",
        dropped_buffers,
    )
    .needs(STAGED)
    .catches(Planted::RetainForgotten),
    Case::new(
        "A10",
        "a graph replays after its allocator is gone",
        dropped_allocator,
    )
    .needs(STAGED)
    .catches(Planted::LaunchDoesNothing),
    Case::new(
        "A13",
        "destroyed graphs give their bytes back",
        destroyed_graphs,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::RetainForever),
    Case::new(
        "A14",
        "captures leak no memory of the device",
        captures_leak_nothing,
    )
    .needs(&[Symmetric, Graphs, CountsMemory])
    .catches(Planted::RetainForever),
    Case::new(
        "A15",
        "an executable owns what its dropped graph did",
        executable_owns,
    )
    .needs(STAGED)
    .catches(Planted::ExecutableOwnsNothing),
    Case::new(
        "A17",
        "a captured graph allocates nothing",
        no_allocation_nodes,
    )
    .needs(STAGED)
    .catches(Planted::AllocatesInCapture),
    Case::new(
        "A19",
        "a disposed graph leaves the allocator usable and flat",
        disposed,
    )
    .needs(STAGED)
    .catches(Planted::RetainForever),
    Case::new(
        "A20",
        "an updated executable owns what it was updated to",
        updated,
    )
    .needs(&[Symmetric, Graphs, GraphUpdate])
    .catches(Planted::UpdateKeepsOldOwners),
    Case::new(
        "A21",
        "graphs of different sizes share one slot",
        share_a_slot,
    )
    .needs(STAGED)
    .catches(Planted::CapturedCopiesShort),
    Case::new(
        "B1",
        "a miss in a capture says what to reserve and the capture goes on",
        miss,
    )
    .needs(STAGED)
    .catches(Planted::GrowsInCapture),
    Case::new(
        "B2",
        "what was warmed on one stream is there for a capture on another",
        warmed,
    )
    .needs(STAGED)
    .catches(Planted::SlotsPerStream),
    Case::new(
        "B3",
        "a miss in a capture names operation bytes domain and remedy",
        miss_text,
    )
    .needs(STAGED)
    .catches(Planted::MissTextLost),
    Case::new("B4", "a hundred captures and replays are exact", hundred)
        .needs(STAGED)
        .catches(Planted::LaunchesAreFlaky),
    Case::new(
        "B7",
        "a capturing stream refuses a launch and the capture goes on",
        no_launch,
    )
    .needs(STAGED)
    .catches(Planted::CaptureHidden),
    Case::new(
        "B8",
        "replays back to back read what the one before wrote",
        back_to_back,
    )
    .needs(STAGED)
    .catches(Planted::LaunchesTwice),
    Case::new(
        "B11",
        "a captured operation runs on exactly the requested bytes",
        exact_bytes,
    )
    .needs(STAGED)
    .catches(Planted::WholeSlotReduced),
    Case::new(
        "B12",
        "many replays mixed with eager calls keep memory flat",
        flat_memory,
    )
    .needs(&[Symmetric, Graphs, CountsMemory])
    .catches(Planted::LaunchesLeak),
    Case::new("B13", "graph and communicator go in any order", drop_orders)
        .needs(STAGED)
        .catches(Planted::LaunchErrorsSwallowed),
    Case::new(
        "C4",
        "bytes come back when the last rank has destroyed its graph",
        uneven_ends,
    )
    .needs(STAGED)
    .catches(Planted::AgreementEchoes),
    Case::new(
        "A7",
        "a trim frees nothing a graph uses and says so",
        trim_with_graph,
    )
    .needs(STAGED)
    .catches(Planted::TrimHidesHeld),
    Case::new(
        "I21",
        "copies and executables of a graph keep its slot in place",
        copies_own,
    )
    .needs(STAGED)
    .catches(Planted::CopyOwnsNothing),
    Case::new(
        "I22",
        "old graphs replay alike after any growth",
        any_growth,
    )
    .needs(STAGED)
    .catches(Planted::ReplaceWithoutClaims),
    Case::new(
        "I23",
        "nothing is agreed or registered while a stream captures",
        quiet_capture,
    )
    .needs(STAGED)
    .catches(Planted::AgreesInCapture),
    Case::new(
        "I23",
        "a capture makes the host wait for nothing",
        no_host_wait,
    )
    .needs(STAGED)
    .catches(Planted::WaitsInCapture),
    Case::new(
        "I24",
        "a miss in a capture is the same on every rank",
        same_miss,
    )
    .needs(STAGED)
    .catches(Planted::MissDiffersByRank),
    Case::new(
        "I25",
        "claims end when the queued destructor has run",
        queued_release,
    )
    .needs(&[Symmetric, Graphs, DelaysDestructors])
    .catches(Planted::RetainForgotten),
    Case::new(
        "A13",
        "failed and abandoned captures give back what they used",
        abandoned,
    )
    .needs(STAGED)
    .catches(Planted::RetainForever),
];

const COUNT: usize = 30;

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
    let _deferred = handle.close()?;
    Ok(())
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
            let _deferred = handle.close()?;
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
    let _deferred = handle.close()?;
    Ok(())
}

fn dropped_buffers(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let count = rig.granule() / 4;
    let mut input = handle.symmetric_buffer::<u32>(count)?;
    let mut output = handle.symmetric_buffer::<u32>(count)?;
    input.write(&rig.input(count, 3), rig.stream())?;
    handle.set_staging(collectives_core::path::Staging::Never);
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
    let mut sentinel = handle.symmetric_buffer::<u32>(count)?;
    let marks = vec![0xdead_beef_u32; count];
    sentinel.write(&marks, rig.stream())?;
    let device = rig.device();
    for _ in 0..3 {
        output.write(&vec![0; count], rig.stream())?;
        graph.launch(&*device, rig.stream())?;
        rig.expect_sum("output of a dropped input", &output, 3, rig.stream())?;
    }
    rig.expect_all("the sentinel", &sentinel, &marks, rig.stream())?;
    drop((graph, sentinel, output));
    let _deferred = handle.close()?;
    Ok(())
}

fn dropped_allocator(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let bytes = rig.granule();
    let mut graph = {
        let scratch = rig.pool("geometric", rig.options())?;
        let mut handle = Collectives::new(&mut comm, scratch);
        handle.set_staging(collectives_core::path::Staging::Forced);
        let _plan = handle.reserve(&[Request::new(bytes)])?;
        let mut tensor = rig.tensor::<u32>(bytes / 4, 0)?;
        let (graph, _) =
            rig.capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
        Replay {
            tensor,
            executable: graph.instantiate()?,
        }
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

fn destroyed_graphs(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    for round in 0..40 {
        let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
        if round % 10 == 0 {
            rig.replay(&mut graph, round, rig.stream())?;
        }
    }
    rig.settle();
    rig.meet()?;
    let trimmed = handle.trim()?;
    ensure_eq!(
        trimmed.held_bytes,
        0,
        "bytes held after all graphs are gone"
    );
    ensure_eq!(handle.stats().mapped_bytes(), 0, "bytes kept after a trim");
    let _deferred = handle.close()?;
    Ok(())
}

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
    let _deferred = handle.close()?;
    Ok(())
}

/// Retires the slots of the handle, as far as nobody owns them, and checks that `graph` still works.
fn works_after_churn(
    rig: &mut Rig<'_>,
    handle: &mut crate::rig::Handle,
    graph: &mut Replay,
) -> Outcome {
    rig.settle();
    rig.meet()?;
    let _trimmed = handle.trim()?;
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
    let _deferred = handle.close()?;
    Ok(())
}

fn copies_own(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let mut tensor = rig.tensor::<u32>(1 << 10, 0)?;
    let (graph, _) =
        rig.capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
    let copy = graph.duplicate()?;
    drop(graph);
    rig.settle();
    rig.meet()?;
    let held = handle.trim()?.held_bytes;
    ensure!(held > 0, "nothing is held while a copy of the graph lives");
    let executable = copy.instantiate()?;
    drop(copy);
    let mut graph = Replay { tensor, executable };
    works_after_churn(rig, &mut handle, &mut graph)?;
    drop(graph);
    let _deferred = handle.close()?;
    Ok(())
}

fn no_allocation_nodes(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let mut tensor = rig.tensor::<u32>(1 << 10, 0)?;
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
    // Copy in, operation, copy out, wait and record, three times over.
    ensure!(graph.node_count() <= 15, "{} nodes", graph.node_count());
    let mut graph = graph.instantiate()?;
    graph.launch(&*rig.device(), rig.stream())?;
    rig.device().synchronize(rig.stream())?;
    ensure_eq!(allocations(), before, "allocations so far, after a launch");
    drop(graph);
    let _deferred = handle.close()?;
    Ok(())
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
    let _deferred = handle.close()?;
    Ok(())
}

fn updated(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let first = rig.replay_of(&mut handle, 1 << 12)?;
    let granule = rig.granule();
    // A slot of its own for the second graph.
    let _plan = handle.reserve(&[Request::new(2 * granule)])?;
    let mut tensor = rig.tensor::<u32>(2 * granule / 4, 0)?;
    let (second, _) =
        rig.capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
    let mut executable = first.executable;
    executable.update(&second)?;
    drop(second);
    let mut graph = Replay { tensor, executable };
    rig.eager(&mut handle, 5 * granule, rig.stream())?;
    works_after_churn(rig, &mut handle, &mut graph)?;
    // A graph of another shape changes nothing.
    let mut other = rig.tensor::<u32>(8, 0)?;
    let (shape, _) = rig.capture(|capture| {
        handle.all_reduce(&mut other, ReduceOp::Sum, capture.stream())?;
        handle.all_reduce(&mut other, ReduceOp::Sum, capture.stream())
    })?;
    refused(
        "an update of another shape",
        graph.executable.update(&shape),
    )?;
    rig.replay(&mut graph, 9, rig.stream())?;
    drop((graph, shape));
    let _deferred = handle.close()?;
    Ok(())
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
    let _deferred = handle.close()?;
    Ok(())
}

fn miss(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let bytes = 3 * rig.granule();
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let mut small = rig.tensor::<u32>(1 << 10, 2)?;
    let mut large = rig.tensor::<u32>(bytes / 4, 0)?;
    let before = rig.witness().collective_calls();
    let (graph, error) = rig.capture(|capture| {
        handle.all_reduce(&mut small, ReduceOp::Sum, capture.stream())?;
        Ok(handle
            .all_reduce(&mut large, ReduceOp::Sum, capture.stream())
            .err())
    })?;
    let Some(error) = error else {
        return Err(Failure("a miss in a capture succeeded".to_owned()));
    };
    let ErrorKind::NeedsReserve {
        bytes: asked, when, ..
    } = error.kind()
    else {
        return Err(Failure(format!("not NeedsReserve but: {error}")));
    };
    ensure_eq!(
        (*asked, *when),
        (bytes, MissedWhen::Capturing),
        "what was missed"
    );
    ensure_eq!(
        rig.witness().collective_calls(),
        before,
        "collective calls so far"
    );
    let mut graph = graph.instantiate()?;
    graph.launch(&*rig.device(), rig.stream())?;
    rig.expect_sum("the capture that went on", &small, 2, rig.stream())?;
    drop(graph);
    // What the error asks for helps.
    let mut graph = rig.replay_of(&mut handle, bytes)?;
    rig.replay(&mut graph, 5, rig.stream())?;
    drop(graph);
    let _deferred = handle.close()?;
    Ok(())
}

fn miss_text(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let mut tensor = rig.tensor::<u32>(1000, 0)?;
    let (_graph, error) = rig.capture(|capture| {
        Ok(handle
            .all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())
            .err())
    })?;
    let Some(error) = error else {
        return Err(Failure("a miss in a capture succeeded".to_owned()));
    };
    let text = format!("{error} {:?}", error.operation());
    for word in ["4000", "shared", "reserve", "captur"] {
        ensure!(text.contains(word), "`{word}` is missing in: {text}");
    }
    ensure!(!error.poisons(), "a miss poisons");
    let _deferred = handle.close()?;
    Ok(())
}

fn same_miss(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let mut tensor = rig.tensor::<u32>(1000, 0)?;
    let (_graph, error) = rig.capture(|capture| {
        Ok(handle
            .all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())
            .err())
    })?;
    let kind = error.map(|error| error.kind().clone());
    rig.expect_alike("the miss", &format!("{kind:?}"))?;
    ensure!(kind.is_some(), "a miss in a capture succeeded");
    let _deferred = handle.close()?;
    Ok(())
}

fn warmed(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let other = rig.device().create_stream()?;
    let bytes = 2 * rig.granule();
    rig.eager(&mut handle, bytes, &other)?;
    let registrations = handle.stats().registrations;
    let mut tensor = rig.tensor::<u32>(bytes / 4, 0)?;
    let (graph, _) =
        rig.capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
    ensure_eq!(handle.stats().registrations, registrations, "registrations");
    let executable = graph.instantiate()?;
    let mut graph = Replay { tensor, executable };
    rig.replay(&mut graph, 1, &other)?;
    drop(graph);
    let _deferred = handle.close()?;
    Ok(())
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
    let _deferred = handle.close()?;
    Ok(())
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
    let mut tensor = rig.tensor::<u32>(64, 4)?;
    handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
    let mut fresh = capture.end()?.instantiate()?;
    fresh.launch(&*device, &second)?;
    rig.expect_sum("the capture that went on", &tensor, 4, &second)?;
    rig.replay(&mut graph, 1, rig.stream())?;
    drop((graph, fresh));
    let _deferred = handle.close()?;
    Ok(())
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
    let ranks = u32::try_from(rig.ranks()).unwrap_or(1);
    let sums = crate::values::sum::<u32>(rig.ranks(), count, 1);
    let expected: Vec<u32> = sums.into_iter().map(|sum| sum * ranks.pow(3)).collect();
    rig.expect_all("four replays", &graph.tensor, &expected, rig.stream())?;
    drop(graph);
    let _deferred = handle.close()?;
    Ok(())
}

fn exact_bytes(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let mut graph = rig.replay_of(&mut handle, 4 * rig.granule())?;
    let mut tensor = rig.tensor::<u32>(77, 0)?;
    rig.witness().forget();
    let (small, report) =
        rig.capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
    ensure_eq!(report.path, Path::Staged, "the path planned");
    let seen = rig.witness().seen();
    let [op] = seen.as_slice() else {
        return Err(Failure(format!("{} operations were captured", seen.len())));
    };
    ensure!(op.captured, "the operation was not captured");
    ensure_eq!((op.send.bytes, op.recv.bytes), (308, 308), "bytes reduced");
    ensure!(
        op.send.window.is_some(),
        "a staged operand lies in no window"
    );
    let executable = small.instantiate()?;
    let mut small = Replay { tensor, executable };
    rig.replay(&mut small, 2, rig.stream())?;
    rig.replay(&mut graph, 3, rig.stream())?;
    drop((graph, small));
    let _deferred = handle.close()?;
    Ok(())
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
    let before = (rig.probe().mapped_bytes(), rig.probe().ordinary_bytes());
    for round in 0..300 {
        graph.executable.launch(&*device, rig.stream())?;
        if round % 10 == 0 {
            rig.eager(&mut handle, 1 << 11, rig.stream())?;
        }
    }
    device.synchronize(rig.stream())?;
    rig.settle();
    let after = (rig.probe().mapped_bytes(), rig.probe().ordinary_bytes());
    ensure_eq!(after, before, "memory after many replays");
    drop(graph);
    rig.settle();
    rig.meet()?;
    let trimmed = handle.trim()?;
    ensure_eq!(trimmed.held_bytes, 0, "bytes held after the graph is gone");
    let _deferred = handle.close()?;
    Ok(())
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
    let _deferred = handle.close()?;
    Ok(())
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
    let _deferred = handle.close()?;
    Ok(())
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
        let _deferred = handle.close()?;
    }
    Ok(())
}

fn quiet_capture(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let mut tensor = rig.tensor::<u32>(1 << 10, 0)?;
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
    let _deferred = handle.close()?;
    Ok(())
}

fn no_host_wait(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let other = rig.device().create_stream()?;
    // The slot was used on another stream, which is what tempts an allocator to wait.
    rig.eager(&mut handle, 1 << 12, &other)?;
    let mut tensor = rig.tensor::<u32>(1 << 10, 3)?;
    let witness = Arc::clone(&rig.witness);
    let before = witness.calls("host_wait");
    let (graph, _) = rig.capture(|capture| {
        handle.all_reduce(&mut tensor, ReduceOp::Max, capture.stream())?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())
    })?;
    ensure_eq!(witness.calls("host_wait"), before, "waits so far");
    drop(graph);
    let _deferred = handle.close()?;
    Ok(())
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
    rig.settle();
    rig.meet()?;
    let trimmed = handle.trim()?;
    ensure_eq!(
        (trimmed.slots, trimmed.held_bytes),
        (1, 0),
        "slots freed and bytes held"
    );
    let _deferred = handle.close()?;
    Ok(())
}

fn abandoned(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let device = rig.device();
    let mut tensor = rig.tensor::<u32>(1 << 10, 6)?;
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
    drop::<Buffer<u32>>(tensor);
    rig.settle();
    rig.meet()?;
    let trimmed = handle.trim()?;
    ensure_eq!(trimmed.held_bytes, 0, "bytes held after abandoned captures");
    let _deferred = handle.close()?;
    Ok(())
}
