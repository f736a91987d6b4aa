//! Two spirals, the classic task that no straight line solves, generated from a seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Points of the data set.
pub(crate) const POINTS: usize = 1024;
/// How often a spiral goes round.
const TURNS: f32 = 1.5;
/// The largest displacement of a point.
const NOISE: f32 = 0.04;

/// Coordinates of a point.
pub(crate) const INPUTS: usize = 2;
/// Spirals a point may belong to.
pub(crate) const CLASSES: usize = 2;

/// Labelled points.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Batch {
    /// [`INPUTS`] numbers each.
    pub(crate) inputs: Vec<f32>,
    pub(crate) labels: Vec<usize>,
}

/// The data set.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) all: Batch,
    seed: u64,
}

impl Data {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut all = Batch::default();
        for index in 0..POINTS {
            let label = index % CLASSES;
            let radius = 0.1 + 0.9 * uniform(&mut random);
            let turn = if label == 0 { 0.0 } else { 0.5 };
            let angle = std::f32::consts::TAU * (radius * TURNS + turn);
            let mut noise = || NOISE * (2.0 * uniform(&mut random) - 1.0);
            let (dx, dy) = (noise(), noise());
            all.inputs.push(radius * angle.cos() + dx);
            all.inputs.push(radius * angle.sin() + dy);
            all.labels.push(label);
        }
        Self { all, seed }
    }

    /// The samples of one rank in one step: the same whoever asks.
    pub(crate) fn micro_batch(&self, size: usize, step: usize, rank: usize) -> Batch {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ 0xba7c);
        random.set_stream((step as u64) << 16 | rank as u64);
        let mut batch = Batch::default();
        for _ in 0..size {
            let point = random.next_u32() as usize % POINTS;
            let inputs = &self.all.inputs[point * INPUTS..(point + 1) * INPUTS];
            batch.inputs.extend(inputs);
            batch.labels.push(self.all.labels[point]);
        }
        batch
    }
}

/// A number in `0.0..1.0`.
pub(crate) fn uniform(random: &mut impl Rng) -> f32 {
    let bits = u16::try_from(random.next_u32() >> 16).unwrap_or(0);
    f32::from(bits) / 65_536.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_the_same_again_and_differ_by_step_and_rank() {
        let data = Data::new(3);
        let batch = data.micro_batch(16, 5, 2);
        assert_eq!(batch, Data::new(3).micro_batch(16, 5, 2));
        assert_ne!(batch, data.micro_batch(16, 5, 3));
        assert_ne!(batch, data.micro_batch(16, 6, 2));
        assert_ne!(batch, Data::new(4).micro_batch(16, 5, 2));
        assert_eq!((batch.inputs.len(), batch.labels.len()), (32, 16));
    }
}
