//! Our own collectives: ranks that are threads, at `enqueue` and through the handle.

use std::sync::Arc;
use std::time::Instant;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collective::{Collective, OpKind};
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::dtype::DType;
use collectives_core::error::{Error, Misuse, Result};
use collectives_core::path::{Path, Staging};
use collectives_core::rank::Rank;
use collectives_core::stream::Stream;
use collectives_core::tensor::Tensor;
use collectives_host::communicator::HostCommunicator;
use collectives_host::world::HostWorld;
use half::bf16;

use crate::case::{Case, Shape};
use crate::copy_limit::{per_operation, slowest_rank};
use crate::gate::Gate;
use crate::handle;
use crate::operands::{Batch, Value, enqueue, lengths};
use crate::row::Variant;

/// Nanoseconds of one operation in each variant that the operation has.
pub(crate) fn measure(case: &Case, shape: Shape) -> Result<Vec<(Variant, f64)>> {
    let gate = Gate::new(case.ranks);
    let ranks = HostWorld::new(case.ranks).run(|comm| {
        gate.guard(|| match (case.operation, case.dtype) {
            (OpKind::Barrier, _) => barriers(comm, case, shape, &gate),
            (_, DType::F32) => rank_main::<f32>(comm, case, shape, &gate),
            (_, DType::Bf16) => rank_main::<bf16>(comm, case, shape, &gate),
            (_, other) => Err(Misuse::Other(format!("{other} is not measured")).into()),
        })
    });
    let ranks: Vec<_> = ranks.into_iter().collect::<Result<_>>()?;
    let first = ranks.first().ok_or_else(|| Error::config("no ranks"))?;
    let variant = |(index, (variant, _)): (usize, &(Variant, _))| {
        let times: Vec<_> = ranks.iter().map(|rank| rank[index].1.clone()).collect();
        (*variant, slowest_rank(&times).typical())
    };
    Ok(first.iter().enumerate().map(variant).collect())
}

/// The times of one rank's batches, per operation, in nanoseconds.
type Times = Vec<(Variant, Vec<f64>)>;

/// One rank among those that are measured.
pub(crate) struct Runner<'a> {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) stream: Stream,
    shape: Shape,
    gate: &'a Gate,
}

impl<'a> Runner<'a> {
    fn new(comm: &HostCommunicator, shape: Shape, gate: &'a Gate) -> Result<Self> {
        Ok(Self {
            device: Arc::clone(comm.device()),
            stream: comm.device().create_stream()?,
            shape,
            gate,
        })
    }

    /// Times batches of `run`, which gets the index of the operation in its batch.
    pub(crate) fn time(
        &self,
        prepare: impl Fn(usize),
        mut run: impl FnMut(usize) -> Result<()>,
        check: impl Fn(usize) -> Result<()>,
    ) -> Result<Vec<f64>> {
        let shape = self.shape;
        let mut times = Vec::with_capacity(shape.batches);
        for batch in 0..shape.warm_up + shape.batches {
            prepare(batch);
            self.gate.pass()?;
            let begun = Instant::now();
            for operation in 0..shape.operations {
                run(operation)?;
            }
            self.device.synchronize(&self.stream)?;
            let taken = begun.elapsed();
            check(batch)?;
            self.gate.pass()?;
            if batch >= shape.warm_up {
                times.push(per_operation(taken, shape));
            }
        }
        Ok(times)
    }

    /// [`Runner::time`] with inputs that are rewritten and results that are checked.
    pub(crate) fn time_on<V: Value, T: Tensor>(
        &self,
        batch: &Batch<T>,
        run: impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<f64>> {
        self.time(
            |index| batch.rewrite::<V>(index),
            run,
            |index| batch.check::<V>(index),
        )
    }
}

fn barriers(mut comm: HostCommunicator, case: &Case, shape: Shape, gate: &Gate) -> Result<Times> {
    let shape = Shape {
        operations: case.shape(false).operations,
        ..shape
    };
    let runner = Runner::new(&comm, shape, gate)?;
    let nothing = |_: usize| ();
    let fine = |_: usize| Ok(());
    let at_enqueue = runner.time(
        nothing,
        // SAFETY: A barrier has no operands.
        |_| unsafe { enqueue(&mut comm, &[Collective::BARRIER], &runner.stream) },
        fine,
    )?;
    let mut handle = Collectives::without_scratch(&mut comm);
    let through = runner.time(nothing, |_| handle.barrier(&runner.stream).map(drop), fine)?;
    Ok(vec![
        (Variant::Enqueue, at_enqueue),
        (Variant::Handle, through),
    ])
}

fn rank_main<T: Value>(
    mut comm: HostCommunicator,
    case: &Case,
    shape: Shape,
    gate: &Gate,
) -> Result<Times> {
    let runner = Runner::new(&comm, shape, gate)?;
    let rank = comm.info().rank;
    let mut times = Times::new();

    let ordinary = ordinary::<T>(&runner, case, shape, rank)?;
    let calls = ordinary.calls();
    let enqueued = runner.time_on::<T, _>(&ordinary, |operation| {
        // SAFETY: The operands lie in buffers that live on, which only this batch uses.
        unsafe { enqueue(&mut comm, &calls[operation..=operation], &runner.stream) }
    })?;
    times.push((Variant::Enqueue, enqueued));

    let mut handle = Collectives::without_scratch(&mut comm);
    let plain = [Path::Direct, Path::Fallback];
    let raw = ordinary.raw();
    let through = handle::time::<T, _, _, _>(&runner, &mut handle, case, raw, &plain)?;
    times.extend(through.map(|through| (Variant::Handle, through)));

    let mut handle = Collectives::new(comm, ScratchConfig::default().build()?);
    handle.set_staging(Staging::Forced);
    let staged = handle::time::<T, _, _, _>(&runner, &mut handle, case, ordinary, &[Path::Staged])?;
    times.extend(staged.map(|staged| (Variant::Staged, staged)));

    handle.set_staging(Staging::Auto);
    let (main, results) = lengths(case, shape);
    let main = handle.symmetric_buffer::<T>(main)?;
    let results = (results > 0)
        .then(|| handle.symmetric_buffer::<T>(results))
        .transpose()?;
    let symmetric = Batch::cut(case, shape, rank, &main, results.as_ref())?;
    let paths = [Path::ZeroCopy];
    let zero_copy = handle::time::<T, _, _, _>(&runner, &mut handle, case, symmetric, &paths)?;
    times.extend(zero_copy.map(|zero_copy| (Variant::ZeroCopy, zero_copy)));

    drop((main, results));
    let _deferred = handle.close()?;
    Ok(times)
}

/// A batch in ordinary memory.
fn ordinary<T: Value>(
    runner: &Runner<'_>,
    case: &Case,
    shape: Shape,
    rank: Rank,
) -> Result<Batch<Buffer<T>>> {
    let (main, results) = lengths(case, shape);
    let buffer = |count| Buffer::<T>::zeroed(&runner.device, count, &runner.stream);
    let main = buffer(main)?;
    let results = (results > 0).then(|| buffer(results)).transpose()?;
    Batch::cut(case, shape, rank, &main, results.as_ref())
}
