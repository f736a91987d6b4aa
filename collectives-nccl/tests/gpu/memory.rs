//! What the device really loses: to each policy, to windows and graphs by themselves, and over many
//! cycles.
//!
//! What is free is the driver's word, and counts everything that the process, the library and the
//! driver itself keep. So each case first rehearses what it does, which makes what is made once and
//! kept; reads between barriers, while no rank does anything; and reads only after destructors of
//! graphs, which run on another thread and late, have given the graphs' tensors back.
//!
//! `COLLECTIVES_GPU_CYCLES` changes how often things are done.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use collectives_alloc::config::ScratchConfig;
use collectives_core::error::ErrorKind;
use collectives_core::scratch::Request;
use collectives_nccl::communicator::NcclCommunicator;

use crate::case::Case;
use crate::graphs::eventually;
use crate::rank::Ctx;
use crate::scratch::{Captured, Staged, captured, eager, handle, handle_of};
use crate::{Outcome, Said, endurance, ensure};

/// Cases that take longer than others, each in a world of its own.
pub(crate) const CASES: &[Case] = &[
    Case::symmetric("the_seed_trace_takes_what_theory_says", seed),
    Case::symmetric("windows_and_graphs_take_little_by_themselves", apart),
    Case::symmetric(
        "graphs_of_an_arena_replay_across_twenty_growths",
        endurance::arena,
    ),
    Case::symmetric("memory_is_flat_over_a_thousand_cycles", cycles),
    Case::symmetric("an_arena_stays_within_its_addresses", addresses),
];

const MIB: usize = 1 << 20;
/// Elements of bf16 in a token.
const HIDDEN: usize = 5120;
/// Batches that the seed trace captures, and its prompts, in tokens before they are padded.
const DECODES: [usize; 5] = [1, 8, 64, 128, 256];
const PROMPTS: [usize; 16] = [
    37, 64, 101, 150, 192, 230, 300, 350, 410, 480, 505, 570, 640, 655, 700, 768,
];
/// How long destructors of graphs may take, which run on a thread of the driver.
const DESTRUCTORS: Duration = Duration::from_secs(20);

/// A number of times that the environment may change.
pub(crate) fn number(name: &str, default: usize) -> usize {
    let given = env::var(name).ok().and_then(|value| value.parse().ok());
    given.unwrap_or(default)
}

/// Elements of one all-reduce of the seed trace.
fn elements(tokens: usize) -> usize {
    tokens.next_multiple_of(64) * HIDDEN
}

/// Bytes of the GPU that are free while no rank does anything.
fn free_bytes(ctx: &Ctx, round: &str) -> Result<usize, String> {
    ctx.sync()?;
    ctx.meet(&format!("{round}, before"))?;
    let (free, _) = ctx.cuda.memory_info().said("memory_info")?;
    ctx.meet(&format!("{round}, after"))?;
    Ok(free)
}

/// Waits until this rank has no more ordinary memory than this and nothing waits to be freed.
fn settle(ctx: &Ctx, ordinary: usize) -> Outcome {
    ctx.sync()?;
    eventually("the end of all tensors", || {
        ctx.device.collect();
        ctx.cuda.ordinary_bytes() <= ordinary && ctx.cuda.pending_count() == 0
    })
}

/// Trims until no rank's graph holds anything.
fn trim_all(handle: &mut Staged) -> Outcome {
    let begun = Instant::now();
    loop {
        let held = handle.trim().said("trim")?.held_bytes;
        if held == 0 {
            return Ok(());
        }
        // The same on all ranks, because `held` is.
        ensure(begun.elapsed() < DESTRUCTORS, || {
            format!("{held} bytes are still held")
        })?;
        thread::sleep(Duration::from_millis(5));
    }
}

/// Ends a handle whose graphs are gone, and waits for its communicator's end.
pub(crate) fn finish(ctx: &Ctx, mut handle: Staged) -> Outcome {
    trim_all(&mut handle)?;
    let live = NcclCommunicator::live_count();
    let _ = handle.close().said("close")?;
    eventually("the end of the communicator", || {
        NcclCommunicator::live_count() < live
    })?;
    ctx.device.collect();
    Ok(())
}

/// Graphs of the seed trace's batches, each used once eagerly before.
fn decodes(ctx: &mut Ctx, handle: &mut Staged) -> Result<Vec<Captured>, String> {
    DECODES
        .into_iter()
        .map(|tokens| {
            eager(ctx, handle, elements(tokens), tokens)?;
            captured(ctx, handle, elements(tokens))
        })
        .collect()
}

/// The largest prompt and all batches once, which then give everything back.
fn rehearse(ctx: &mut Ctx, handle: &mut Staged) -> Outcome {
    let ordinary = ctx.cuda.ordinary_bytes();
    eager(ctx, handle, elements(768), 1)?;
    let mut graphs = decodes(ctx, handle)?;
    for graph in &mut graphs {
        graph.replay(ctx, 2)?;
    }
    drop(graphs);
    trim_all(handle)?;
    settle(ctx, ordinary)
}

fn seed(ctx: &mut Ctx) -> Outcome {
    for (policy, mebibytes) in [("arena", 8), ("geometric-class", 16), ("exact", 60)] {
        let mut handle = handle(ctx, policy)?;
        let ordinary = ctx.cuda.ordinary_bytes();
        rehearse(ctx, &mut handle)?;
        let before = free_bytes(ctx, &format!("{policy}, empty"))?;
        let lost = |ctx: &Ctx, when: &str| -> Result<usize, String> {
            let free = free_bytes(ctx, &format!("{policy}, {when}"))?;
            Ok(before.saturating_sub(free) / ctx.ranks)
        };
        let mut graphs = decodes(ctx, &mut handle)?;
        for (round, tokens) in PROMPTS.into_iter().enumerate() {
            eager(ctx, &mut handle, elements(tokens), round)?;
            graphs[round % 5].replay(ctx, round)?;
        }
        for graph in &mut graphs {
            graph.replay(ctx, 77)?;
        }
        let stats = handle.stats();
        let (mapped, windows) = (stats.mapped_bytes(), stats.slots.len());
        ensure(mapped == mebibytes * MIB, || {
            format!("{policy} says that it maps {mapped} bytes")
        })?;
        let tensors = ctx.cuda.ordinary_bytes() - ordinary;
        let with_graphs = lost(ctx, "with graphs")?;
        // Tensors and graphs go; scratch stays until the trim.
        drop(graphs);
        settle(ctx, ordinary)?;
        let with_scratch = lost(ctx, "with scratch")?;
        trim_all(&mut handle)?;
        settle(ctx, ordinary)?;
        let without = lost(ctx, "without")?;
        if ctx.rank == 0 {
            println!(
                "SWEEP {policy}: {mapped} bytes in {windows} windows and {tensors} of tensors; the \
                 device lost {with_graphs} a rank with graphs, {with_scratch} without them, \
                 {without} after a trim"
            );
        }
        // What library and driver keep for a window may be as much as a granule.
        ensure(with_scratch.abs_diff(mapped) <= 2 * MIB * windows, || {
            format!("{policy} maps {mapped} bytes a rank, and the device lost {with_scratch}")
        })?;
        finish(ctx, handle)?;
    }
    Ok(())
}

/// Windows without graphs, and graphs without windows of their own: what each adds by itself.
fn apart(ctx: &mut Ctx) -> Outcome {
    const WINDOWS: usize = 12;
    const GRAPHS: usize = 32;
    let mut handle = handle(ctx, "geometric")?;
    rehearse(ctx, &mut handle)?;
    let _ = handle.reserve(&[Request::new(2 * MIB)]).said("reserve")?;
    let ordinary = ctx.cuda.ordinary_bytes();
    let empty = free_bytes(ctx, "empty")?;
    let windows: Vec<_> = (0..WINDOWS)
        .map(|_| handle.symmetric_buffer::<u8>(2 * MIB))
        .collect::<Result<_, _>>()
        .said("symmetric_buffer")?;
    let full = free_bytes(ctx, "windows")?;
    let lost = empty.saturating_sub(full) / ctx.ranks;
    drop(windows);
    let _ = handle.trim().said("trim")?;
    let _ = handle.reserve(&[Request::new(2 * MIB)]).said("reserve")?;
    settle(ctx, ordinary)?;
    let empty = free_bytes(ctx, "no windows")?;
    let mut with_graphs = Vec::new();
    let mut without = Vec::new();
    // What the driver keeps for so many graphs it keeps once.
    for time in ["first", "second"] {
        let mut graphs = Vec::new();
        for round in 0..GRAPHS {
            let mut graph = captured(ctx, &mut handle, 1000)?;
            graph.replay(ctx, round)?;
            graphs.push(graph);
        }
        let free = free_bytes(ctx, &format!("{time} graphs"))?;
        with_graphs.push(empty.saturating_sub(free) / ctx.ranks);
        drop(graphs);
        settle(ctx, ordinary)?;
        let free = free_bytes(ctx, &format!("{time} graphs gone"))?;
        without.push(empty.saturating_sub(free) / ctx.ranks);
    }
    if ctx.rank == 0 {
        println!(
            "SWEEP {WINDOWS} windows of 2 MiB: the device lost {lost} a rank; {GRAPHS} graphs with \
             small tensors, twice: {with_graphs:?}, and {without:?} when they were gone"
        );
    }
    ensure(
        lost.abs_diff(WINDOWS * 2 * MIB) <= WINDOWS * 2 * MIB,
        || format!("{WINDOWS} windows took {lost} bytes"),
    )?;
    ensure(without[1].saturating_sub(without[0]) <= 2 * MIB, || {
        format!("{GRAPHS} graphs left {without:?} bytes")
    })?;
    finish(ctx, handle)
}

fn cycles(ctx: &mut Ctx) -> Outcome {
    let cycles = number("COLLECTIVES_GPU_CYCLES", 1_000);
    let mut handle = handle(ctx, "arena")?;
    let ordinary = ctx.cuda.ordinary_bytes();
    rehearse(ctx, &mut handle)?;
    let mut first = 0;
    for cycle in 0..cycles {
        if cycle == cycles.min(20) / 2 {
            settle(ctx, ordinary)?;
            first = free_bytes(ctx, "cycles, first")?;
        }
        handle.reserve(&[Request::new(MIB)]).said("reserve")?;
        let mut graph = captured(ctx, &mut handle, 500)?;
        handle.reserve(&[Request::new(3 * MIB)]).said("reserve")?;
        graph.replay(ctx, cycle)?;
        drop(graph);
        trim_all(&mut handle)?;
    }
    settle(ctx, ordinary)?;
    let last = free_bytes(ctx, "cycles, last")?;
    let lost = first.saturating_sub(last);
    if ctx.rank == 0 {
        println!("SWEEP {cycles} cycles: the device lost {lost} bytes, all ranks together");
    }
    ensure(lost <= 2 * MIB * ctx.ranks, || {
        format!("the device lost {lost} bytes over {cycles} cycles")
    })?;
    finish(ctx, handle)
}

/// Graphs keep every generation until their addresses would exceed half of what the library reserves.
fn addresses(ctx: &mut Ctx) -> Outcome {
    let mut config = ScratchConfig::with_policy("arena");
    config.growth = Some(1.0);
    let mut handle = handle_of(ctx, &config)?;
    let mut graphs = Vec::new();
    let (_, total) = ctx.cuda.memory_info().said("memory_info")?;
    let limit = total.next_multiple_of(4 << 30) / 2;
    // Generations of a gibibyte more each: their addresses add up much faster than their bytes.
    let refused = (1..=16).find_map(|gibibytes| {
        let reserved = handle.reserve(&[Request::new(gibibytes << 30)]);
        match reserved {
            Ok(_) => match captured(ctx, &mut handle, 1000) {
                Ok(graph) => {
                    graphs.push(graph);
                    None
                }
                Err(words) => Some(Err(words)),
            },
            Err(error) => Some(Ok(error)),
        }
    });
    let stats = handle.stats();
    if ctx.rank == 0 {
        println!(
            "SWEEP {} bytes at {} bytes of addresses, of {limit}",
            stats.mapped_bytes(),
            stats.address_bytes()
        );
    }
    ensure(stats.address_bytes() <= limit, || "too many".to_owned())?;
    match refused {
        // With many ranks on one GPU memory may be out first, on all ranks alike.
        Some(Ok(error)) => ensure(
            matches!(
                error.kind(),
                ErrorKind::Refused { .. } | ErrorKind::OutOfMemory { .. }
            ),
            || error.to_string(),
        )?,
        Some(Err(words)) => return Err(words),
        None => return Err("sixteen generations fit".to_owned()),
    }
    for (round, graph) in graphs.iter_mut().enumerate() {
        graph.replay(ctx, round)?;
    }
    drop(graphs);
    finish(ctx, handle)
}
