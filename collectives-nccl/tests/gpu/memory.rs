//! What the device really loses: by policy, over many growths, over many cycles, and what growing
//! costs.
//!
//! `COLLECTIVES_GPU_REPLAYS` and `COLLECTIVES_GPU_CYCLES` change how often things are done.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use collectives_alloc::config::ScratchConfig;
use collectives_core::error::ErrorKind;
use collectives_core::scratch::Request;

use crate::rank::{Case, Ctx};
use crate::scratch::{Staged, captured, eager, handle, handle_of};
use crate::{Outcome, Said, ensure};

/// Cases that take longer than others, each in a world of its own.
pub(crate) const CASES: &[Case] = &[
    ("the_seed_trace_takes_what_theory_says", seed),
    ("graphs_of_an_arena_replay_across_twenty_growths", growths),
    ("memory_is_flat_over_a_thousand_cycles", cycles),
    ("growing_costs_by_policy_and_size", costs),
    ("an_arena_stays_within_its_addresses", addresses),
];

const MIB: usize = 1 << 20;
/// Elements of bf16 in a token.
const HIDDEN: usize = 5120;
/// How long destructors of graphs may take, which run on a thread of the driver.
const DESTRUCTORS: Duration = Duration::from_secs(20);

fn number(name: &str, default: usize) -> usize {
    let given = env::var(name).ok().and_then(|value| value.parse().ok());
    given.unwrap_or(default)
}

/// Free bytes of the GPU while no rank does anything.
fn free_bytes(ctx: &mut Ctx, round: &str) -> Result<usize, String> {
    ctx.sync()?;
    ctx.device.collect();
    ctx.meet(&format!("{round}, before"))?;
    let (free, _) = ctx.cuda.memory_info().said("memory_info")?;
    ctx.meet(&format!("{round}, after"))?;
    Ok(free)
}

/// A first window and a first operation, for which the library keeps memory of its own.
fn warm_up(ctx: &mut Ctx, handle: &mut Staged) -> Outcome {
    drop(handle.symmetric_buffer::<u8>(1).said("symmetric_buffer")?);
    let _ = handle.trim().said("trim")?;
    handle.barrier(&ctx.stream).said("barrier")?;
    ctx.sync()
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

fn seed(ctx: &mut Ctx) -> Outcome {
    for (policy, mebibytes) in [("arena", 8), ("geometric-class", 16), ("exact", 60)] {
        let mut handle = handle(ctx, policy)?;
        warm_up(ctx, &mut handle)?;
        let before = free_bytes(ctx, &format!("{policy}, empty"))?;
        let mut graphs = Vec::new();
        for tokens in [1, 8, 64, 128, 256_usize] {
            let count = tokens.next_multiple_of(64) * HIDDEN;
            eager(ctx, &mut handle, count, tokens)?;
            graphs.push(captured(ctx, &mut handle, count)?);
        }
        let prompts = [
            37, 64, 101, 150, 192, 230, 300, 350, 410, 480, 505, 570, 640, 655, 700, 768_usize,
        ];
        for (round, tokens) in prompts.into_iter().enumerate() {
            let count = tokens.next_multiple_of(64) * HIDDEN;
            eager(ctx, &mut handle, count, round)?;
            graphs[round % 5].replay(ctx, round)?;
        }
        for graph in &mut graphs {
            graph.replay(ctx, 77)?;
        }
        let mapped = handle.stats().mapped_bytes();
        ensure(mapped == mebibytes * MIB, || {
            format!("{policy} says that it maps {mapped} bytes")
        })?;
        // Tensors and graphs go; scratch stays until the trim.
        drop(graphs);
        let after = free_bytes(ctx, &format!("{policy}, full"))?;
        let lost = before.saturating_sub(after) / ctx.ranks;
        if ctx.rank == 0 {
            println!("SWEEP {policy}: the device lost {lost} bytes a rank");
        }
        // Tables of the library and the driver may take a granule a window.
        let slack = 2 * MIB * handle.stats().slots.len();
        ensure(lost.abs_diff(mapped) <= slack, || {
            format!("{policy} maps {mapped} bytes a rank, and the device lost {lost}")
        })?;
        trim_all(&mut handle)?;
        let _ = handle.close().said("close")?;
    }
    Ok(())
}

fn growths(ctx: &mut Ctx) -> Outcome {
    let replays = number("COLLECTIVES_GPU_REPLAYS", 10_000);
    let each = replays.div_ceil(20 * 8);
    let mut config = ScratchConfig::with_policy("arena");
    config.growth = Some(1.0);
    let mut handle = handle_of(ctx, &config)?;
    let mut graphs = Vec::new();
    let mut made = 0;
    for growth in 1..=20 {
        handle
            .reserve(&[Request::new(2 * growth * MIB)])
            .said("reserve")?;
        let stats = handle.stats();
        ensure(stats.mapped_bytes() == 2 * growth * MIB, || {
            format!("{} bytes after growth {growth}", stats.mapped_bytes())
        })?;
        if growth % 5 < 2 {
            graphs.push(captured(ctx, &mut handle, 1000 * growth)?);
        }
        for round in 0..each {
            for (index, graph) in graphs.iter_mut().enumerate() {
                graph.replay(ctx, round + index)?;
                made += 1;
            }
        }
        eager(ctx, &mut handle, growth * MIB, growth)?;
    }
    ensure(graphs.len() == 8, || format!("{} graphs", graphs.len()))?;
    while made < replays {
        let index = made % 8;
        graphs[index].replay(ctx, made)?;
        made += 1;
    }
    let stats = handle.stats();
    let device = ctx.cuda.mapped_bytes();
    ensure(device == 40 * MIB, || format!("{device} bytes are mapped"))?;
    if ctx.rank == 0 {
        let addresses = stats.address_bytes();
        println!("SWEEP {made} replays, {device} bytes mapped at {addresses} bytes of addresses");
    }
    drop(graphs);
    trim_all(&mut handle)?;
    let _ = handle.close().said("close")?;
    Ok(())
}

fn cycles(ctx: &mut Ctx) -> Outcome {
    let cycles = number("COLLECTIVES_GPU_CYCLES", 1_000);
    let mut handle = handle(ctx, "arena")?;
    warm_up(ctx, &mut handle)?;
    let mut first = 0;
    for cycle in 0..cycles {
        if cycle == cycles.min(20) / 2 {
            first = free_bytes(ctx, "cycles, first")?;
        }
        handle.reserve(&[Request::new(MIB)]).said("reserve")?;
        let mut graph = captured(ctx, &mut handle, 500)?;
        handle.reserve(&[Request::new(3 * MIB)]).said("reserve")?;
        graph.replay(ctx, cycle)?;
        drop(graph);
        trim_all(&mut handle)?;
    }
    let last = free_bytes(ctx, "cycles, last")?;
    let lost = first.saturating_sub(last);
    if ctx.rank == 0 {
        println!("SWEEP {cycles} cycles: the device lost {lost} bytes, all ranks together");
    }
    ensure(lost <= 2 * MIB * ctx.ranks, || {
        format!("the device lost {lost} bytes over {cycles} cycles")
    })?;
    let _ = handle.close().said("close")?;
    Ok(())
}

/// Prints what a growth takes; asserts nothing about time.
fn costs(ctx: &mut Ctx) -> Outcome {
    for policy in ["geometric", "replace", "arena"] {
        let mut handle = handle(ctx, policy)?;
        warm_up(ctx, &mut handle)?;
        handle.reserve(&[Request::new(MIB)]).said("reserve")?;
        for power in 2..=9 {
            let bytes = MIB << power;
            ctx.meet(&format!("{policy} {bytes}"))?;
            let begun = Instant::now();
            handle.reserve(&[Request::new(bytes)]).said("reserve")?;
            let took = begun.elapsed();
            if ctx.rank == 0 {
                println!(
                    "SWEEP growth of {policy} to {} MiB: {took:.2?}",
                    bytes / MIB
                );
            }
        }
        trim_all(&mut handle)?;
        let _ = handle.close().said("close")?;
    }
    Ok(())
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
    trim_all(&mut handle)?;
    let _ = handle.close().said("close")?;
    Ok(())
}
