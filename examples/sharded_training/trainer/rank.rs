//! One rank: fully sharded data parallelism, layer by layer.
//!
//! Parameters of the next layer are gathered on one stream while this layer computes, and gradients
//! of the previous layer are scattered on another. No event is named here: buffers order their uses
//! themselves, whichever streams those are on, and in a capture, [branches](Site::beside) do.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::collective::Op;
use collectives_core::collectives::{Averaged, Collectives};
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::dtype::DType;
use collectives_core::error::Result;
use collectives_core::path::{Fallback, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;

use super::captured::Captured;
use super::streams::{Lanes, Site, Streams};
use crate::arithmetic::Arithmetic;
use crate::data::Data;
use crate::layout::Layout;
use crate::model;
use crate::options::{Options, Tensors};
use crate::outcome::{Calls, Kept, Outcome, Step};
use crate::precision::Compute;
use crate::tensors::TrainingTensors;

type Handle = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

#[derive(Debug)]
pub(crate) struct Trainer<'o, T: Compute> {
    options: &'o Options,
    data: Data,
    on: Handle,
    arithmetic: Box<dyn Arithmetic<T>>,
    layouts: Vec<Layout>,
    symmetric: bool,
    /// Taken out only while symmetric memory is switched.
    tensors: Option<TrainingTensors<T>>,
    /// The layers whose parameters each of the two buffers holds.
    present: [Option<usize>; 2],
    /// The layers whose gradients are on their way in each of the two buffers.
    pending: [Option<(usize, Averaged)>; 2],
    pub(crate) calls: Calls,
    held_bytes: usize,
}

impl<'o, T: Compute> Trainer<'o, T> {
    /// A trainer of these layers, whose shards `arithmetic` has.
    pub(crate) fn new(
        on: Handle,
        arithmetic: Box<dyn Arithmetic<T>>,
        layouts: Vec<Layout>,
        options: &'o Options,
        stream: &Stream,
    ) -> Result<Self> {
        let mut trainer = Self {
            options,
            data: Data::new(options.seed),
            on,
            arithmetic,
            layouts,
            symmetric: false,
            tensors: None,
            present: [None; 2],
            pending: [None; 2],
            calls: Calls::default(),
            held_bytes: 0,
        };
        trainer.switch(options.is_symmetric_in(0), stream)?;
        Ok(trainer)
    }

    pub(crate) fn train(mut self, streams: &mut Streams) -> Result<Outcome> {
        let begun = Instant::now();
        let mut steps = Vec::new();
        let mut captured = None;
        let mut replays = 0;
        for step in 0..self.options.steps {
            let symmetric = self.options.is_symmetric_in(step);
            if symmetric != self.symmetric {
                // The graph owns the tensors.
                captured = None;
                self.switch(symmetric, &streams.compute)?;
            }
            let rank = self.on.rank().index();
            let batch = self.data.micro_batch(self.options.batch.into(), step, rank);
            self.arithmetic.begin(&batch, &streams.compute)?;
            // Libraries set themselves up in their first calls, so the first step is not captured.
            if self.options.capture && step > 0 {
                let graph = match &mut captured {
                    Some(graph) => graph,
                    None => captured.insert(Captured::new(&mut self, streams)?),
                };
                self.calls.add(&graph.calls);
                graph.launch(&**self.on.device(), &streams.compute)?;
                replays += 1;
            } else {
                self.step(&mut Site::Eager(streams))?;
            }
            let mut sums = [0.0; 2];
            let report = self.arithmetic.report();
            report.read_into(&mut sums, &streams.compute)?;
            steps.push(Step::of_sums(sums, self.options.start.ranks));
        }
        let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        drop(captured);
        let everything = self.data.all.clone();
        self.arithmetic.begin(&everything, &streams.compute)?;
        self.forward(&mut Site::Eager(streams))?;
        let outputs = self.arithmetic.outputs(&streams.compute)?;
        let info = self.on.communicator().info().clone();
        let tensors = self.tensors.take();
        let outcome = Outcome {
            steps,
            accuracy: model::accuracy(&outputs, &everything.labels),
            all_gather: self.calls.all_gather,
            reduce_scatter: self.calls.reduce_scatter,
            all_reduce: self.calls.all_reduce,
            averages: self.calls.averages,
            replays,
            kept: Kept {
                scratch_bytes: self.on.stats().mapped_bytes(),
                tensor_bytes: tensors.map_or(0, |all| all.mapped(|bytes| info.mapped(bytes))),
                held_bytes: self.held_bytes,
                left_bytes: None,
            },
            nanoseconds,
            reference: None,
        };
        let _deferred = self.on.close()?;
        Ok(outcome)
    }

    /// The device that everything is on.
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::clone(self.on.device())
    }

    /// Goes with symmetric memory from now on, or without: all ranks, or none.
    fn switch(&mut self, symmetric: bool, stream: &Stream) -> Result<()> {
        let to = self.options.switch(symmetric);
        self.on.switch(to)?;
        if self.tensors.take().is_some() {
            self.held_bytes += self.trim()?;
        }
        let pooled = symmetric && self.options.tensors == Tensors::Pooled;
        let in_place = self.options.in_place;
        let tensors = TrainingTensors::new(&mut self.on, &self.layouts, in_place, pooled, stream)?;
        self.tensors = Some(tensors);
        self.present = [None; 2];
        self.symmetric = symmetric;
        if self.options.capture && to.staging != Staging::Never {
            self.reserve()?;
        }
        Ok(())
    }

    /// Gives back what nobody uses; the bytes that could not be. What a graph owned is let go on a thread
    /// of the device, which may take a moment.
    fn trim(&mut self) -> Result<usize> {
        let patience = if self.options.capture { 500 } else { 1 };
        let mut held = 0;
        for _ in 0..patience {
            held = self.on.trim()?.held_bytes;
            // All ranks are told the same, so they stop together.
            if held == 0 {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(held)
    }

    /// Registers the scratch of every call of a step, since nothing can be while it is captured. Tensors
    /// in symmetric memory need none; what is reported may.
    fn reserve(&mut self) -> Result<()> {
        let report = Op::AllReduce(ReduceOp::Sum);
        let mut requests = Vec::from_iter(self.on.request_for(report, DType::F64, 2)?);
        if self.options.tensors == Tensors::Ordinary {
            for layout in &self.layouts {
                for op in [Op::AllGather, Op::ReduceScatter(ReduceOp::Sum)] {
                    requests.extend(self.on.request_for(op, T::DTYPE, layout.largest())?);
                }
            }
        }
        self.on.reserve(&requests).map(drop)
    }

    fn tensors(&self) -> &TrainingTensors<T> {
        self.tensors
            .as_ref()
            .expect("there are tensors between switches")
    }

    /// One step on the samples that were taken.
    pub(crate) fn step(&mut self, site: &mut Site<'_>) -> Result<()> {
        self.forward(site)?;
        self.arithmetic.loss(site.compute())?;
        self.backward(site)?;
        let rank = self.on.rank().index();
        let owned = self
            .layouts
            .iter()
            .map(|layout| 0..layout.owned(rank).len());
        let owned: Vec<_> = owned.collect();
        self.arithmetic.squares(&owned, site.compute())?;
        self.add_up(site.compute())?;
        self.arithmetic.update(site.compute())?;
        self.present = [None; 2];
        Ok(())
    }

    fn forward(&mut self, site: &mut Site<'_>) -> Result<()> {
        site.beside(|on| self.gather(0, on))?;
        for index in 0..self.layouts.len() {
            site.beside(|on| {
                if index + 1 < self.layouts.len() {
                    self.gather(index + 1, on)?;
                }
                let whole = self.tensors().gathered(index, &self.layouts[index])?;
                self.arithmetic.forward(index, &whole, on.compute)
            })?;
        }
        Ok(())
    }

    fn backward(&mut self, site: &mut Site<'_>) -> Result<()> {
        let last = self.layouts.len() - 1;
        site.beside(|on| self.gather(last, on))?;
        for index in (0..=last).rev() {
            // The gradients two layers on may lie where this layer's are to be written.
            self.take_gradients(index % 2, site.compute())?;
            site.beside(|on| {
                if index < last {
                    self.scatter(index + 1, on)?;
                }
                if index > 0 {
                    self.gather(index - 1, on)?;
                }
                let layout = &self.layouts[index];
                let whole = self.tensors().gathered(index, layout)?;
                let mut gradients = self.tensors().gradients(index, layout)?;
                self.arithmetic
                    .backward(index, &whole, &mut gradients, on.compute)
            })?;
        }
        site.beside(|on| self.scatter(0, on))?;
        self.take_gradients(1, site.compute())?;
        self.take_gradients(0, site.compute())
    }

    /// Begins to gather a layer's parameters, unless they are there.
    fn gather(&mut self, index: usize, on: Lanes<'_>) -> Result<()> {
        if self.present[index % 2] == Some(index) {
            return Ok(());
        }
        let layout = &self.layouts[index];
        let mut shard = self.tensors().shard(index, layout)?;
        let mut whole = self.tensors().gathered(index, layout)?;
        self.arithmetic.narrow(index, &mut shard, on.gather)?;
        let counts = &layout.counts;
        let report = self
            .on
            .all_gather_v(&shard, &mut whole, counts, on.gather)?;
        self.calls.all_gather.add(report);
        self.present[index % 2] = Some(index);
        Ok(())
    }

    /// Begins to reduce a layer's gradients.
    fn scatter(&mut self, index: usize, on: Lanes<'_>) -> Result<()> {
        let layout = &self.layouts[index];
        let whole = self.tensors().gradients(index, layout)?;
        let mut shard = self.tensors().scattered(index, layout)?;
        let counts = &layout.counts;
        let averaged = self
            .on
            .reduce_scatter_average(&whole, &mut shard, counts, on.scatter)?;
        self.calls.reduce_scatter.add(averaged.report);
        self.pending[index % 2] = Some((index, averaged));
        Ok(())
    }

    /// Takes the gradients that come in one of the two buffers out of it.
    fn take_gradients(&mut self, buffer: usize, stream: &Stream) -> Result<()> {
        let Some((index, averaged)) = self.pending[buffer].take() else {
            return Ok(());
        };
        match averaged.divide_by {
            None => self.calls.averages.by_collective += 1,
            Some(_) => self.calls.averages.by_optimiser += 1,
        }
        let shard = self.tensors().scattered(index, &self.layouts[index])?;
        self.arithmetic
            .take(index, &shard, averaged.divide_by, stream)
    }

    /// Adds up what is reported. Two numbers a step are worth no symmetric kernel, so they may take
    /// the ordinary path whatever parameters and gradients must do.
    fn add_up(&mut self, stream: &Stream) -> Result<()> {
        let fallback = self.on.switched().fallback;
        self.on.set_fallback(Fallback::Allow);
        let mut numbers = self.arithmetic.report();
        let report = self.on.all_reduce(&mut numbers, ReduceOp::Sum, stream);
        self.on.set_fallback(fallback);
        self.calls.all_reduce.add(report?);
        Ok(())
    }
}
