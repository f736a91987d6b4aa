//! Many measurements of one thing.

/// Measurements in ascending order, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self(values)
    }

    /// The value below which this share of the measurements lies; NaN if there are none.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an index into a vector, scaled by a number from 0 to 1"
    )]
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let index = (last as f64 * share).round() as usize;
        self.0.get(index).copied().unwrap_or(f64::NAN)
    }

    /// The statistic of everything that ranks do together: the 25th percentile, because the upper
    /// half of many short batches is other people's work.
    pub(crate) fn typical(&self) -> f64 {
        self.quantile(0.25)
    }
}

/// The smallest of some figures.
pub(crate) fn smallest(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    figures.into_iter().min_by(f64::total_cmp)
}
