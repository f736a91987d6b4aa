//! Scratch of their own for every stream or every graph: no slot, and no byte, serves two of them.
//!
//! Slots that differ are not enough under `arena`, where two of them may be the same bytes at two
//! addresses. So what the device loses is counted too, where a backend can tell.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use collectives_alloc::options::DomainMode;
use collectives_core::error::{ErrorKind, Field};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, SlotId};
use collectives_core::stream::Stream;

use crate::capability::Capability::{Aliasing, Graphs, Symmetric};
use crate::case::{Case, Outcome};
use crate::planted::Planted;
use crate::rig::{Handle, Replay, Rig};
use crate::{ensure, ensure_eq};

/// The cases.
pub const CASES: &[Case] = &[
    Case::new(
        "A8",
        "graphs with scratch of their own share none of it",
        |rig| graphs_apart(rig, "geometric"),
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::DomainsShared),
    Case::new(
        "A8",
        "graphs with an arena of their own share no byte of it",
        |rig| graphs_apart(rig, "arena"),
    )
    .needs(&[Symmetric, Aliasing, Graphs])
    .catches(Planted::DomainsShared),
    Case::new(
        "I22",
        "streams with scratch of their own grow apart under their graphs",
        |rig| streams_apart(rig, "geometric"),
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::DomainsShared),
    Case::new(
        "I51",
        "streams with an arena of their own keep the bytes of each once",
        |rig| streams_apart(rig, "arena"),
    )
    .needs(&[Symmetric, Aliasing, Graphs])
    .catches(Planted::DomainsShared),
    Case::new(
        "I7",
        "slots of streams that are gone serve other streams",
        streams_go,
    )
    .needs(&[Symmetric])
    .catches(Planted::GoneStreamsKeepSlots),
    Case::new(
        "I33",
        "ranks that captured differently are told once and go on",
        one_rank_captures,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::MismatchRemains),
];

fn handle(rig: &mut Rig<'_>, policy: &str, domain: DomainMode) -> Outcome<Handle> {
    let mut options = rig.options();
    options.domain = domain;
    Ok(rig.collectives_with(policy, options)?)
}

/// An eager all-reduce of this many bytes, checked, and the slot that it was staged through.
fn eager(
    rig: &Rig<'_>,
    handle: &mut Handle,
    bytes: usize,
    round: usize,
    stream: &Stream,
) -> Outcome<Option<SlotId>> {
    let mut tensor = rig.tensor::<f32>(bytes / 4, round)?;
    let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
    rig.expect_sum("an eager call", &tensor, round, stream)?;
    Ok(report.slot)
}

/// A graph of one all-reduce of this many bytes, and the slot that it claimed.
fn captured(
    rig: &mut Rig<'_>,
    handle: &mut Handle,
    bytes: usize,
) -> Outcome<(Replay, Option<SlotId>)> {
    let mut tensor = rig.tensor::<f32>(bytes / 4, 0)?;
    let (graph, report) =
        rig.capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
    Ok((Replay::new(&graph, tensor)?, report.slot))
}

/// Fails unless these are slots, each another, and no two generations of one arena.
fn apart(handle: &Handle, slots: &[Option<SlotId>]) -> Outcome {
    let distinct: BTreeSet<_> = slots.iter().flatten().collect();
    ensure!(
        distinct.len() == slots.len(),
        "not a slot for each: {slots:?}"
    );
    let stats = handle.stats();
    let of_ours = stats.slots.iter().filter(|slot| {
        let id = SlotId(slot.generation);
        distinct.contains(&id)
    });
    let arenas: Vec<_> = of_ours.filter_map(|slot| slot.arena).collect();
    let distinct: BTreeSet<_> = arenas.iter().collect();
    ensure!(
        distinct.len() == arenas.len(),
        "the slots are generations of the same arenas: {arenas:?}"
    );
    Ok(())
}

/// Fails unless the device has lost what these requests take, where the backend can tell.
fn expect_lost(
    rig: &Rig<'_>,
    handle: &Handle,
    before: Option<usize>,
    requests: &[usize],
) -> Outcome {
    rig.settle();
    let info = handle.communicator().info();
    let expected: usize = requests.iter().map(|&bytes| info.mapped(bytes)).sum();
    if let Some((now, before)) = rig.mapped_bytes().zip(before) {
        ensure_eq!(now - before, expected, "bytes lost");
    }
    Ok(())
}

fn graphs_apart(rig: &mut Rig<'_>, policy: &str) -> Outcome {
    let granule = rig.granule();
    let other = rig.device().create_stream()?;
    let before = rig.mapped_bytes();
    let mut handle = handle(rig, policy, DomainMode::Graph)?;
    let mut graphs = Vec::new();
    let mut slots = Vec::new();
    for _ in 0..2 {
        // What is reserved goes to the next capture that needs it.
        let _plan = handle.reserve(&[Request::new(granule)])?;
        let (graph, slot) = captured(rig, &mut handle, granule)?;
        graphs.push(graph);
        slots.push(slot);
    }
    slots.push(eager(rig, &mut handle, granule, 1, rig.stream())?);
    apart(&handle, &slots)?;
    expect_lost(rig, &handle, before, &[granule; 3])?;
    for round in 0..6 {
        // Nothing on the host orders the three.
        let mut tensor = rig.tensor::<f32>(granule / 4, round)?;
        for (graph, stream) in graphs.iter_mut().zip([&other, rig.stream()]) {
            let input = rig.input(granule / 4, round + 1);
            graph.tensor.write(&input, stream)?;
            graph.executable.launch(&*rig.device(), stream)?;
        }
        handle.all_reduce(&mut tensor, ReduceOp::Sum, &other)?;
        rig.expect_sum("an eager call", &tensor, round, &other)?;
        for (graph, stream) in graphs.iter().zip([&other, rig.stream()]) {
            rig.expect_sum("a graph", &graph.tensor, round + 1, stream)?;
        }
    }
    // Eager scratch grows; a capture of the new size has none of its own.
    let grown = eager(rig, &mut handle, 3 * granule, 2, rig.stream())?;
    ensure!(!slots.contains(&grown), "eager calls grew nothing");
    for (round, graph) in graphs.iter_mut().enumerate() {
        rig.replay(graph, round + 3, rig.stream())?;
    }
    let error = rig.missed(&mut handle, 5 * granule / 4)?;
    let names = |domain: &str| domain.starts_with("graph #");
    ensure!(
        matches!(error.kind(), ErrorKind::NeedsReserve { domain, .. } if names(domain)),
        "the miss of a graph is not its own: {error}"
    );
    // One graph's end gives its scratch back and not the other's.
    drop(graphs.pop());
    let trimmed = rig.settled_trim(&mut handle)?;
    ensure_eq!(trimmed.held_bytes, granule, "bytes held by the other graph");
    expect_lost(rig, &handle, before, &[granule])?;
    rig.replay(&mut graphs[0], 9, &other)?;
    drop(graphs);
    rig.finish(handle)
}

fn streams_apart(rig: &mut Rig<'_>, policy: &str) -> Outcome {
    let granule = rig.granule();
    let other = rig.device().create_stream()?;
    let before = rig.mapped_bytes();
    let mut handle = handle(rig, policy, DomainMode::Stream)?;
    let first = eager(rig, &mut handle, granule, 1, rig.stream())?;
    let second = eager(rig, &mut handle, granule, 2, &other)?;
    apart(&handle, &[first, second])?;
    for round in 0..4 {
        let again = eager(rig, &mut handle, granule, round, rig.stream())?;
        ensure_eq!(again, first, "the slot of the first stream");
        let again = eager(rig, &mut handle, granule, round, &other)?;
        ensure_eq!(again, second, "the slot of the second stream");
    }
    ensure_eq!(handle.stats().fences, 0, "waits between streams");
    expect_lost(rig, &handle, before, &[granule; 2])?;
    let (mut graph, slot) = captured(rig, &mut handle, granule)?;
    ensure_eq!(
        slot,
        first,
        "the slot that a graph on the first stream claimed"
    );
    // The first stream grows three times under its graph; the second stream keeps what it has.
    let mut newest = first;
    for step in 2..=4 {
        newest = eager(rig, &mut handle, step * granule, step, rig.stream())?;
        let again = eager(rig, &mut handle, granule, step, &other)?;
        ensure_eq!(again, second, "the slot of the second stream");
        rig.replay(&mut graph, step, &other)?;
    }
    apart(&handle, &[newest, second])?;
    if policy == "arena" {
        expect_lost(rig, &handle, before, &[4 * granule, granule])?;
    }
    drop(graph);
    rig.finish(handle)
}

fn streams_go(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let mut comm = rig.communicator()?;
    let mut options = rig.options();
    options.domain = DomainMode::Stream;
    options.limit = Some(2 * comm.info().mapped(granule));
    let _deferred = comm.shutdown()?;
    let mut handle = rig.collectives_with("geometric", options)?;
    let kept = eager(rig, &mut handle, granule, 0, rig.stream())?;
    let mut passed_on = None;
    for round in 1..5 {
        let short_lived = rig.device().create_stream()?;
        let slot = eager(rig, &mut handle, granule, round, &short_lived)?;
        ensure!(slot.is_some(), "stream {round} got no scratch");
        let first = *passed_on.get_or_insert(slot);
        ensure_eq!(slot, first, "the slot of a stream that came later");
    }
    let again = eager(rig, &mut handle, granule, 5, rig.stream())?;
    ensure_eq!(again, kept, "the slot of the stream that stayed");
    rig.finish(handle)
}

fn one_rank_captures(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let mut comm = rig.communicator()?;
    let mut options = rig.options();
    options.domain = DomainMode::Graph;
    let mut scratch = rig.pool("geometric", options)?;
    let _plan = scratch.reserve(&mut *comm, &[Request::new(granule)])?;
    // On the others the capture could not begin.
    if rig.rank() == 0 {
        let device = rig.device();
        let (graph, ()) = rig.capture(|capture| {
            let stream = capture.stream();
            let id = device.capture_state(stream)?;
            let lease = scratch.acquire(&mut *comm, Request::new(granule), stream, id)?;
            lease.complete()
        })?;
        drop(graph);
    }
    rig.settle();
    let told = crate::case::refused("the first trim", scratch.trim(&mut *comm))?;
    let of_slots = matches!(
        told.kind(),
        ErrorKind::Mismatch {
            field: Field::Slots,
            ..
        }
    );
    ensure!(of_slots && !told.poisons(), "another error: {told}");
    rig.expect_alike("the error", &format!("{:?}", told.kind()))?;
    let trimmed = scratch.trim(&mut *comm)?;
    ensure_eq!(trimmed.held_bytes, 0, "bytes held after the second trim");
    let _plan = scratch.reserve(&mut *comm, &[Request::new(granule)])?;
    rig.lease(&mut *comm, &mut *scratch, granule)?.complete()?;
    rig.close(comm, scratch)
}
