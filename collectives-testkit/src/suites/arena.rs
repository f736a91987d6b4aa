//! Bytes with several addresses: windows that extend others, and the policy that lives on them.
#![forbid(unsafe_code)]

use collectives_alloc::config::ScratchConfig;
use collectives_core::addr::{Operand, WindowId};
use collectives_core::communicator::Communicator;
use collectives_core::error::{ErrorKind, Misuse, Refusal};
use collectives_core::layered::symmetric_of;
use collectives_core::memory::Memory;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator, SlotId};

use crate::capability::Capability::{Aliasing, CountsMemory, Graphs, Symmetric};
use crate::case::{Case, Failure, Outcome, refused};
use crate::decorators::FewAddresses;
use crate::planted::Planted;
use crate::rig::{Replay, Rig};
use crate::suites::streams::no_conflict;
use crate::{ensure, ensure_eq};

/// The cases.
pub const CASES: &[Case] = &[
    Case::new(
        "I51",
        "an arena keeps growth times the largest request and a granule",
        bound,
    )
    .needs(&[Symmetric, Aliasing])
    .catches(Planted::ArenaBeginsAnew),
    Case::new(
        "I51",
        "the device loses an arena's bytes once, whatever graphs own",
        lost_once,
    )
    .needs(&[Symmetric, Aliasing, Graphs, CountsMemory])
    .catches(Planted::ExtensionsCopy),
    Case::new(
        "I51",
        "what is written through one generation is read through every other",
        same_bytes,
    )
    .needs(&[Symmetric, Aliasing])
    .catches(Planted::ExtensionsCopy),
    Case::new(
        "I52",
        "a graph of the first generation replays alike after nineteen more",
        old_graphs,
    )
    .needs(&[Symmetric, Aliasing, Graphs])
    .catches(Planted::RetainForgotten),
    Case::new(
        "I52",
        "a replay on an old generation and a lease of the newest exclude each other",
        excluded,
    )
    .needs(&[Symmetric, Aliasing, Graphs])
    .catches(Planted::ExecutableOwnsNothing),
    Case::new(
        "I27",
        "uses of different generations of an arena are ordered like uses of one slot",
        ordered_generations,
    )
    .needs(&[Symmetric, Aliasing, Graphs])
    .catches(Planted::FencePerGeneration),
    Case::new(
        "I53",
        "live generations stay within the addresses there are",
        few_addresses,
    )
    .needs(&[Symmetric, Aliasing, Graphs])
    .catches(Planted::AddressesEndless),
    Case::new(
        "I54",
        "retiring a generation leaves the bytes to the others",
        retired,
    )
    .needs(&[Symmetric, Aliasing])
    .catches(Planted::RetireClears),
];

fn arena(growth: f64) -> ScratchConfig {
    let mut config = ScratchConfig::with_policy("arena");
    config.growth = Some(growth);
    config
}

fn bound(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    for (growth, most) in [(1.0, (8, 8)), (1.125, (9, 8)), (2.0, (16, 8))] {
        let mut comm = rig.communicator()?;
        let mut pool = rig.pool_of(&arena(growth), rig.options())?;
        let mut largest = 0;
        for step in 1..20 {
            let bytes = step * granule * 2 / 3;
            rig.lease(&mut *comm, &mut *pool, bytes)?.complete()?;
            largest = largest.max(bytes);
            let most = (largest * most.0).div_ceil(most.1);
            let most = most.next_multiple_of(granule) + granule;
            let kept = pool.stats().mapped_bytes();
            ensure!(
                kept <= most,
                "growth {growth}, {largest} bytes: {kept} > {most}"
            );
        }
        rig.close(comm, pool)?;
    }
    Ok(())
}

fn lost_once(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let lost = |rig: &Rig<'_>| rig.mapped_bytes();
    let before = lost(rig);
    let config = arena(1.0);
    let comm = rig.communicator()?;
    let pool = rig.pool_of(&config, rig.options())?;
    let mut handle = rig.handle(comm, pool);
    let mut graphs = Vec::new();
    for step in 1..=4 {
        graphs.push(rig.replay_of(&mut handle, step * granule)?);
        let more = lost(rig).zip(before).map(|(now, before)| now - before);
        ensure_eq!(more, Some(step * granule), "bytes lost, {step} generations");
    }
    for (round, graph) in graphs.iter_mut().enumerate() {
        rig.replay(graph, round, rig.stream())?;
    }
    drop(graphs);
    rig.finish(handle)
}

/// Generations of these sizes in granules, each over the one before.
fn generations(
    rig: &Rig<'_>,
    comm: &mut dyn Communicator,
    granules: &[usize],
) -> Outcome<Vec<(Memory, WindowId)>> {
    symmetric_of(comm)?.extensible()?;
    let mut made: Vec<(Memory, WindowId)> = Vec::new();
    for granules in granules {
        let symmetric = symmetric_of(comm)?;
        let last = made.last().map(|(_, window)| *window);
        let memory = symmetric.allocate(granules * rig.granule(), last)?;
        let window = symmetric.register(&memory)?;
        made.push((memory, window));
    }
    Ok(made)
}

/// Bytes of this rank and round.
fn pattern(rig: &Rig<'_>, round: usize) -> Vec<u8> {
    rig.input::<u8>(4096, round)
}

fn same_bytes(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let made = generations(rig, &mut *comm, &[1, 2, 4])?;
    for (index, (one, window)) in made.iter().enumerate() {
        for (other, known) in &made[..index] {
            let ranges = [one, other].map(|memory| Operand::new(memory.addr(), memory.bytes()));
            ensure!(!ranges[0].overlaps(ranges[1]), "two generations overlap");
            ensure!(window != known, "two generations are one window");
        }
    }
    for (writer, (memory, _)) in made.iter().enumerate() {
        let values = pattern(rig, writer);
        rig.fill(memory, &values)?;
        for (reader, (memory, _)) in made.iter().enumerate() {
            let found = rig.contents(memory, values.len())?;
            ensure!(
                found == values,
                "written through {writer}, read through {reader}"
            );
        }
    }
    rig.meet()?;
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn old_graphs(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let config = arena(1.0);
    let comm = rig.communicator()?;
    let pool = rig.pool_of(&config, rig.options())?;
    let mut handle = rig.handle(comm, pool);
    let other = rig.device().create_stream()?;
    let mut graph: Replay = rig.replay_of(&mut handle, granule)?;
    for generation in 2..=20 {
        rig.eager(&mut handle, generation * granule, rig.stream())?;
        rig.replay(&mut graph, generation, &other)?;
        rig.eager(&mut handle, granule / 2, rig.stream())?;
        rig.replay(&mut graph, generation + 1, rig.stream())?;
    }
    ensure_eq!(handle.stats().registrations, 20, "generations");
    drop(graph);
    rig.finish(handle)
}

fn excluded(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let mut comm = rig.communicator()?;
    let mut pool = rig.pool_of(&arena(1.0), rig.options())?;
    rig.lease(&mut *comm, &mut *pool, granule)?.complete()?;
    let (graph, ()) = rig.capture(|capture| {
        pool.acquire(
            &mut *comm,
            Request::new(granule),
            capture.stream(),
            Some(capture.id()),
        )?
        .complete()
    })?;
    let mut executable = graph.instantiate()?;
    drop(graph);
    let lease = rig.lease(&mut *comm, &mut *pool, 3 * granule)?;
    ensure_eq!(
        lease.slot(),
        SlotId(2),
        "the slot of a lease after a growth"
    );
    let launched = executable.launch(&*rig.device(), rig.stream());
    let error = refused("a launch while the newest generation is leased", launched)?;
    ensure_eq!(error.misuse(), Some(&Misuse::InUse), "why it was refused");
    lease.complete()?;
    executable.launch(&*rig.device(), rig.stream())?;
    rig.device().synchronize(rig.stream())?;
    drop(executable);
    rig.close(comm, pool)
}

fn ordered_generations(rig: &mut Rig<'_>) -> Outcome {
    let count = rig.granule() / 4;
    let comm = rig.communicator()?;
    let pool = rig.pool_of(&arena(1.0), rig.options())?;
    let mut handle = rig.handle(comm, pool);
    let [first, second, eager] = [(); 3].map(|()| rig.device().create_stream());
    let (first, second, eager) = (first?, second?, eager?);
    // A framework launches for itself: nothing but nodes of the graphs orders the bytes, and each graph has
    // those of its own generation.
    let mut old = rig.framework_graph(&mut handle, count)?;
    let mut new = rig.framework_graph(&mut handle, 2 * count)?;
    let mut tensor = rig.tensor::<f32>(3 * count, 0)?;
    for round in 0..4 {
        old.write(&rig.input(count, round), &first)?;
        new.write(&rig.input(2 * count, round + 1), &second)?;
        tensor.write(&rig.input(3 * count, round + 2), &eager)?;
        old.launch(&first)?;
        new.launch(&second)?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, &eager)?;
        // The other way round, before the host has waited for anything, which would order it too.
        old.launch(&first)?;
        new.launch(&second)?;
        no_conflict(rig)?;
        rig.expect_sum("an eager call", &tensor, round + 2, &eager)?;
        for stream in [&first, &second] {
            rig.device().synchronize(stream)?;
        }
    }
    ensure_eq!(handle.stats().registrations, 3, "generations");
    drop((old, new));
    rig.finish(handle)
}

fn few_addresses(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    // The last rank has fewest, and speaks for all.
    let few = if rig.rank() + 1 == rig.ranks() { 9 } else { 40 };
    let config = arena(1.0);
    let comm = rig.communicator_under(FewAddresses(few * granule))?;
    let pool = rig.pool_of(&config, rig.options())?;
    let mut handle = rig.handle(comm, pool);
    let mut graphs = Vec::new();
    for step in 1..=3 {
        graphs.push(rig.replay_of(&mut handle, step * granule)?);
    }
    let asked = handle.reserve(&[Request::new(4 * granule)]);
    let error = refused("a generation beyond the addresses", asked)?;
    let ErrorKind::Refused { why, .. } = error.kind() else {
        return Err(Failure(format!("not refused: {error}")));
    };
    let (addresses, limit) = (10 * granule, 9 * granule);
    ensure_eq!(*why, Refusal::OverAddresses { addresses, limit }, "why");
    for (round, graph) in graphs.iter_mut().enumerate() {
        rig.replay(graph, round, rig.stream())?;
    }
    ensure!(
        handle.stats().address_bytes() <= limit,
        "too many addresses"
    );
    drop(graphs);
    rig.finish(handle)
}

fn retired(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let mut made = generations(rig, &mut *comm, &[1, 2, 3])?;
    let values = pattern(rig, 5);
    rig.fill(&made[0].0, &values)?;
    for left in [2, 1] {
        let (memory, window) = made.remove(0);
        symmetric_of(&mut *comm)?.retire(window)?;
        drop(memory);
        rig.device().collect();
        rig.meet()?;
        let found = rig.contents(&made[0].0, values.len())?;
        ensure!(
            found == values,
            "the bytes are not what they were, {left} left"
        );
    }
    let _deferred = comm.shutdown()?;
    Ok(())
}
