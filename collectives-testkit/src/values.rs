//! Inputs whose sums are exact in every element type and order, and the sums.
//!
//! Nothing here uses a collective: the expected value of an element is worked out from ranks, index
//! and round alone.

use collectives_core::dtype::Element;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// An element type with small whole numbers that add up exactly.
pub trait Exact: Element {
    /// Every whole number up to this is a value of the type.
    const EXACT_TO: u32;

    /// The element with this value.
    fn of(value: u32) -> Self;
}

macro_rules! exact {
    ($($ty:ty, $to:expr, $of:expr;)+) => {$(
        impl Exact for $ty {
            const EXACT_TO: u32 = $to;

            fn of(value: u32) -> Self {
                ($of)(value)
            }
        }
    )+};
}

exact! {
    f64, 1 << 20, f64::from;
    f32, 1 << 20, |value: u32| f32::from(u16::try_from(value % 65536).unwrap_or(0))
        + 65536.0 * f32::from(u16::try_from(value / 65536).unwrap_or(0));
    f16, 2048, |value: u32| f16::from_f64(f64::from(value));
    bf16, 256, |value: u32| bf16::from_f64(f64::from(value));
    F8E4M3, 16, |value: u32| F8E4M3::from_f64(f64::from(value));
    F8E5M2, 8, |value: u32| F8E5M2::from_f64(f64::from(value));
    i64, 1 << 20, i64::from;
    i32, 1 << 20, |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    i8, 127, |value: u32| i8::try_from(value).unwrap_or(i8::MAX);
    u64, 1 << 20, u64::from;
    u32, 1 << 20, |value: u32| value;
    u8, 255, |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
}

/// The small number that a rank contributes at an index.
#[must_use]
pub fn small<T: Exact>(rank: usize, ranks: usize, index: usize, round: usize) -> u32 {
    let ranks = u32::try_from(ranks).unwrap_or(u32::MAX).max(1);
    let limit = (T::EXACT_TO / ranks).min(1009) + 1;
    let mixed = (rank + 1)
        .wrapping_mul(31)
        .wrapping_add(index.wrapping_mul(7))
        .wrapping_add(index / 13)
        .wrapping_add(round.wrapping_mul(17));
    u32::try_from(mixed % limit as usize).unwrap_or(0)
}

/// What a rank contributes.
#[must_use]
pub fn input<T: Exact>(rank: usize, ranks: usize, count: usize, round: usize) -> Vec<T> {
    (0..count)
        .map(|index| T::of(small::<T>(rank, ranks, index, round)))
        .collect()
}

/// The sum of what all ranks contribute.
#[must_use]
pub fn sum<T: Exact>(ranks: usize, count: usize, round: usize) -> Vec<T> {
    let at = |index| {
        (0..ranks)
            .map(|rank| small::<T>(rank, ranks, index, round))
            .sum()
    };
    (0..count).map(|index| T::of(at(index))).collect()
}

/// The largest of what ranks contribute.
#[must_use]
pub fn largest<T: Exact>(ranks: usize, count: usize, round: usize) -> Vec<T> {
    let at = |index| {
        (0..ranks)
            .map(|rank| small::<T>(rank, ranks, index, round))
            .max()
            .unwrap_or(0)
    };
    (0..count).map(|index| T::of(at(index))).collect()
}

/// The smallest of what ranks contribute.
#[must_use]
pub fn smallest<T: Exact>(ranks: usize, count: usize, round: usize) -> Vec<T> {
    let at = |index| {
        (0..ranks)
            .map(|rank| small::<T>(rank, ranks, index, round))
            .min()
            .unwrap_or(0)
    };
    (0..count).map(|index| T::of(at(index))).collect()
}

/// The factor that a rank contributes at an index: one rank's is three, another's two, and the rest
/// are ones, so that every product of some of them is a value of every type.
fn factor(rank: usize, ranks: usize, index: usize, round: usize) -> u32 {
    let turn = index + round;
    match rank {
        rank if rank == turn % ranks => 3,
        rank if rank == (turn / 2 + 1) % ranks => 2,
        _ => 1,
    }
}

/// What a rank contributes to a product.
#[must_use]
pub fn factors<T: Exact>(rank: usize, ranks: usize, count: usize, round: usize) -> Vec<T> {
    let at = |index| T::of(factor(rank, ranks, index, round));
    (0..count).map(at).collect()
}

/// The product of what all ranks contribute to it.
#[must_use]
pub fn product<T: Exact>(ranks: usize, count: usize, round: usize) -> Vec<T> {
    let at = |index| {
        (0..ranks)
            .map(|rank| factor(rank, ranks, index, round))
            .product()
    };
    (0..count).map(|index| T::of(at(index))).collect()
}

/// A small generator for random schedules, the same everywhere for the same seed.
#[derive(Clone, Copy, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that show the same faces for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % sides.max(1) as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_exact_in_the_narrowest_types() {
        for ranks in 1..=8 {
            let expected = product::<F8E5M2>(ranks, 100, 3);
            let of = |rank| factors::<F8E5M2>(rank, ranks, 100, 3);
            let parts: Vec<_> = (0..ranks).map(of).collect();
            for index in 0..100 {
                let all: f32 = parts.iter().map(|part| part[index].to_f32()).product();
                assert_eq!(all, expected[index].to_f32());
            }
            // Neither is a neighbour of the other, nor their sum.
            assert!(ranks == 1 || expected.windows(2).any(|pair| pair[0] != pair[1]));
        }
    }

    #[test]
    fn sums_are_exact_in_the_narrowest_types() {
        for ranks in 1..=8 {
            let expected = sum::<F8E5M2>(ranks, 100, 3);
            let parts: Vec<_> = (0..ranks)
                .map(|rank| input::<F8E5M2>(rank, ranks, 100, 3))
                .collect();
            for index in 0..100 {
                let total: f32 = parts.iter().map(|part| part[index].to_f32()).sum();
                assert_eq!(total, expected[index].to_f32());
            }
        }
    }
}
