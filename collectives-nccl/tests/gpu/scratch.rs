//! Staging through scratch, by each policy.

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::graph::{Capture, Executable};
use collectives_core::path::{Fallback, Kernel, Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_nccl::communicator::NcclCommunicator;
use half::bf16;

use crate::rank::Ctx;
use crate::values::{inputs, same, sums};
use crate::{Outcome, Said, ensure};

pub(crate) type Staged = Collectives<NcclCommunicator, Box<dyn ScratchAllocator>>;

/// A handle that stages everything it can.
pub(crate) fn handle(ctx: &mut Ctx, policy: &str) -> Result<Staged, String> {
    let mut config = ScratchConfig::with_policy(policy);
    if policy == "reserved" {
        config.max_request = Some("8MiB".parse().said("size")?);
    }
    handle_of(ctx, &config)
}

/// As [`handle`], with any configuration.
pub(crate) fn handle_of(ctx: &mut Ctx, config: &ScratchConfig) -> Result<Staged, String> {
    let scratch = config.build().said("build")?;
    let mut handle = Collectives::new(ctx.connect()?, scratch);
    handle.set_staging(Staging::Forced);
    handle.set_fallback(if ctx.ranks == 1 {
        Fallback::Allow
    } else {
        Fallback::Forbid
    });
    Ok(handle)
}

/// One captured all-reduce, and its tensor.
pub(crate) struct Captured {
    pub(crate) tensor: Buffer<bf16>,
    pub(crate) graph: Executable,
}

pub(crate) fn captured(
    ctx: &mut Ctx,
    handle: &mut Staged,
    count: usize,
) -> Result<Captured, String> {
    let mut tensor = Buffer::zeroed(&ctx.device, count, &ctx.stream).said("zeroed")?;
    let device = std::sync::Arc::clone(&ctx.device);
    let capture = Capture::begin(&*device, &mut ctx.stream).said("begin")?;
    handle
        .all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())
        .said("captured all_reduce")?;
    let graph = capture
        .end()
        .said("end")?
        .instantiate()
        .said("instantiate")?;
    Ok(Captured { tensor, graph })
}

impl Captured {
    /// Replays on new inputs and compares.
    pub(crate) fn replay(&mut self, ctx: &Ctx, round: usize) -> Outcome {
        let count = self.tensor.len();
        self.tensor
            .write(&inputs::<bf16>(ctx.rank, count, round), &ctx.stream)
            .said("write")?;
        self.graph
            .launch(&*ctx.device, &ctx.stream)
            .said("launch")?;
        let found = self.tensor.read(&ctx.stream).said("read")?;
        same(
            "the replay",
            &found,
            &sums::<bf16>(ctx.ranks, 0, count, round),
        )
    }
}

pub(crate) fn eager(ctx: &Ctx, handle: &mut Staged, count: usize, round: usize) -> Outcome {
    let values = inputs::<bf16>(ctx.rank, count, round);
    let mut tensor = Buffer::from_slice(&ctx.device, &values, &ctx.stream).said("from_slice")?;
    let report = handle
        .all_reduce(&mut tensor, ReduceOp::Sum, &ctx.stream)
        .said(&format!("all_reduce x {count}"))?;
    if ctx.ranks > 1 {
        ensure(report.path == Path::Staged, || format!("{report:?}"))?;
        // The handle forbids the fallback, and from 2.31 on the library can be told so.
        let version = handle.communicator().version();
        let forced = matches!(report.kernel, Kernel::Forced(_));
        ensure(forced == (version.code() >= 23_102), || {
            format!("NCCL {version}: {report:?}")
        })?;
    }
    let found = tensor.read(&ctx.stream).said("read")?;
    same(
        &format!("x {count}"),
        &found,
        &sums::<bf16>(ctx.ranks, 0, count, round),
    )
}

fn serves(ctx: &mut Ctx, policy: &str) -> Outcome {
    let mapped = ctx.cuda.mapped_bytes();
    let mut handle = handle(ctx, policy)?;
    if policy == "reserved" {
        handle.reserve(&[Request::new(8 << 20)]).said("reserve")?;
    }
    let mut graphs = Vec::new();
    for (round, count) in [1000, 40_000, 700, 900_000, 2_000_000]
        .into_iter()
        .enumerate()
    {
        eager(ctx, &mut handle, count, round)?;
        graphs.push(captured(ctx, &mut handle, count)?);
        for graph in &mut graphs {
            graph.replay(ctx, round + 20)?;
        }
    }
    let count = 3000;
    let values = inputs::<f32>(ctx.rank, count * ctx.ranks, 3);
    let send = Buffer::from_slice(&ctx.device, &values, &ctx.stream).said("from_slice")?;
    let mut recv = Buffer::<f32>::zeroed(&ctx.device, count, &ctx.stream).said("zeroed")?;
    handle
        .reduce_scatter(&send, &mut recv, ReduceOp::Sum, &ctx.stream)
        .said("reduce_scatter")?;
    let expected = sums::<f32>(ctx.ranks, ctx.rank * count, count, 3);
    same(
        "reduce_scatter",
        &recv.read(&ctx.stream).said("read")?,
        &expected,
    )?;
    let mut all =
        Buffer::<f32>::zeroed(&ctx.device, count * ctx.ranks, &ctx.stream).said("zeroed")?;
    handle
        .all_gather(&recv, &mut all, &ctx.stream)
        .said("all_gather")?;
    let expected = sums::<f32>(ctx.ranks, 0, count * ctx.ranks, 3);
    same(
        "all_gather",
        &all.read(&ctx.stream).said("read")?,
        &expected,
    )?;
    drop(graphs);
    // Destructors of graphs run on a thread of the driver, some time later.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let trimmed = handle.trim().said("trim")?;
    ensure(trimmed.held_bytes == 0, || {
        format!("after the graphs: {trimmed:?}")
    })?;
    let left = handle.close().said("close")?;
    ensure(!left.communicator && left.windows == 0, || {
        format!("{left:?}")
    })?;
    ctx.sync()?;
    ctx.device.collect();
    let now = ctx.cuda.mapped_bytes();
    ensure(now == mapped, || {
        format!("{mapped} bytes were mapped before, {now} after")
    })
}

pub(crate) fn exact(ctx: &mut Ctx) -> Outcome {
    serves(ctx, "exact")
}

pub(crate) fn replace(ctx: &mut Ctx) -> Outcome {
    serves(ctx, "replace")
}

pub(crate) fn geometric(ctx: &mut Ctx) -> Outcome {
    serves(ctx, "geometric")
}

pub(crate) fn geometric_class(ctx: &mut Ctx) -> Outcome {
    serves(ctx, "geometric-class")
}

pub(crate) fn reserved(ctx: &mut Ctx) -> Outcome {
    serves(ctx, "reserved")
}

pub(crate) fn arena(ctx: &mut Ctx) -> Outcome {
    serves(ctx, "arena")
}
