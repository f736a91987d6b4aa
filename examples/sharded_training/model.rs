//! A multi-layer perceptron, one layer at a time, as sharding needs it.
//!
//! A layer's parameters are one vector: its weights, row by row, then its biases. Everything here
//! runs on one thread and in one order, so equal inputs give equal bits on every rank.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, Axis};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::data::{CLASSES, INPUTS, uniform};
use crate::options::Options;
use crate::precision::{Compute, rounded};

/// One layer's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// Whether its outputs are cut off at zero; those of the last layer are not.
    pub(crate) activated: bool,
}

/// The layers, in the order of the forward pass.
pub(crate) fn layers(options: &Options) -> Vec<Layer> {
    let hidden = usize::from(options.hidden);
    let mut widths = vec![INPUTS];
    widths.extend(vec![hidden; usize::from(options.layers) + 1]);
    widths.push(CLASSES);
    let last = widths.len() - 2;
    let pairs = widths.windows(2).enumerate();
    pairs
        .map(|(index, pair)| Layer {
            inputs: pair[0],
            outputs: pair[1],
            activated: index < last,
        })
        .collect()
}

impl Layer {
    /// Weights, which come before the biases.
    pub(crate) fn weights(self) -> usize {
        self.inputs * self.outputs
    }

    /// Parameters.
    pub(crate) fn parameters(self) -> usize {
        (self.inputs + 1) * self.outputs
    }

    /// Parameters to begin with: weights uniform within He's bound, biases zero.
    #[expect(
        clippy::cast_precision_loss,
        reason = "widths are far smaller than 2^24"
    )]
    pub(crate) fn initial(self, seed: u64, index: usize) -> Vec<f32> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(index as u64);
        let bound = (6.0 / self.inputs as f32).sqrt();
        let mut parameters = vec![0.0; self.parameters()];
        for weight in &mut parameters[..self.weights()] {
            *weight = bound * (2.0 * uniform(&mut random) - 1.0);
        }
        parameters
    }

    fn matrix(self, parameters: &[f32]) -> ArrayView2<'_, f32> {
        view(&parameters[..self.weights()], self.outputs)
    }

    /// The outputs for some inputs, rounded to the compute type.
    pub(crate) fn forward<T: Compute>(self, parameters: &[f32], inputs: &[f32]) -> Vec<f32> {
        let inputs = view(inputs, self.inputs);
        let mut outputs = Array2::zeros((inputs.nrows(), self.outputs));
        let biases = &parameters[self.weights()..self.parameters()];
        for mut row in outputs.rows_mut() {
            row.iter_mut().zip(biases).for_each(|(y, bias)| *y = *bias);
        }
        general_mat_mul(1.0, &inputs, &self.matrix(parameters), 1.0, &mut outputs);
        outputs.mapv_inplace(|y| rounded::<T>(if self.activated { y.max(0.0) } else { y }));
        outputs.into_raw_vec_and_offset().0
    }

    /// The gradients of the parameters and of the inputs, from that of the outputs.
    pub(crate) fn backward<T: Compute>(
        self,
        parameters: &[f32],
        inputs: &[f32],
        outputs: &[f32],
        of_outputs: Vec<f32>,
    ) -> (Vec<f32>, Vec<f32>) {
        let mut of_outputs = of_outputs;
        if self.activated {
            let pairs = of_outputs.iter_mut().zip(outputs);
            pairs.for_each(|(dy, &y)| *dy = if y > 0.0 { *dy } else { 0.0 });
        }
        let of_outputs = view(&of_outputs, self.outputs);
        let mut of_weights = Array2::zeros((self.inputs, self.outputs));
        let inputs = view(inputs, self.inputs);
        general_mat_mul(1.0, &inputs.t(), &of_outputs, 0.0, &mut of_weights);
        let mut of_parameters = of_weights.into_raw_vec_and_offset().0;
        of_parameters.extend(of_outputs.sum_axis(Axis(0)));
        let mut of_inputs = Array2::zeros((of_outputs.nrows(), self.inputs));
        let weights = self.matrix(parameters);
        general_mat_mul(1.0, &of_outputs, &weights.t(), 0.0, &mut of_inputs);
        of_inputs.mapv_inplace(rounded::<T>);
        (of_parameters, of_inputs.into_raw_vec_and_offset().0)
    }
}

fn view(values: &[f32], columns: usize) -> ArrayView2<'_, f32> {
    let shape = (values.len() / columns, columns);
    ArrayView2::from_shape(shape, values).expect("the rows are whole")
}

/// The mean cross-entropy of a batch, and its gradient by the last layer's outputs.
#[expect(
    clippy::cast_precision_loss,
    reason = "batches are far smaller than 2^24"
)]
pub(crate) fn loss(outputs: &[f32], labels: &[usize]) -> (f64, Vec<f32>) {
    let samples = labels.len() as f32;
    let mut gradient = Vec::with_capacity(outputs.len());
    let mut total = 0.0;
    for (row, &label) in outputs.chunks_exact(CLASSES).zip(labels) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exponents: Vec<_> = row.iter().map(|y| (y - largest).exp()).collect();
        let sum: f32 = exponents.iter().sum();
        total += f64::from(sum.ln() + largest - row[label]);
        gradient.extend(exponents.iter().enumerate().map(|(class, exponent)| {
            let target = if class == label { 1.0 } else { 0.0 };
            (exponent / sum - target) / samples
        }));
    }
    (total / f64::from(samples), gradient)
}

/// The share of samples whose largest output is that of their label.
#[expect(
    clippy::cast_precision_loss,
    reason = "batches are far smaller than 2^24"
)]
pub(crate) fn accuracy(outputs: &[f32], labels: &[usize]) -> f32 {
    let rows = outputs.chunks_exact(CLASSES).zip(labels);
    let right = rows.filter(|(row, label)| row.iter().all(|&y| y <= row[**label]));
    right.count() as f32 / labels.len() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loss of two layers, for the parameters of the first.
    fn loss_of(layers: [Layer; 2], first: &[f32], second: &[f32], x: &[f32]) -> f64 {
        let hidden = layers[0].forward::<f32>(first, x);
        loss(&layers[1].forward::<f32>(second, &hidden), &[1, 0, 1]).0
    }

    #[test]
    fn gradients_are_the_slopes_of_the_loss() {
        let layer = |inputs, outputs, activated| Layer {
            inputs,
            outputs,
            activated,
        };
        let layers = [layer(2, 5, true), layer(5, 2, false)];
        let (first, second) = (layers[0].initial(1, 0), layers[1].initial(1, 1));
        let x = [0.3, -0.7, 0.9, 0.2, -0.4, -0.8];
        let hidden = layers[0].forward::<f32>(&first, &x);
        let outputs = layers[1].forward::<f32>(&second, &hidden);
        let (_, gradient) = loss(&outputs, &[1, 0, 1]);
        let (_, of_hidden) = layers[1].backward::<f32>(&second, &hidden, &outputs, gradient);
        let (found, _) = layers[0].backward::<f32>(&first, &x, &hidden, of_hidden);
        for (index, found) in found.into_iter().enumerate() {
            let at = |step: f32| {
                let mut moved = first.clone();
                moved[index] += step;
                loss_of(layers, &moved, &second, &x)
            };
            let slope = (at(1e-2) - at(-1e-2)) / 2e-2;
            // Differences of f32 arithmetic over a step of 0.02.
            assert!(
                (slope - f64::from(found)).abs() < 2e-3,
                "{index}: {slope}, {found}"
            );
        }
    }
}
