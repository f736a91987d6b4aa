//! Numbers whose sums are exact, whatever the order.
//!
//! Floating-point sums depend on their order, and each library and each path has its own. They do not
//! where every partial sum is a number that the type holds. So `--exact` rounds what is summed over ranks
//! to multiples of a unit, and cuts it off at a limit: an element of a type with a significand of `b` bits
//! holds every multiple of the unit up to `2^b` units, and of [`RANKS`] ranks none adds more than
//! `2^b / RANKS` of them. Every sum of some ranks is such a multiple, and so is rounded nowhere.
//!
//! Training goes on with these gradients, and comes to something else than with those that were not
//! rounded; but to the same, in every bit, on every backend that sums right.

use collectives_examples::backend::MOST_RANKS;

/// The most ranks whose sums are exact.
pub(crate) const RANKS: u16 = 32;

const _: () = assert!(MOST_RANKS <= RANKS, "sums of all ranks must be exact");

/// Multiples of a unit, up to a limit on either side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grid<T> {
    pub(crate) unit: T,
    pub(crate) limit: T,
}

/// For gradients in `f32`, with 24 bits: 2^19 units of 2^-18.
pub(crate) const F32: Grid<f32> = Grid {
    unit: 1.0 / 262_144.0,
    limit: 2.0,
};

/// For gradients in bf16, with 8 bits: 8 units of 2^-9.
pub(crate) const BF16: Grid<f32> = Grid {
    unit: 1.0 / 512.0,
    limit: 1.0 / 64.0,
};

/// For what is reported, in `f64`, with 53 bits: 2^48 units of 2^-32.
pub(crate) const REPORTED: Grid<f64> = Grid {
    unit: 1.0 / 4_294_967_296.0,
    limit: 65_536.0,
};

macro_rules! nearest {
    ($($float:ty),+) => {$(
        impl Grid<$float> {
            /// The nearest number of the grid; what is not a number stays that.
            pub(crate) fn nearest(self, value: $float) -> $float {
                let cut = value.clamp(-self.limit, self.limit);
                (cut / self.unit).round_ties_even() * self.unit
            }
        }
    )+};
}

nearest!(f32, f64);

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::data::uniform;
    use crate::precision::{Compute, rounded};

    /// Sums of a type, rounded to it after every addition, up, down and as a tree.
    fn sums<T: Compute>(values: &[f32]) -> [f32; 3] {
        fn tree<T: Compute>(values: &[f32]) -> f32 {
            match values {
                [one] => *one,
                _ => {
                    let (left, right) = values.split_at(values.len() / 2);
                    rounded::<T>(tree::<T>(left) + tree::<T>(right))
                }
            }
        }
        let add = |sum: f32, value: &f32| rounded::<T>(sum + value);
        [
            values.iter().fold(0.0, add),
            values.iter().rev().fold(0.0, add),
            tree::<T>(values),
        ]
    }

    fn differ<T: Compute>(on: impl Fn(f32) -> f32) -> usize {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut differ = 0;
        for round in 0..500 {
            // Some lie beyond the limit, and some are all there.
            let scale = if round == 0 { 1e9 } else { 4.0 * T::GRID.limit };
            let mut value = || on(scale * uniform(&mut random) * uniform(&mut random));
            let values: Vec<_> = (0..RANKS).map(|_| rounded::<T>(value())).collect();
            let [up, down, tree] = sums::<T>(&values);
            differ += usize::from(up != down || up != tree);
        }
        differ
    }

    #[test]
    fn sums_on_the_grid_know_no_order_and_others_do() {
        assert_eq!(differ::<f32>(|value| F32.nearest(value)), 0);
        assert_eq!(differ::<half::bf16>(|value| BF16.nearest(value)), 0);
        assert!(differ::<f32>(|value| value) > 100);
        assert!(differ::<half::bf16>(|value| value) > 100);
    }

    #[test]
    fn what_is_reported_adds_up_in_any_order() {
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let mut value = || REPORTED.nearest(f64::from(random.next_u32()) / 170_001.0);
        let values: Vec<_> = (0..RANKS).map(|_| value()).collect();
        let up: f64 = values.iter().sum();
        let down: f64 = values.iter().rev().sum();
        assert_eq!(up.to_bits(), down.to_bits());
    }

    #[test]
    fn a_number_goes_to_the_nearest_of_the_grid() {
        let Grid { unit, limit } = BF16;
        for (value, nearest) in [
            (0.4 * unit, 0.0),
            (0.6 * unit, unit),
            (-1.5 * unit, -2.0 * unit),
            (7.0, limit),
            (f32::NEG_INFINITY, -limit),
        ] {
            assert_eq!(BF16.nearest(value).to_bits(), f32::to_bits(nearest));
        }
        assert!(BF16.nearest(f32::NAN).is_nan());
    }
}
