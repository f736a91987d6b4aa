//! The same operations through `Collectives`.

use collectives_core::collective::OpKind;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::path::{OpReport, Path};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;
use collectives_core::tensor::Tensor;

use crate::case::Case;
use crate::host::Runner;
use crate::operands::{Batch, Operands, Value};

/// Times of the operations on one of the paths that are meant, or `None` where they take another.
pub(crate) fn time<V, T, C, A>(
    runner: &Runner<'_>,
    handle: &mut Collectives<C, A>,
    case: &Case,
    mut batch: Batch<T>,
    paths: &[Path],
) -> Result<Option<Vec<f64>>>
where
    V: Value,
    T: Tensor,
    C: Communicator,
    A: ScratchAllocator,
{
    let operation = case.operation;
    let inputs = batch.raw();
    inputs.rewrite::<V>(0);
    let tried = call(handle, operation, &mut batch.all[0], &runner.stream)?;
    runner.device.synchronize(&runner.stream)?;
    // Every rank takes the same path, so all of them return here or none.
    if !paths.contains(&tried.path) {
        return Ok(None);
    }
    let times = runner.time_on::<V, _>(&inputs, |index| {
        call(handle, operation, &mut batch.all[index], &runner.stream).map(drop)
    })?;
    Ok(Some(times))
}

fn call<T: Tensor, C: Communicator, A: ScratchAllocator>(
    handle: &mut Collectives<C, A>,
    operation: OpKind,
    pair: &mut Operands<T>,
    stream: &Stream,
) -> Result<OpReport> {
    let Operands { send, recv } = pair;
    match operation {
        OpKind::ReduceScatter => handle.reduce_scatter(send, recv, ReduceOp::Sum, stream),
        OpKind::AllGather => handle.all_gather(send, recv, stream),
        OpKind::Broadcast => handle.broadcast(recv, Rank(0), stream),
        _ => handle.all_reduce(recv, ReduceOp::Sum, stream),
    }
}
