//! Arithmetic on the host, whatever the backend: tensors are read and written.

use std::ops::Range;
use std::sync::Arc;

use collectives_core::buffer::Buffer;
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::stream::Stream;

use crate::adam::Adam;
use crate::arithmetic::{Arithmetic, Share};
use crate::data::Batch;
use crate::exact;
use crate::model::{self, Layer};
use crate::precision::{Compute, narrowed, rounded, widened};

#[derive(Debug)]
pub(crate) struct Host {
    exact: bool,
    layers: Vec<Layer>,
    adam: Vec<Adam>,
    /// The gradients that Adam steps along.
    gradients: Vec<Vec<f32>>,
    labels: Vec<usize>,
    /// The inputs of every layer, and the outputs of the last.
    activations: Vec<Vec<f32>>,
    /// The gradient of the last outputs that were used.
    gradient: Vec<f32>,
    loss: f64,
    report: Buffer<f64>,
}

impl Host {
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        shares: Vec<Share>,
        exact: bool,
        stream: &Stream,
    ) -> Result<Self> {
        Ok(Self {
            exact,
            layers: shares.iter().map(|share| share.layer).collect(),
            gradients: vec![Vec::new(); shares.len()],
            activations: vec![Vec::new(); shares.len() + 1],
            adam: shares
                .into_iter()
                .map(|share| Adam::new(share.masters))
                .collect(),
            labels: Vec::new(),
            gradient: Vec::new(),
            loss: 0.0,
            report: Buffer::zeroed(device, 2, stream)?,
        })
    }

    /// The gradients that were taken and added.
    pub(crate) fn gradients_mut(&mut self) -> &mut [Vec<f32>] {
        &mut self.gradients
    }

    fn reported(&self, value: f64) -> f64 {
        match self.exact {
            true => exact::REPORTED.nearest(value),
            false => value,
        }
    }
}

impl<T: Compute> Arithmetic<T> for Host {
    fn begin(&mut self, batch: &Batch, _stream: &Stream) -> Result<()> {
        self.activations[0] = batch.inputs.iter().map(|&x| rounded::<T>(x)).collect();
        self.labels.clone_from(&batch.labels);
        Ok(())
    }

    fn narrow(&mut self, unit: usize, shard: &mut Buffer<T>, stream: &Stream) -> Result<()> {
        let mut copy = narrowed::<T>(&self.adam[unit].parameters);
        copy.resize(shard.len(), T::ZERO);
        shard.write(&copy, stream)
    }

    fn forward(&mut self, unit: usize, parameters: &Buffer<T>, stream: &Stream) -> Result<()> {
        let parameters = widened(&parameters.read(stream)?);
        let outputs = self.layers[unit].forward::<T>(&parameters, &self.activations[unit]);
        self.activations[unit + 1] = outputs;
        Ok(())
    }

    fn loss(&mut self, stream: &Stream) -> Result<()> {
        let outputs = &self.activations[self.layers.len()];
        let (loss, gradient) = model::loss(outputs, &self.labels);
        (self.loss, self.gradient) = (self.reported(loss), gradient);
        self.report.write(&[self.loss, 0.0], stream)
    }

    fn backward(
        &mut self,
        unit: usize,
        parameters: &Buffer<T>,
        gradients: &mut Buffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        let parameters = widened(&parameters.read(stream)?);
        let (mut of_parameters, of_inputs) = self.layers[unit].backward::<T>(
            &parameters,
            &self.activations[unit],
            &self.activations[unit + 1],
            std::mem::take(&mut self.gradient),
        );
        self.gradient = of_inputs;
        if self.exact {
            let all = of_parameters.iter_mut();
            all.for_each(|gradient| *gradient = T::GRID.nearest(*gradient));
        }
        let mut copy = narrowed::<T>(&of_parameters);
        copy.resize(gradients.len(), T::ZERO);
        gradients.write(&copy, stream)
    }

    fn take(
        &mut self,
        unit: usize,
        scattered: &Buffer<T>,
        divide_by: Option<usize>,
        stream: &Stream,
    ) -> Result<()> {
        let mut gradients = widened(&scattered.read(stream)?);
        // Padding has no master.
        gradients.truncate(self.adam[unit].parameters.len());
        self.gradients[unit] = gradients;
        match divide_by {
            Some(by) => Arithmetic::<T>::divide(self, unit, by, stream),
            None => Ok(()),
        }
    }

    fn fold(&mut self, unit: usize, gradients: &Buffer<T>, stream: &Stream) -> Result<()> {
        let gradients = widened(&gradients.read(stream)?);
        let pairs = self.gradients[unit].iter_mut().zip(gradients);
        pairs.for_each(|(sum, gradient)| *sum += gradient);
        Ok(())
    }

    fn divide(&mut self, unit: usize, by: usize, _stream: &Stream) -> Result<()> {
        #[expect(clippy::cast_precision_loss, reason = "there are few ranks")]
        let by = by as f32;
        let gradients = self.gradients[unit].iter_mut();
        gradients.for_each(|gradient| *gradient /= by);
        Ok(())
    }

    fn squares(&mut self, ranges: &[Range<usize>], stream: &Stream) -> Result<()> {
        let pairs = self.gradients.iter().zip(ranges);
        let gradients = pairs.flat_map(|(gradients, range)| &gradients[range.clone()]);
        let squares = gradients.map(|&g| f64::from(g) * f64::from(g)).sum();
        let squares = self.reported(squares);
        self.report.write(&[self.loss, squares], stream)
    }

    fn update(&mut self, _stream: &Stream) -> Result<()> {
        let pairs = self.adam.iter_mut().zip(&self.gradients);
        pairs.for_each(|(adam, gradients)| adam.step(gradients));
        Ok(())
    }

    fn report(&self) -> Buffer<f64> {
        self.report.clone()
    }

    fn outputs(&self, _stream: &Stream) -> Result<Vec<f32>> {
        Ok(self.activations[self.layers.len()].clone())
    }
}
