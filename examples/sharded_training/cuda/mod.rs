//! Arithmetic on the GPU: products by cuBLAS, the rest by kernels of our own.
//!
//! Masters, moments, activations, gradients and the number of steps stay on the device. Every kernel
//! goes through [`collectives_core::kernel::launch`], which orders it with the collectives on the same
//! buffers, and nothing here waits, so that a whole step can be captured.
#![expect(
    unsafe_code,
    reason = "cuBLAS and the driver are called through cudarc"
)]

mod blas;
mod gpu;
mod kernels;

use std::ops::Range;
use std::sync::Arc;

use collectives_core::buffer::Buffer;
use collectives_core::device::Device;
use collectives_core::error::{Misuse, Result};
use collectives_core::stream::Stream;

use self::blas::{Blas, Matrix};
use self::gpu::{Arg, Gpu};
use self::kernels::Kernels;
use crate::arithmetic::{Arithmetic, Share};
use crate::data::{Batch, INPUTS, POINTS};
use crate::exact::{self, Grid};
use crate::model::Layer;
use crate::precision::{Compute, narrowed, widened};

/// Parts in which the squares of a layer are added up, a block each.
const PARTS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Cuda<T: Compute> {
    gpu: Gpu,
    blas: Blas,
    kernels: Kernels,
    units: Vec<Unit<T>>,
    /// How many samples the last batch had.
    samples: usize,
    inputs: Buffer<T>,
    labels: Buffer<u32>,
    /// The gradients of a layer's outputs and of its inputs, which take turns.
    flowing: [Buffer<T>; 2],
    /// What products come out in.
    products: Buffer<f32>,
    /// Of the squares.
    parts: Buffer<f64>,
    report: Buffer<f64>,
    steps: Buffer<u32>,
    corrections: Buffer<f32>,
    /// Whether gradients and what is reported have exact sums.
    exact: bool,
}

/// A layer, and this rank's share of it.
#[derive(Debug)]
struct Unit<T: Compute> {
    layer: Layer,
    masters: Buffer<f32>,
    first: Buffer<f32>,
    second: Buffer<f32>,
    gradients: Buffer<f32>,
    outputs: Buffer<T>,
}

impl<T: Compute> Cuda<T> {
    /// Arithmetic on the GPU with this ordinal, which `device` is; all but [`Arithmetic::narrow`] on
    /// one stream.
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        ordinal: usize,
        shares: Vec<Share>,
        batch: usize,
        exact: bool,
        stream: &Stream,
    ) -> Result<Self> {
        let gpu = Gpu::new::<T>(device, ordinal, kernels::SOURCE, &kernels::constants())?;
        let samples = batch.max(POINTS);
        let widest = |share: &Share| share.layer.inputs.max(share.layer.outputs);
        let widest = samples * shares.iter().map(widest).max().unwrap_or(0);
        let largest = shares.iter().map(|share| share.layer.parameters()).max();
        let units = shares.into_iter().map(|share| {
            let count = share.masters.len();
            Ok(Unit {
                layer: share.layer,
                masters: Buffer::from_slice(device, &share.masters, stream)?,
                first: Buffer::zeroed(device, count, stream)?,
                second: Buffer::zeroed(device, count, stream)?,
                gradients: Buffer::zeroed(device, count, stream)?,
                outputs: Buffer::zeroed(device, samples * share.layer.outputs, stream)?,
            })
        });
        let units = units.collect::<Result<Vec<_>>>()?;
        let flowing = || Buffer::zeroed(device, widest, stream);
        Ok(Self {
            kernels: Kernels::of(&gpu)?,
            blas: Blas::new(&gpu, stream)?,
            gpu,
            samples: 0,
            inputs: Buffer::zeroed(device, samples * INPUTS, stream)?,
            labels: Buffer::zeroed(device, samples, stream)?,
            flowing: [flowing()?, flowing()?],
            products: Buffer::zeroed(device, widest.max(largest.unwrap_or(0)), stream)?,
            parts: Buffer::zeroed(device, units.len() * PARTS as usize, stream)?,
            report: Buffer::zeroed(device, 2, stream)?,
            steps: Buffer::zeroed(device, 1, stream)?,
            corrections: Buffer::zeroed(device, 2, stream)?,
            units,
            exact,
        })
    }

    /// What a layer reads: the outputs of the one before, or the samples.
    fn inputs_of(&self, unit: usize) -> Result<Buffer<T>> {
        let count = self.samples * self.units[unit].layer.inputs;
        match unit.checked_sub(1) {
            None => self.inputs.slice(..count),
            Some(before) => self.units[before].outputs.slice(..count),
        }
    }

    /// The unit and limit of a grid, or zeros.
    fn reported(&self) -> [Arg<'static>; 2] {
        let Grid { unit, limit } = exact::REPORTED;
        match self.exact {
            true => [Arg::Double(unit), Arg::Double(limit)],
            false => [Arg::Double(0.0); 2],
        }
    }

    /// Rounds the first `count` elements, to a grid before if there is one, into so many elements of
    /// `to`, of which those that are left become zeros.
    fn round(
        &self,
        from: &Buffer<f32>,
        count: usize,
        (to, length): (&Buffer<T>, usize),
        grid: Option<Grid<f32>>,
        stream: &Stream,
    ) -> Result<()> {
        let (unit, limit) = grid.map_or((0.0, 0.0), |grid| (grid.unit, grid.limit));
        let args = [
            Arg::Tensor(to),
            Arg::Tensor(from),
            Arg::Count(count),
            Arg::Count(length),
            Arg::Real(unit),
            Arg::Real(limit),
        ];
        self.gpu.launch(self.kernels.narrow, length, &args, stream)
    }

    fn widen(
        &self,
        unit: usize,
        from: &Buffer<T>,
        divide_by: usize,
        add: bool,
        stream: &Stream,
    ) -> Result<()> {
        let to = &self.units[unit].gradients;
        // Padding has no master.
        let count = to.len();
        if from.len() < count {
            return Err(Misuse::Other("there are fewer gradients than masters".to_owned()).into());
        }
        let args = [
            Arg::Tensor(to),
            Arg::Tensor(from),
            Arg::Count(count),
            Arg::Real(real(divide_by)),
            Arg::Word(add.into()),
        ];
        self.gpu.launch(self.kernels.widen, count, &args, stream)
    }
}

impl<T: Compute> Arithmetic<T> for Cuda<T> {
    fn begin(&mut self, batch: &Batch, stream: &Stream) -> Result<()> {
        let labels = batch.labels.iter().map(|&label| u32::try_from(label));
        let labels = labels.collect::<Result<Vec<_>, _>>().unwrap_or_default();
        self.samples = labels.len();
        let inputs = narrowed::<T>(&batch.inputs);
        let mut to = self.inputs.slice(..inputs.len())?;
        to.write(&inputs, stream)?;
        self.labels.slice(..labels.len())?.write(&labels, stream)
    }

    fn narrow(&mut self, unit: usize, shard: &mut Buffer<T>, stream: &Stream) -> Result<()> {
        let masters = &self.units[unit].masters;
        self.round(masters, masters.len(), (shard, shard.len()), None, stream)
    }

    fn forward(&mut self, unit: usize, parameters: &Buffer<T>, stream: &Stream) -> Result<()> {
        let (inputs, samples) = (self.inputs_of(unit)?, self.samples);
        let Unit { layer, outputs, .. } = &self.units[unit];
        let weights = parameters.slice(..layer.weights())?;
        let biases = parameters.slice(layer.weights()..layer.parameters())?;
        let left = Matrix::new(&inputs, samples, layer.inputs);
        let right = Matrix::new(&weights, layer.inputs, layer.outputs);
        self.blas
            .multiply::<T>(&self.gpu, left, right, &self.products, stream)?;
        let count = samples * layer.outputs;
        let args = [
            Arg::Tensor(outputs),
            Arg::Tensor(&self.products),
            Arg::Tensor(&biases),
            Arg::Count(count),
            Arg::Word(word(layer.outputs)?),
            Arg::Word(layer.activated.into()),
        ];
        self.gpu.launch(self.kernels.activate, count, &args, stream)
    }

    fn loss(&mut self, stream: &Stream) -> Result<()> {
        let Some(last) = self.units.last() else {
            return Ok(());
        };
        let [unit, limit] = self.reported();
        let args = [
            Arg::Tensor(&self.report),
            Arg::Tensor(&self.flowing[self.units.len() % 2]),
            Arg::Tensor(&last.outputs),
            Arg::Tensor(&self.labels),
            Arg::Word(word(self.samples)?),
            unit,
            limit,
        ];
        self.gpu
            .launch_blocks(self.kernels.cross_entropy, 1, &args, stream)
    }

    fn backward(
        &mut self,
        unit: usize,
        parameters: &Buffer<T>,
        gradients: &mut Buffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        let (inputs, samples) = (self.inputs_of(unit)?, self.samples);
        let (gpu, kernels, products) = (&self.gpu, &self.kernels, &self.products);
        let Unit { layer, outputs, .. } = &self.units[unit];
        let (of_outputs, of_inputs) = (&self.flowing[(unit + 1) % 2], &self.flowing[unit % 2]);
        if layer.activated {
            let count = samples * layer.outputs;
            let args = [
                Arg::Tensor(of_outputs),
                Arg::Tensor(outputs),
                Arg::Count(count),
            ];
            gpu.launch(kernels.cut_gradient, count, &args, stream)?;
        }
        let dy = Matrix::new(of_outputs, samples, layer.outputs);
        let x = Matrix::new(&inputs, samples, layer.inputs);
        self.blas
            .multiply::<T>(gpu, x.transposed(), dy, products, stream)?;
        let biases = products.slice(layer.weights()..layer.parameters())?;
        let args = [
            Arg::Tensor(&biases),
            Arg::Tensor(of_outputs),
            Arg::Word(word(samples)?),
            Arg::Word(word(layer.outputs)?),
        ];
        let blocks = word(layer.outputs.div_ceil(32))?;
        gpu.launch_blocks(kernels.column_sums, blocks, &args, stream)?;
        let (count, grid) = (layer.parameters(), self.exact.then_some(T::GRID));
        self.round(products, count, (gradients, gradients.len()), grid, stream)?;
        if unit == 0 {
            // Nobody asks for the gradient of the samples.
            return Ok(());
        }
        let weights = parameters.slice(..layer.weights())?;
        let w = Matrix::new(&weights, layer.inputs, layer.outputs);
        self.blas
            .multiply::<T>(gpu, dy, w.transposed(), products, stream)?;
        let count = samples * layer.inputs;
        self.round(products, count, (of_inputs, count), None, stream)
    }

    fn take(
        &mut self,
        unit: usize,
        scattered: &Buffer<T>,
        divide_by: Option<usize>,
        stream: &Stream,
    ) -> Result<()> {
        self.widen(unit, scattered, divide_by.unwrap_or(1), false, stream)
    }

    fn fold(&mut self, unit: usize, gradients: &Buffer<T>, stream: &Stream) -> Result<()> {
        self.widen(unit, gradients, 1, true, stream)
    }

    fn divide(&mut self, unit: usize, by: usize, stream: &Stream) -> Result<()> {
        let gradients = &self.units[unit].gradients;
        let count = gradients.len();
        let args = [
            Arg::Tensor(gradients),
            Arg::Count(count),
            Arg::Real(real(by)),
        ];
        self.gpu.launch(self.kernels.divide, count, &args, stream)
    }

    fn squares(&mut self, ranges: &[Range<usize>], stream: &Stream) -> Result<()> {
        for (unit, range) in ranges.iter().enumerate() {
            let of = self.units[unit].gradients.slice(range.clone())?;
            let first = unit * PARTS as usize;
            let parts = self.parts.slice(first..first + PARTS as usize)?;
            let args = [Arg::Tensor(&parts), Arg::Tensor(&of), Arg::Count(of.len())];
            self.gpu
                .launch_blocks(self.kernels.square_parts, PARTS, &args, stream)?;
        }
        let [unit, limit] = self.reported();
        let args = [
            Arg::Tensor(&self.report),
            Arg::Tensor(&self.parts),
            Arg::Word(word(self.parts.len())?),
            unit,
            limit,
        ];
        self.gpu
            .launch_blocks(self.kernels.square_total, 1, &args, stream)
    }

    fn update(&mut self, stream: &Stream) -> Result<()> {
        let args = [Arg::Tensor(&self.steps), Arg::Tensor(&self.corrections)];
        self.gpu
            .launch_blocks(self.kernels.tick, 1, &args, stream)?;
        for unit in &self.units {
            let count = unit.masters.len();
            let args = [
                Arg::Tensor(&unit.masters),
                Arg::Tensor(&unit.first),
                Arg::Tensor(&unit.second),
                Arg::Tensor(&unit.gradients),
                Arg::Count(count),
                Arg::Tensor(&self.corrections),
            ];
            self.gpu.launch(self.kernels.adam, count, &args, stream)?;
        }
        Ok(())
    }

    fn report(&self) -> Buffer<f64> {
        self.report.clone()
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f32>> {
        let Some(last) = self.units.last() else {
            return Ok(Vec::new());
        };
        let count = self.samples * last.layer.outputs;
        Ok(widened(&last.outputs.slice(..count)?.read(stream)?))
    }
}

fn word(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| Misuse::Other(format!("{number} is too many")).into())
}

#[expect(clippy::cast_precision_loss, reason = "there are few ranks")]
fn real(number: usize) -> f32 {
    number as f32
}
