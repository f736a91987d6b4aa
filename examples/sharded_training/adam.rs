//! Adam on one shard.

pub(crate) const RATE: f32 = 0.003;
pub(crate) const BETA1: f32 = 0.9;
pub(crate) const BETA2: f32 = 0.999;
pub(crate) const EPSILON: f32 = 1e-8;

/// Master parameters and their moments, all `f32`.
#[derive(Clone, Debug)]
pub(crate) struct Adam {
    pub(crate) parameters: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    steps: i32,
}

impl Adam {
    pub(crate) fn new(parameters: Vec<f32>) -> Self {
        let zeros = vec![0.0; parameters.len()];
        Self {
            parameters,
            first: zeros.clone(),
            second: zeros,
            steps: 0,
        }
    }

    /// One step along the averaged gradients.
    pub(crate) fn step(&mut self, gradients: &[f32]) {
        self.steps += 1;
        let (correct1, correct2) = (1.0 - BETA1.powi(self.steps), 1.0 - BETA2.powi(self.steps));
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((parameter, (first, second)), &gradient) in
            self.parameters.iter_mut().zip(moments).zip(gradients)
        {
            *first = BETA1 * *first + (1.0 - BETA1) * gradient;
            *second = BETA2 * *second + (1.0 - BETA2) * gradient * gradient;
            let scale = (*second / correct2).sqrt() + EPSILON;
            *parameter -= RATE * (*first / correct1) / scale;
        }
    }
}
