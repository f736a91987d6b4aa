//! Captured graphs and what they own.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use collectives_core::buffer::Buffer;
use collectives_core::error::ErrorKind;
use collectives_core::reduce::ReduceOp;
use collectives_nccl::communicator::NcclCommunicator;
use half::bf16;

use crate::rank::Ctx;
use crate::scratch::{captured, eager, handle};
use crate::values::{inputs, same, sums};
use crate::{Outcome, Said, ensure};

/// Waits until something holds, for destructors run on a thread of the driver.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) -> Outcome {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > Duration::from_secs(20) {
            return Err(format!("{what} did not come about"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

pub(crate) fn foreign_stream(ctx: &mut Ctx) -> Outcome {
    let mut handle = handle(ctx, "geometric")?;
    let raw = std::ptr::with_exposed_provenance_mut::<c_void>(ctx.stream.raw());
    // SAFETY: The context's stream outlives this case, which uses it from one thread.
    let foreign = unsafe { ctx.cuda.stream_from_raw(raw) }.said("stream_from_raw")?;
    ensure(foreign.id() == ctx.stream.id(), || {
        "the stream has two identities".to_owned()
    })?;
    for round in 0..3 {
        let values = inputs::<bf16>(ctx.rank, 5000, round);
        let mut tensor = Buffer::from_slice(&ctx.device, &values, &foreign).said("from_slice")?;
        handle
            .all_reduce(&mut tensor, ReduceOp::Sum, &foreign)
            .said("all_reduce")?;
        let found = tensor.read(&foreign).said("read")?;
        same("the sum", &found, &sums::<bf16>(ctx.ranks, 0, 5000, round))?;
        // The slot's last eager use was on the foreign stream when this capture claims it.
        captured(ctx, &mut handle, 5000)?.replay(ctx, round)?;
    }
    drop(foreign);
    let _ = handle.close().said("close")?;
    Ok(())
}

/// Two graphs and eager calls on two streams use one slot, with nothing between them on the host.
pub(crate) fn mixed(ctx: &mut Ctx) -> Outcome {
    let mut handle = handle(ctx, "geometric")?;
    let other = ctx.device.create_stream().said("stream")?;
    let count = 60_000;
    eager(ctx, &mut handle, count, 0)?;
    let mut graphs = [
        captured(ctx, &mut handle, count)?,
        captured(ctx, &mut handle, count)?,
    ];
    for round in 0..30 {
        for (index, graph) in graphs.iter_mut().enumerate() {
            let values = inputs::<bf16>(ctx.rank, count, round + index);
            graph.tensor.write(&values, &ctx.stream).said("write")?;
        }
        let values = inputs::<bf16>(ctx.rank, count, round + 2);
        let mut tensor = Buffer::from_slice(&ctx.device, &values, &other).said("from_slice")?;
        let [first, second] = &mut graphs;
        first
            .graph
            .launch(&*ctx.device, &ctx.stream)
            .said("launch")?;
        handle
            .all_reduce(&mut tensor, ReduceOp::Sum, &other)
            .said("all_reduce")?;
        second.graph.launch(&*ctx.device, &other).said("launch")?;
        for (index, found) in [&first.tensor, &second.tensor, &tensor]
            .into_iter()
            .enumerate()
        {
            let found = found.read(&ctx.stream).said("read")?;
            let expected = sums::<bf16>(ctx.ranks, 0, count, round + index);
            same(&format!("round {round}, user {index}"), &found, &expected)?;
        }
    }
    drop(graphs);
    let _ = handle.close().said("close")?;
    Ok(())
}

pub(crate) fn close_first(ctx: &mut Ctx) -> Outcome {
    let mut handle = handle(ctx, "geometric")?;
    eager(ctx, &mut handle, 5000, 0)?;
    let mut graph = captured(ctx, &mut handle, 5000)?;
    graph.replay(ctx, 1)?;
    let begun = Instant::now();
    let left = handle.close().said("close")?;
    let took = begun.elapsed();
    ensure(took < Duration::from_secs(10), || {
        format!("close took {took:?}")
    })?;
    ensure(left.communicator, || format!("{left:?}"))?;
    let refused = graph.graph.launch(&*ctx.device, &ctx.stream);
    let closed = refused.is_err_and(|error| error.kind() == &ErrorKind::Closed);
    ensure(closed, || {
        "a launch after the close was not refused".to_owned()
    })?;
    // Communicators of cases before may still be ending, so only this one's end is counted on.
    let live = NcclCommunicator::live_count();
    ensure(live > 0, || "it ended too early".to_owned())?;
    drop(graph);
    eventually("the end of the communicator", || {
        NcclCommunicator::live_count() < live
    })?;
    ctx.device.collect();
    Ok(())
}

pub(crate) fn drop_orders(ctx: &mut Ctx) -> Outcome {
    let before = NcclCommunicator::live_count();
    for order in 0..3 {
        let mut handle = handle(ctx, "geometric")?;
        eager(ctx, &mut handle, 5000, 0)?;
        let graph = captured(ctx, &mut handle, 5000)?;
        ctx.sync()?;
        ctx.meet(&format!("order {order}"))?;
        match order {
            0 => {
                drop(graph);
                let _ = handle.close().said("close")?;
            }
            1 => {
                // Without a close.
                drop(handle);
                drop(graph);
            }
            _ => {
                drop(graph);
                drop(handle);
            }
        }
        eventually("the end of the communicator", || {
            NcclCommunicator::live_count() <= before
        })?;
    }
    Ok(())
}
