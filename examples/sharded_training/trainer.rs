//! One rank: fully sharded data parallelism, layer by layer.
//!
//! Parameters of the next layer are gathered on one stream while this layer computes, and gradients
//! of the previous layer are scattered on another. No event is named here: buffers order their uses
//! themselves, whichever streams those are on.

use std::error::Error;
use std::time::Instant;

use collectives_alloc::config::ScratchConfig;
use collectives_core::collectives::{Averaged, Collectives};
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::path::Fallback;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;
use collectives_examples::backend::Joined;
use half::bf16;

use crate::adam::Adam;
use crate::data::Data;
use crate::layout::Layout;
use crate::model::{self, Layer};
use crate::options::{Compute as Type, Options, Tensors};
use crate::outcome::{Averages, Kept, Outcome, Paths, Step};
use crate::precision::{Compute, narrowed, rounded, widened};
use crate::tensors::TrainingTensors;

type Handle = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

/// Trains on all ranks, and gives what each saw, unless another process gets that.
pub(crate) fn train_all(options: &Options) -> Result<Option<Vec<Outcome>>, Box<dyn Error>> {
    let rank = |joined| train(joined, options);
    options.backend.run(&options.started(), 0, rank)
}

/// Trains on this rank. Arithmetic that is not collective runs on the host, whatever the backend.
pub(crate) fn train(joined: Joined, options: &Options) -> Result<Outcome> {
    let Joined { comm, gauge, .. } = joined;
    let mut outcome = match options.dtype {
        Type::F32 => Trainer::<f32>::new(comm, options)?.train(),
        Type::Bf16 => Trainer::<bf16>::new(comm, options)?.train(),
    }?;
    outcome.kept.left_bytes = gauge.mapped_bytes();
    Ok(outcome)
}

/// One layer and this rank's share of it.
#[derive(Debug)]
struct Unit {
    layer: Layer,
    layout: Layout,
    adam: Adam,
    /// The averaged gradients of the shard.
    gradients: Vec<f32>,
}

#[derive(Debug)]
struct Trainer<'o, T: Compute> {
    options: &'o Options,
    data: Data,
    on: Handle,
    compute: Stream,
    gather: Stream,
    scatter: Stream,
    units: Vec<Unit>,
    symmetric: bool,
    /// Taken out only while symmetric memory is switched.
    tensors: Option<TrainingTensors<T>>,
    /// The layers whose parameters each of the two buffers holds.
    present: [Option<usize>; 2],
    /// The layers whose gradients are on their way in each of the two buffers.
    pending: [Option<(usize, Averaged)>; 2],
    counted: [Paths; 3],
    averages: Averages,
    held_bytes: usize,
}

/// What `counted` counts.
const ALL_GATHER: usize = 0;
const REDUCE_SCATTER: usize = 1;
const ALL_REDUCE: usize = 2;

impl<'o, T: Compute> Trainer<'o, T> {
    fn new(comm: Box<dyn Communicator>, options: &'o Options) -> Result<Self> {
        let on = Collectives::new(comm, ScratchConfig::default().build()?);
        let (rank, ranks) = (on.rank().index(), on.world_size());
        let units = model::layers(options).into_iter().enumerate();
        let units = units.map(|(index, layer)| {
            let layout = Layout::new(layer.parameters(), ranks, options.shards);
            let shard = layer.initial(options.seed, index)[layout.owned(rank)].to_vec();
            Unit {
                layer,
                adam: Adam::new(shard),
                gradients: Vec::new(),
                layout,
            }
        });
        let mut trainer = Self {
            options,
            data: Data::new(options.seed),
            compute: on.device().create_stream()?,
            gather: on.device().create_stream()?,
            scatter: on.device().create_stream()?,
            units: units.collect(),
            symmetric: false,
            tensors: None,
            present: [None; 2],
            pending: [None; 2],
            counted: [Paths::default(); 3],
            averages: Averages::default(),
            held_bytes: 0,
            on,
        };
        trainer.switch(options.is_symmetric_in(0))?;
        Ok(trainer)
    }

    fn train(mut self) -> Result<Outcome> {
        let begun = Instant::now();
        let mut steps = Vec::new();
        for step in 0..self.options.steps {
            let symmetric = self.options.is_symmetric_in(step);
            if symmetric != self.symmetric {
                self.switch(symmetric)?;
            }
            steps.push(self.step(step)?);
        }
        let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let everything = self.data.all.clone();
        let outputs = self.forward(everything.inputs)?.pop().unwrap_or_default();
        let info = self.on.communicator().info().clone();
        let tensors = self.tensors.take();
        let outcome = Outcome {
            steps,
            accuracy: model::accuracy(&outputs, &everything.labels),
            all_gather: self.counted[ALL_GATHER],
            reduce_scatter: self.counted[REDUCE_SCATTER],
            all_reduce: self.counted[ALL_REDUCE],
            averages: self.averages,
            kept: Kept {
                scratch_bytes: self.on.stats().mapped_bytes(),
                tensor_bytes: tensors.map_or(0, |all| all.mapped(|bytes| info.mapped(bytes))),
                held_bytes: self.held_bytes,
                left_bytes: None,
            },
            nanoseconds,
        };
        let _deferred = self.on.close()?;
        Ok(outcome)
    }

    /// Goes with symmetric memory from now on, or without: all ranks, or none.
    fn switch(&mut self, symmetric: bool) -> Result<()> {
        let to = self.options.switch(symmetric);
        self.on.switch(to)?;
        if self.tensors.take().is_some() {
            self.held_bytes += self.on.trim()?.held_bytes;
        }
        let layouts: Vec<_> = self.units.iter().map(|unit| unit.layout.clone()).collect();
        let pooled = symmetric && self.options.tensors == Tensors::Pooled;
        let in_place = self.options.in_place;
        let tensors =
            TrainingTensors::new(&mut self.on, &layouts, in_place, pooled, &self.compute)?;
        self.tensors = Some(tensors);
        self.present = [None; 2];
        self.symmetric = symmetric;
        Ok(())
    }

    fn tensors(&self) -> &TrainingTensors<T> {
        self.tensors
            .as_ref()
            .expect("there are tensors between switches")
    }

    fn step(&mut self, step: usize) -> Result<Step> {
        let rank = self.on.rank().index();
        let batch = self.data.micro_batch(self.options.batch.into(), step, rank);
        let mut outputs = self.forward(batch.inputs)?;
        let last = outputs.pop().unwrap_or_default();
        let (loss, gradient) = model::loss(&last, &batch.labels);
        self.backward(outputs, last, gradient)?;
        let squares = self.units.iter().flat_map(|unit| &unit.gradients);
        let squares = squares.map(|&g| f64::from(g) * f64::from(g)).sum();
        let reported = self.add_up([loss, squares])?;
        for unit in &mut self.units {
            unit.adam.step(&unit.gradients);
        }
        self.present = [None; 2];
        Ok(Step::of_sums(reported, self.options.ranks))
    }

    /// The inputs of every layer, and the outputs of the last.
    fn forward(&mut self, inputs: Vec<f32>) -> Result<Vec<Vec<f32>>> {
        let mut outputs = vec![inputs.into_iter().map(rounded::<T>).collect::<Vec<_>>()];
        self.gather(0)?;
        for index in 0..self.units.len() {
            if index + 1 < self.units.len() {
                self.gather(index + 1)?;
            }
            let parameters = self.parameters(index)?;
            let layer = self.units[index].layer;
            outputs.push(layer.forward::<T>(&parameters, &outputs[index]));
        }
        Ok(outputs)
    }

    fn backward(
        &mut self,
        mut inputs: Vec<Vec<f32>>,
        mut outputs: Vec<f32>,
        mut gradient: Vec<f32>,
    ) -> Result<()> {
        for index in (0..self.units.len()).rev() {
            self.gather(index)?;
            if index > 0 {
                self.gather(index - 1)?;
            }
            let parameters = self.parameters(index)?;
            let layer = self.units[index].layer;
            let input = inputs.pop().unwrap_or_default();
            let (of_parameters, of_inputs) =
                layer.backward::<T>(&parameters, &input, &outputs, gradient);
            self.scatter(index, of_parameters)?;
            (outputs, gradient) = (input, of_inputs);
        }
        self.take_gradients(1)?;
        self.take_gradients(0)
    }

    /// Begins to gather a layer's parameters, unless they are there.
    fn gather(&mut self, index: usize) -> Result<()> {
        if self.present[index % 2] == Some(index) {
            return Ok(());
        }
        let Unit { layout, adam, .. } = &self.units[index];
        let mut shard = self.tensors().shard(index, layout)?;
        let mut whole = self.tensors().gathered(index, layout)?;
        let mut copy = narrowed::<T>(&adam.parameters);
        copy.resize(shard.len(), T::ZERO);
        shard.write(&copy, &self.gather)?;
        let counts = &layout.counts;
        let report = self
            .on
            .all_gather_v(&shard, &mut whole, counts, &self.gather)?;
        self.counted[ALL_GATHER].add(report);
        self.present[index % 2] = Some(index);
        Ok(())
    }

    /// A layer's parameters, once they have come.
    fn parameters(&self, index: usize) -> Result<Vec<f32>> {
        let layout = &self.units[index].layout;
        let whole = self.tensors().gathered(index, layout)?;
        Ok(widened(&whole.read(&self.compute)?))
    }

    /// Begins to reduce a layer's gradients.
    fn scatter(&mut self, index: usize, gradients: Vec<f32>) -> Result<()> {
        self.take_gradients(index % 2)?;
        let layout = &self.units[index].layout;
        let mut whole = self.tensors().gradients(index, layout)?;
        let mut shard = self.tensors().scattered(index, layout)?;
        let mut copy = narrowed::<T>(&gradients);
        copy.resize(whole.len(), T::ZERO);
        whole.write(&copy, &self.compute)?;
        let counts = &layout.counts;
        let averaged = self
            .on
            .reduce_scatter_average(&whole, &mut shard, counts, &self.scatter)?;
        self.counted[REDUCE_SCATTER].add(averaged.report);
        self.pending[index % 2] = Some((index, averaged));
        Ok(())
    }

    /// Takes the gradients that come in one of the two buffers out of it.
    fn take_gradients(&mut self, buffer: usize) -> Result<()> {
        let Some((index, averaged)) = self.pending[buffer].take() else {
            return Ok(());
        };
        let Unit { layout, adam, .. } = &self.units[index];
        let shard = self.tensors().scattered(index, layout)?;
        let mut gradients = widened(&shard.read(&self.compute)?);
        // Padding has no master.
        gradients.truncate(adam.parameters.len());
        match averaged.divide_by {
            None => self.averages.by_collective += 1,
            Some(_) => {
                let ranks = f32::from(self.options.ranks);
                gradients.iter_mut().for_each(|gradient| *gradient /= ranks);
                self.averages.by_optimiser += 1;
            }
        }
        self.units[index].gradients = gradients;
        Ok(())
    }

    /// Adds up what is reported. Two numbers a step are worth no symmetric kernel, so they may take
    /// the ordinary path whatever parameters and gradients must do.
    fn add_up(&mut self, mut numbers: [f64; 2]) -> Result<[f64; 2]> {
        let fallback = self.on.switched().fallback;
        self.on.set_fallback(Fallback::Allow);
        let report = self.on.all_reduce_host(&mut numbers, ReduceOp::Sum);
        self.on.set_fallback(fallback);
        self.counted[ALL_REDUCE].add(report?);
        Ok(numbers)
    }
}
