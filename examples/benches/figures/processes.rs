//! Our own collectives among ranks that are processes, at `enqueue`, on private buffers.

use std::error::Error;
use std::time::{Duration, Instant};

use collectives_core::buffer::Buffer;
use collectives_core::collective::{Collective, OpKind};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::env::World;
use collectives_core::error::{Error as CollectiveError, ErrorKind, Result};
use collectives_core::stream::Stream;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_host::process::ProcessCommunicator;
use collectives_testkit::launch::{self, Launch};
use half::bf16;

use crate::case::{Case, Shape};
use crate::copy_limit::{per_operation, slowest_rank};
use crate::operands::{Batch, Value, enqueue, lengths};

/// The name of the body that ranks run.
const BODY: &str = "figures-rank";
/// The case and its shape, in numbers and names.
const CASE: &str = "COLLECTIVES_FIGURES_CASE";
/// How long ranks may take in all.
const LIMIT: Duration = Duration::from_secs(40);

/// Runs this rank's part and ends the process, or returns where the process is no rank.
pub(crate) fn dispatch() {
    launch::dispatch(&[(BODY, body)]);
}

/// Nanoseconds of one operation.
pub(crate) fn measure(case: &Case, shape: Shape) -> std::result::Result<f64, Box<dyn Error>> {
    let report = Launch::new(BODY, case.ranks)
        .deadline(LIMIT)
        .var(CASE, to_text(case, shape))
        .run()?;
    let results = report.results().ok_or_else(|| report.to_string())?;
    let ranks = results.into_iter().map(serde_json::from_slice::<Vec<f64>>);
    let ranks = ranks.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(slowest_rank(&ranks).typical())
}

fn to_text(case: &Case, shape: Shape) -> String {
    let (operation, dtype) = (case.operation.name(), case.dtype.name());
    let numbers = [
        case.bytes,
        case.ranks,
        shape.operations,
        shape.batches,
        shape.warm_up,
    ];
    let numbers = numbers.map(|number| number.to_string()).join(" ");
    format!("{operation} {dtype} {numbers}")
}

fn parse(text: &str) -> Option<(Case, Shape)> {
    const OPERATIONS: [OpKind; 5] = [
        OpKind::AllReduce,
        OpKind::ReduceScatter,
        OpKind::AllGather,
        OpKind::Broadcast,
        OpKind::Barrier,
    ];
    let mut words = text.split(' ');
    let (operation, dtype) = (words.next()?, words.next()?);
    let mut number = || words.next()?.parse::<usize>().ok();
    let case = Case {
        operation: OPERATIONS.into_iter().find(|op| op.name() == operation)?,
        dtype: DType::ALL.into_iter().find(|known| known.name() == dtype)?,
        bytes: number()?,
        ranks: number()?,
    };
    let shape = Shape {
        operations: number()?,
        batches: number()?,
        warm_up: number()?,
    };
    Some((case, shape))
}

fn body(world: &World) -> Result<Vec<u8>> {
    let wrong = |text: String| CollectiveError::new(ErrorKind::System(text));
    let text = std::env::var(CASE).map_err(|error| wrong(error.to_string()))?;
    let (case, shape) = parse(&text).ok_or_else(|| wrong(format!("`{text}` is no case")))?;
    let bootstrap = world.bootstrap(LIMIT)?;
    let device = HostDevice::new(DeviceModel::new().with_shared_memory(true))?;
    let mut comm = ProcessCommunicator::connect_within(bootstrap, device, LIMIT)?;
    let times = match case.dtype {
        DType::Bf16 => times::<bf16>(&mut comm, &case, shape)?,
        _ => times::<f32>(&mut comm, &case, shape)?,
    };
    let _deferred = comm.shutdown()?;
    serde_json::to_vec(&times).map_err(|error| wrong(error.to_string()))
}

/// The times of this rank's batches, per operation. As with MPI, a barrier of the library's own lets the
/// ranks begin together.
fn times<T: Value>(comm: &mut ProcessCommunicator, case: &Case, shape: Shape) -> Result<Vec<f64>> {
    let device = std::sync::Arc::clone(comm.device());
    let stream = device.create_stream()?;
    let batch = batch::<T>(comm, case, shape, &stream)?;
    let calls = match case.operation {
        OpKind::Barrier => vec![Collective::BARRIER; shape.operations],
        _ => batch.calls(),
    };
    let mut times = Vec::with_capacity(shape.batches);
    for index in 0..shape.warm_up + shape.batches {
        batch.rewrite::<T>(index);
        meet(comm, &stream)?;
        let begun = Instant::now();
        for call in &calls {
            // SAFETY: The operands lie in buffers that live on, which only this batch uses.
            unsafe { enqueue(comm, std::slice::from_ref(call), &stream) }?;
        }
        device.synchronize(&stream)?;
        let taken = begun.elapsed();
        if case.operation != OpKind::Barrier {
            batch.check::<T>(index)?;
        }
        meet(comm, &stream)?;
        if index >= shape.warm_up {
            times.push(per_operation(taken, shape));
        }
    }
    Ok(times)
}

fn meet(comm: &mut ProcessCommunicator, stream: &Stream) -> Result<()> {
    // SAFETY: A barrier has no operands.
    unsafe { enqueue(comm, &[Collective::BARRIER], stream) }
}

/// A batch in ordinary memory, which no other process can reach.
fn batch<T: Value>(
    comm: &ProcessCommunicator,
    case: &Case,
    shape: Shape,
    stream: &Stream,
) -> Result<Batch<Buffer<T>>> {
    let (main, results) = lengths(case, shape);
    let buffer = |count| Buffer::<T>::zeroed(comm.device(), count, stream);
    let main = buffer(main)?;
    let results = (results > 0).then(|| buffer(results)).transpose()?;
    Batch::cut(case, shape, comm.info().rank, &main, results.as_ref())
}
