//! Inputs whose sums are exact in bf16, and what the sums must be.
//!
//! Element `i` of rank `r` in step `s` is a small integer from a table whose period is prime, so
//! that data from another rank, step, layer or offset does not pass for the right one. The
//! expectation is added up from the table itself and uses no collective.

use half::bf16;

/// Prime, so that no size in use is a multiple of it.
const PERIOD: usize = 4093;

/// The pattern all inputs are cut from.
#[derive(Debug)]
pub(crate) struct Oracle {
    ranks: usize,
    /// Two periods, so that any rotation is one contiguous piece.
    pattern: Vec<bf16>,
}

impl Oracle {
    pub(crate) fn new(ranks: usize) -> Self {
        let value = |index: usize| {
            // Integers from -3 to 4: sums of up to 32 ranks stay below 256, where bf16 is exact.
            let mixed = index.wrapping_mul(2_654_435_761) >> 7;
            f32::from(u8::try_from(mixed % 8).unwrap_or(0)) - 3.0
        };
        let period: Vec<_> = (0..PERIOD).map(|i| bf16::from_f32(value(i))).collect();
        Self {
            ranks,
            pattern: period.repeat(2),
        }
    }

    /// Writes one rank's input of a step.
    pub(crate) fn fill(&self, input: &mut [bf16], rank: usize, step: usize) {
        let period = self.rotated(rank, step);
        for piece in input.chunks_mut(PERIOD) {
            piece.copy_from_slice(&period[..piece.len()]);
        }
    }

    /// How many elements of a result are not the sum over all ranks' inputs of the step.
    pub(crate) fn count_wrong(&self, result: &[bf16], step: usize) -> u64 {
        let mut sums = vec![0.0_f32; PERIOD];
        for rank in 0..self.ranks {
            for (sum, value) in sums.iter_mut().zip(self.rotated(rank, step)) {
                *sum += value.to_f32();
            }
        }
        let expected: Vec<_> = sums.into_iter().map(bf16::from_f32).collect();
        let wrong = |piece: &[bf16]| {
            let pairs = piece.iter().zip(&expected);
            pairs
                .filter(|(got, want)| got.to_bits() != want.to_bits())
                .count() as u64
        };
        result
            .chunks(PERIOD)
            // Equal pieces, which is nearly all, are compared as whole slices.
            .filter(|piece| **piece != expected[..piece.len()])
            .map(wrong)
            .sum()
    }

    fn rotated(&self, rank: usize, step: usize) -> &[bf16] {
        let start = (rank * 1009 + step * 157) % PERIOD;
        &self.pattern[start..start + PERIOD]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_made_by_hand_is_right_and_any_other_is_not() {
        let oracle = Oracle::new(3);
        let mut sum = vec![bf16::ZERO; 10_000];
        for rank in 0..3 {
            let mut input = vec![bf16::ZERO; sum.len()];
            oracle.fill(&mut input, rank, 7);
            for (sum, value) in sum.iter_mut().zip(input) {
                *sum = bf16::from_f32(sum.to_f32() + value.to_f32());
            }
        }
        assert_eq!(oracle.count_wrong(&sum, 7), 0);
        assert!(oracle.count_wrong(&sum, 8) > 5_000, "another step");
        assert!(oracle.count_wrong(&sum[1..], 7) > 5_000, "another offset");
        sum[9_999] += bf16::ONE;
        assert_eq!(oracle.count_wrong(&sum, 7), 1);
    }
}
