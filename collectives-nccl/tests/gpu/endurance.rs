//! Many replays and many captures: nothing wrong, nothing lost.
//!
//! `COLLECTIVES_GPU_LONG=1` asks for eight graphs of ten thousand replays each across twenty growths,
//! and for a thousand captures; otherwise there are fewer of each.

use std::fs;

use collectives_alloc::config::ScratchConfig;
use collectives_core::addr::Addr;
use collectives_core::buffer::Buffer;
use collectives_core::tensor::Tensor;
use half::bf16;

use crate::rank::Ctx;
use crate::scratch::{Captured, captured, eager, handle, handle_of};
use crate::values::{inputs, same, sums};
use crate::{Outcome, Said, ensure};

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

pub(crate) fn replays(ctx: &mut Ctx) -> Outcome {
    let (captures, growths, each) = if long() { (8, 20, 500) } else { (4, 4, 50) };
    let mut config = ScratchConfig::with_policy("replace");
    config.growth = Some(1.01);
    let mut handle = handle_of(ctx, &config)?;
    let mut replays = Replays::new(ctx)?;
    let mut graphs = Vec::new();
    // Every graph on another generation of the slot, then growths in between.
    let elements = |round: usize| (round + 1) * (3 << 19);
    for round in 0..captures {
        eager(ctx, &mut handle, elements(round), round)?;
        graphs.push(captured(ctx, &mut handle, COUNT)?);
    }
    for round in captures..captures + growths {
        for _ in 0..each {
            for graph in &mut graphs {
                replays.replay(ctx, graph)?;
            }
        }
        eager(ctx, &mut handle, elements(round), round)?;
    }
    replays.compare(ctx)?;
    let stats = handle.stats();
    // A single rank stages nothing.
    let grown = captures + growths;
    ensure(ctx.ranks == 1 || stats.growths >= grown as u64, || {
        format!("{stats:?}")
    })?;
    ensure(replays.made == captures * growths * each, || {
        format!("{} replays", replays.made)
    })?;
    drop(graphs);
    let _ = handle.close().said("close")?;
    Ok(())
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
