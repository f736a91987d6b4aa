//! The order of streams: every two uses of one slot, and what that order costs.
#![forbid(unsafe_code)]

use std::sync::Arc;

use collectives_core::buffer::Buffer;
use collectives_core::communicator::Communicator;
use collectives_core::error::ErrorKind;
use collectives_core::layered::Layered;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_core::stream::Stream;

use crate::capability::Capability::{Graphs, Symmetric};
use crate::case::{Case, Outcome};
use crate::decorators::Undrained;
use crate::planted::Planted;
use crate::rig::{Handle, Replay, Rig};
use crate::values::{self, Dice};
use crate::witness::Seen;
use crate::{ensure, ensure_eq};

/// The cases.
pub const CASES: &[Case] = &[
    Case::new(
        "I26",
        "a replay comes after the slot's last user and before its next",
        replay_order,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::CapturedRecordsDropped),
    Case::new(
        "I27",
        "two graphs of one slot never run at once",
        two_graphs,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::CapturedWaitsDropped),
    Case::new(
        "I29",
        "a hit on the same stream asks one thing of the device",
        same_stream_hit,
    )
    .needs(&[Symmetric])
    .catches(Planted::HitRecords),
    Case::new(
        "I30",
        "a hit on another stream costs one record and one wait",
        cross_stream_hit,
    )
    .needs(&[Symmetric])
    .catches(Planted::WaitsDropped),
    Case::new(
        "I31",
        "no schedule of streams and graphs uses a slot unordered",
        schedules,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::WaitsDropped),
    Case::new(
        "I32",
        "what does not drain is drained before its slot is used again",
        undrained,
    )
    .needs(&[Symmetric])
    .catches(Planted::BarriersLeftOut),
    Case::new(
        "I32",
        "a graph of what does not drain drains in every replay",
        undrained_graph,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::BarriersLeftOut),
    Case::new(
        "D1",
        "two streams and one communicator stay exact under skew",
        two_streams,
    )
    .needs(&[Symmetric])
    .concurrent()
    .catches(Planted::WaitsDropped),
    Case::new(
        "D5",
        "what set a slot up comes before its first use on any stream",
        first_use,
    )
    .needs(&[Symmetric])
    .concurrent()
    .catches(Planted::WaitsDropped),
    Case::new(
        "I19",
        "a lease names the stream it is for and is ordered there",
        lease_stream,
    )
    .needs(&[Symmetric])
    .catches(Planted::WaitsDropped),
];

pub(super) fn no_conflict(rig: &Rig<'_>) -> Outcome {
    match rig.witness().conflicts().first() {
        None => Ok(()),
        Some(first) => Err(crate::case::Failure(format!("unordered uses: {first}"))),
    }
}

fn streams(rig: &Rig<'_>, count: usize) -> Outcome<Vec<Stream>> {
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(rig.device().create_stream()?);
    }
    Ok(streams)
}

fn replay_order(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
    let streams = streams(rig, 3)?;
    let mut tensors = Vec::new();
    for round in 0..3 {
        tensors.push(rig.tensor::<f32>(1 << 10, round)?);
    }
    let device = rig.device();
    graph.tensor.write(&rig.input(1 << 10, 9), rig.stream())?;
    for (round, tensor) in tensors.iter_mut().enumerate() {
        handle.all_reduce(tensor, ReduceOp::Sum, &streams[round])?;
        graph
            .executable
            .launch(&*device, &streams[(round + 2) % 3])?;
    }
    handle.all_reduce(&mut tensors[0], ReduceOp::Max, rig.stream())?;
    no_conflict(rig)?;
    for (round, tensor) in tensors.iter().enumerate() {
        rig.expect_sum("an eager call", tensor, round, rig.stream())?;
    }
    drop(graph);
    let _deferred = handle.close()?;
    Ok(())
}

fn two_graphs(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let count = rig.granule() / 4;
    // A framework launches for itself: nothing but the graphs' own nodes orders the slot.
    let mut first = rig.framework_graph(&mut handle, count)?;
    let mut second = rig.framework_graph(&mut handle, count)?;
    ensure_eq!(handle.stats().slots.len(), 1, "slots");
    let streams = streams(rig, 2)?;
    for round in 0..10 {
        first.write(&rig.input(count, round), &streams[0])?;
        second.write(&rig.input(count, round + 1), &streams[1])?;
        first.launch(&streams[0])?;
        second.launch(&streams[1])?;
        rig.expect_sum("the first graph", &first.tensor, round, &streams[0])?;
        rig.expect_sum("the second graph", &second.tensor, round + 1, &streams[1])?;
    }
    first.launch(&streams[0])?;
    second.launch(&streams[1])?;
    first.launch(&streams[0])?;
    no_conflict(rig)?;
    for stream in &streams {
        rig.device().synchronize(stream)?;
    }
    drop((first, second));
    let _deferred = handle.close()?;
    Ok(())
}

fn same_stream_hit(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let mut tensor = rig.tensor::<f32>(1000, 1)?;
    for _ in 0..3 {
        handle.all_reduce(&mut tensor, ReduceOp::Max, rig.stream())?;
    }
    let witness = Arc::clone(&rig.witness);
    let calls = || {
        [
            "capture_state",
            "wait",
            "record",
            "order",
            "allocate",
            "retain",
        ]
        .map(|name| witness.calls(name))
    };
    let before = calls();
    handle.all_reduce(&mut tensor, ReduceOp::Max, rig.stream())?;
    let after = calls();
    let made: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    ensure_eq!(made, [1, 0, 0, 0, 0, 0], "calls of one hit");
    let _deferred = handle.close()?;
    Ok(())
}

fn cross_stream_hit(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let other = rig.device().create_stream()?;
    let mut here = rig.tensor::<f32>(1000, 1)?;
    let mut there = Buffer::from_slice(&rig.device(), &rig.input::<f32>(1000, 2), &other)?;
    handle.all_reduce(&mut here, ReduceOp::Sum, rig.stream())?;
    let witness = Arc::clone(&rig.witness);
    let calls = || ["wait", "record"].map(|name| witness.calls(name));
    let before = calls();
    let fences = handle.stats().fences;
    handle.all_reduce(&mut there, ReduceOp::Sum, &other)?;
    let after = calls();
    let made: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    ensure_eq!(made, [1, 1], "waits and records of a hit on another stream");
    ensure_eq!(handle.stats().fences, fences + 1, "fences counted");
    rig.expect_sum("here", &here, 1, rig.stream())?;
    rig.expect_sum("there", &there, 2, &other)?;
    let _deferred = handle.close()?;
    Ok(())
}

fn schedules(rig: &mut Rig<'_>) -> Outcome {
    for seed in 1..6 {
        let mut handle = rig.collectives("geometric")?;
        let mut dice = Dice::new(seed);
        let bytes = 1 << 12;
        let mut graphs: Vec<Replay> = Vec::new();
        for _ in 0..3 {
            graphs.push(rig.replay_of(&mut handle, bytes)?);
        }
        let streams = streams(rig, 4)?;
        let mut tensors = Vec::new();
        for round in 0..4 {
            tensors.push(rig.tensor::<f32>(bytes / 4, round)?);
        }
        let device = rig.device();
        for _ in 0..40 {
            let on = &streams[dice.roll(4)];
            match dice.roll(3) {
                0 => {
                    let tensor = &mut tensors[dice.roll(4)];
                    handle.all_reduce(tensor, ReduceOp::Max, on)?;
                }
                1 => graphs[dice.roll(3)].executable.launch(&*device, on)?,
                _ => {
                    let graph = &mut graphs[dice.roll(3)];
                    rig.replay(graph, dice.roll(50), on)?;
                }
            }
        }
        no_conflict(rig)?;
        drop(graphs);
        let _deferred = handle.close()?;
    }
    Ok(())
}

fn two_streams(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let streams = streams(rig, 2)?;
    let count = rig.granule() / 8;
    for round in 0..40 {
        let mut left = Buffer::from_slice(&rig.device(), &rig.input(count, round), &streams[0])?;
        let mut right =
            Buffer::from_slice(&rig.device(), &rig.input(count, round + 1), &streams[1])?;
        handle.all_reduce(&mut left, ReduceOp::Sum, &streams[0])?;
        handle.all_reduce(&mut right, ReduceOp::Sum, &streams[1])?;
        rig.expect_sum::<f32>("the left", &left, round, &streams[0])?;
        rig.expect_sum::<f32>("the right", &right, round + 1, &streams[1])?;
    }
    // And without anybody waiting in between.
    let mut tensors = Vec::new();
    for round in 0..8 {
        tensors.push(rig.tensor::<f32>(count, round)?);
    }
    for (index, tensor) in tensors.iter_mut().enumerate() {
        handle.all_reduce(tensor, ReduceOp::Sum, &streams[index % 2])?;
    }
    no_conflict(rig)?;
    for (round, tensor) in tensors.iter().enumerate() {
        rig.expect_sum("a burst", tensor, round, &streams[round % 2])?;
    }
    let _deferred = handle.close()?;
    Ok(())
}

fn first_use(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("exact")?;
    let _plan = handle.reserve(&[Request::new(4000), Request::new(8000)])?;
    let streams = streams(rig, 2)?;
    let mut tensors = Vec::new();
    for round in 0..4 {
        tensors.push(rig.tensor::<f32>(1000 * (1 + round % 2), round)?);
    }
    for (index, tensor) in tensors.iter_mut().enumerate() {
        handle.all_reduce(tensor, ReduceOp::Sum, &streams[index / 2])?;
    }
    no_conflict(rig)?;
    for (round, tensor) in tensors.iter().enumerate() {
        rig.expect_sum("the first use", tensor, round, &streams[round / 2])?;
    }
    let _deferred = handle.close()?;
    Ok(())
}

fn lease_stream(rig: &mut Rig<'_>) -> Outcome {
    let mut options = rig.options();
    options.ordering = collectives_alloc::options::Ordering::Caller;
    let mut comm = rig.communicator()?;
    let mut scratch = rig.pool("geometric", options)?;
    let other = rig.device().create_stream()?;
    rig.lease(&mut *comm, &mut *scratch, 100)?.complete()?;
    let strayed = scratch.acquire(&mut *comm, Request::new(100), &other, None);
    let error = crate::case::refused("a use on a second stream", strayed)?;
    ensure!(
        matches!(error.kind(), ErrorKind::Misuse(_)),
        "not a misuse: {error}"
    );
    rig.lease(&mut *comm, &mut *scratch, 100)?.complete()?;
    rig.close(comm, scratch)?;
    // With events, the same is ordered.
    let mut comm = rig.communicator()?;
    let mut scratch = rig.pool("geometric", rig.options())?;
    let waits = rig.witness().calls("wait");
    rig.lease(&mut *comm, &mut *scratch, 100)?.complete()?;
    let lease = scratch.acquire(&mut *comm, Request::new(100), &other, None)?;
    lease.complete()?;
    ensure_eq!(rig.witness().calls("wait"), waits + 1, "waits so far");
    rig.close(comm, scratch)
}

/// A handle over a communicator whose operations end before their peers have read.
fn undrained_handle(rig: &mut Rig<'_>) -> Outcome<Handle> {
    let comm = Layered::new(Undrained, rig.communicator()?);
    let scratch = rig.pool("geometric", rig.options())?;
    Ok(rig.handle(Box::new(comm), scratch))
}

/// Fails if two operations on overlapping windows follow each other.
fn ensure_drained(ops: &[Seen]) -> Outcome {
    let operands = |op: &Seen| [op.send, op.recv].map(|operand| operand.window.map(|_| operand));
    for pair in ops.windows(2) {
        for earlier in operands(&pair[0]).into_iter().flatten() {
            for later in operands(&pair[1]).into_iter().flatten() {
                let met = earlier.overlaps(later);
                ensure!(!met, "{:?} follows {:?} on one slot", pair[1], pair[0]);
            }
        }
    }
    let staged = ops.iter().filter(|op| op.send.window.is_some()).count();
    ensure!(staged > 1, "{staged} operations on windows only");
    Ok(())
}

fn undrained(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = undrained_handle(rig)?;
    let device = rig.device();
    rig.witness().forget();
    for round in 0..3 {
        rig.eager(&mut handle, 1 << 12, rig.stream())?;
        let ranks = rig.ranks();
        let whole = rig.tensor::<i32>(100 * ranks, round)?;
        let mut part = Buffer::<i32>::zeroed(&device, 100, rig.stream())?;
        handle.reduce_scatter(&whole, &mut part, ReduceOp::Sum, rig.stream())?;
        let sums = values::sum::<i32>(ranks, 100 * ranks, round);
        let mine = &sums[100 * rig.rank()..][..100];
        rig.expect_all("a part", &part, mine, rig.stream())?;
    }
    ensure_drained(&rig.witness().seen())?;
    // Where operations drain, nothing is added.
    let mut drained = rig.collectives("geometric")?;
    rig.eager(&mut drained, 1 << 12, rig.stream())?;
    rig.witness().forget();
    rig.eager(&mut drained, 1 << 12, rig.stream())?;
    let barriers = usize::from(!drained.communicator().capabilities().drains);
    let seen = rig.witness().seen().len();
    ensure_eq!(seen, 1 + barriers, "operations of one call");
    rig.finish(drained)?;
    rig.finish(handle)
}

fn undrained_graph(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = undrained_handle(rig)?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    rig.witness().forget();
    let (graph, tensor) = rig.captured(&mut handle, 1 << 10)?;
    let once = rig.witness().seen();
    // Replays follow each other without the host.
    ensure_drained(&[once.as_slice(), once.as_slice()].concat())?;
    let mut graph = Replay::new(&graph, tensor)?;
    for round in 0..4 {
        rig.replay(&mut graph, round, rig.stream())?;
    }
    drop(graph);
    rig.finish(handle)
}
