//! Many replays and many captures: nothing wrong, nothing lost.
//!
//! `COLLECTIVES_GPU_LONG=1` asks for eight graphs of ten thousand replays each across twenty growths,
//! and for a thousand captures; otherwise there are fewer of each. `COLLECTIVES_GPU_REPLAYS` says how
//! often each graph of an arena is replayed.

use std::fs;

use collectives_alloc::config::ScratchConfig;
use collectives_core::addr::Addr;
use collectives_core::buffer::Buffer;
use collectives_core::tensor::Tensor;
use half::bf16;

use crate::rank::Ctx;
use crate::scratch::{Captured, Staged, captured, eager, handle, handle_of};
use crate::values::{inputs, same, sums};
use crate::{Outcome, Said, ensure, memory};

/// Inputs that lie ready on the device, so that each replay can have others than the one before.
const INPUTS: usize = 16;
/// Results that are kept before they are compared.
const KEPT: usize = 250;
/// Elements of a graph's tensor.
const COUNT: usize = 9_000;

fn long() -> bool {
    std::env::var("COLLECTIVES_GPU_LONG").is_ok_and(|value| value == "1")
}

/// Replays on new inputs, whose results are kept on the device until there are many.
struct Replays {
    inputs: Vec<Buffer<bf16>>,
    expected: Vec<Vec<bf16>>,
    results: Buffer<bf16>,
    /// Which input each kept result came from.
    kept: Vec<usize>,
    made: usize,
}

impl Replays {
    fn new(ctx: &Ctx) -> Result<Self, String> {
        let on_device = |round| {
            let values = inputs::<bf16>(ctx.rank, COUNT, round);
            Buffer::from_slice(&ctx.device, &values, &ctx.stream).said("from_slice")
        };
        Ok(Self {
            inputs: (0..INPUTS).map(on_device).collect::<Result<_, _>>()?,
            expected: (0..INPUTS)
                .map(|round| sums::<bf16>(ctx.ranks, 0, COUNT, round))
                .collect(),
            results: Buffer::zeroed(&ctx.device, COUNT * KEPT, &ctx.stream).said("zeroed")?,
            kept: Vec::new(),
            made: 0,
        })
    }

    fn replay(&mut self, ctx: &Ctx, graph: &mut Captured) -> Outcome {
        let round = self.made % INPUTS;
        let tensor = graph.tensor.operand().addr;
        copy(ctx, tensor, self.inputs[round].operand().addr)?;
        graph
            .graph
            .launch(&*ctx.device, &ctx.stream)
            .said("launch")?;
        let place = self.kept.len() * COUNT * 2;
        copy(ctx, self.results.operand().addr.offset(place), tensor)?;
        self.kept.push(round);
        self.made += 1;
        match self.kept.len() < KEPT {
            true => Ok(()),
            false => self.compare(ctx),
        }
    }

    /// Compares every element of every result that was kept.
    fn compare(&mut self, ctx: &Ctx) -> Outcome {
        let found = self.results.read(&ctx.stream).said("read")?;
        let first = self.made - self.kept.len();
        for (index, round) in self.kept.drain(..).enumerate() {
            let result = &found[index * COUNT..][..COUNT];
            let what = format!("replay {}", first + index);
            same(&what, result, &self.expected[round])?;
        }
        Ok(())
    }
}

/// Copies one tensor on the context's stream, on which everything of these cases runs.
fn copy(ctx: &Ctx, to: Addr, from: Addr) -> Outcome {
    // SAFETY: Both are `COUNT` elements of different buffers that live longer than this case.
    unsafe { ctx.device.copy(to, from, COUNT * 2, &ctx.stream) }.said("copy")
}

/// Graphs that were captured on one generation of scratch after another, and what they replay with.
struct Growing {
    handle: Staged,
    graphs: Vec<Captured>,
    replays: Replays,
    growths: usize,
}

impl Growing {
    /// Each growth wants this much more.
    const STEP: usize = 3 << 20;

    fn new(ctx: &mut Ctx, policy: &str, growth: f64) -> Result<Self, String> {
        let mut config = ScratchConfig::with_policy(policy);
        config.growth = Some(growth);
        Ok(Self {
            handle: handle_of(ctx, &config)?,
            graphs: Vec::new(),
            replays: Replays::new(ctx)?,
            growths: 0,
        })
    }

    fn grow(&mut self, ctx: &Ctx) -> Outcome {
        self.growths += 1;
        let elements = self.growths * Self::STEP / size_of::<bf16>();
        eager(ctx, &mut self.handle, elements, self.growths)
    }

    /// So many graphs, each on a generation of its own; then growths, with so many replays of every
    /// graph before each.
    fn run(&mut self, ctx: &mut Ctx, captures: usize, growths: usize, each: usize) -> Outcome {
        for _ in 0..captures {
            self.grow(ctx)?;
            self.graphs.push(captured(ctx, &mut self.handle, COUNT)?);
        }
        for _ in 0..growths {
            for _ in 0..each {
                for graph in &mut self.graphs {
                    self.replays.replay(ctx, graph)?;
                }
            }
            self.grow(ctx)?;
        }
        self.replays.compare(ctx)?;
        let stats = self.handle.stats();
        // A single rank stages nothing.
        let grown = captures + growths;
        ensure(ctx.ranks == 1 || stats.growths >= grown as u64, || {
            format!("{stats:?}")
        })?;
        ensure(self.replays.made == captures * growths * each, || {
            format!("{} replays", self.replays.made)
        })
    }
}

pub(crate) fn replays(ctx: &mut Ctx) -> Outcome {
    let (captures, growths, each) = if long() { (8, 20, 500) } else { (4, 4, 50) };
    let mut growing = Growing::new(ctx, "replace", 1.01)?;
    growing.run(ctx, captures, growths, each)?;
    drop(growing.graphs);
    let _ = growing.handle.close().said("close")?;
    Ok(())
}

/// Eight graphs of an arena, each on an older generation of the same bytes than the next, and twenty
/// growths while they replay.
pub(crate) fn arena(ctx: &mut Ctx) -> Outcome {
    const GRAPHS: usize = 8;
    const GROWTHS: usize = 20;
    let replays = if long() { 10_000 } else { 1_000 };
    let replays = memory::number("COLLECTIVES_GPU_REPLAYS", replays);
    let mut growing = Growing::new(ctx, "arena", 1.0)?;
    growing.run(ctx, GRAPHS, GROWTHS, replays.div_ceil(GROWTHS))?;
    let stats = growing.handle.stats();
    let device = ctx.cuda.mapped_bytes();
    let expected = ((GRAPHS + GROWTHS) * Growing::STEP).next_multiple_of(2 << 20);
    ensure(
        device == expected && stats.mapped_bytes() == expected,
        || format!("{device} bytes are mapped, not {expected}: {stats:?}"),
    )?;
    // Every graph keeps the addresses it was captured with.
    let claimed = stats.slots.iter().filter(|slot| slot.claimed).count();
    ensure(claimed == GRAPHS, || {
        format!("{claimed} generations are claimed")
    })?;
    if ctx.rank == 0 {
        let (made, addresses) = (growing.replays.made, stats.address_bytes());
        println!(
            "SWEEP {made} replays of {GRAPHS} graphs across {GROWTHS} growths, none wrong; {device} \
             bytes mapped at {addresses} bytes of addresses"
        );
    }
    drop(growing.graphs);
    memory::finish(ctx, growing.handle)
}

/// Bytes of host memory that this process occupies.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|text| text.parse().ok());
    pages.unwrap_or(0) * 4096
}

pub(crate) fn captures(ctx: &mut Ctx) -> Outcome {
    let (cycles, warm) = if long() { (1000, 200) } else { (120, 40) };
    let mut handle = handle(ctx, "geometric")?;
    eager(ctx, &mut handle, 5000, 0)?;
    let mut before = (0, 0);
    for cycle in 0..warm + cycles {
        if cycle == warm {
            before = memory(ctx, "warm")?;
        }
        captured(ctx, &mut handle, 5000)?.replay(ctx, cycle)?;
    }
    let after = memory(ctx, "end")?;
    let lost = before.0.saturating_sub(after.0);
    ensure(lost <= 4 << 20, || {
        format!("{cycles} captures lost {lost} bytes of the device")
    })?;
    let grown = after.1.saturating_sub(before.1);
    println!("{cycles} captures: device {lost}, host {grown}");
    ensure(grown <= 8 << 20, || {
        format!("{cycles} captures took {grown} bytes of the host")
    })?;
    let _ = handle.close().said("close")?;
    Ok(())
}

/// Free bytes of the device and resident bytes of the host, while no rank does anything.
fn memory(ctx: &Ctx, when: &str) -> Result<(usize, usize), String> {
    ctx.sync()?;
    ctx.device.collect();
    ctx.meet(&format!("memory before, {when}, {}", ctx.ranks))?;
    let free = ctx.cuda.memory_info().said("memory_info")?.0;
    ctx.meet(&format!("memory after, {when}, {}", ctx.ranks))?;
    Ok((free, resident()))
}
