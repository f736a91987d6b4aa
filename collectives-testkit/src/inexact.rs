//! Floats whose sums depend on the order of additions, and the sums in the order of ranks.
//!
//! The expected value of an element is worked out as [`collectives_core::reduce`] says, with no collective.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use collectives_core::eight_bits::{f8e4m3, f8e5m2};
use collectives_core::reduce::ReduceOp;

use crate::values::{Dice, Exact};

/// A floating-point type, with what it accumulates in.
pub trait Float: Exact {
    /// An exponent at which numbers swallow those around one, where the type reaches so far.
    const LARGE: i32;

    /// The element with these bits.
    fn from_bits(bits: u64) -> Self;

    /// Its bits.
    fn bits(self) -> u64;

    /// The element nearest to a value that is not too large.
    fn near(value: f64) -> Self;

    /// The reduction in this order, as the accumulation rules say; of sums and products.
    fn fold(op: ReduceOp, inputs: impl IntoIterator<Item = Self>) -> Self;
}

macro_rules! floats {
    ($($ty:ty: $bits:ty, $acc:ty, $large:literal, $near:expr, $widen:expr, $round:expr;)+) => {$(
        impl Float for $ty {
            const LARGE: i32 = $large;

            fn from_bits(bits: u64) -> Self {
                <$ty>::from_bits(<$bits>::try_from(bits).unwrap_or_default())
            }

            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }

            fn near(value: f64) -> Self {
                ($near)(value)
            }

            fn fold(op: ReduceOp, inputs: impl IntoIterator<Item = Self>) -> Self {
                let combine: fn($acc, $acc) -> $acc = match op {
                    ReduceOp::Product => |left, right| left * right,
                    _ => |left, right| left + right,
                };
                let folded: Option<$acc> = inputs.into_iter().map($widen).reduce(combine);
                ($round)(folded.unwrap_or_default())
            }
        }
    )+};
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a double is rounded to the nearest float"
)]
const fn single(value: f64) -> f32 {
    value as f32
}

floats! {
    f64: u64, f64, 60, |value| value, |value| value, |value| value;
    f32: u32, f32, 30, single, |value| value, |value| value;
    f16: u16, f32, 14, Self::from_f64, Self::to_f32, f16::from_f32;
    bf16: u16, f32, 30, Self::from_f64, Self::to_f32, bf16::from_f32;
    F8E4M3: u8, f32, 7, Self::from_f64, |value| value.to_f32(), f8e4m3;
    F8E5M2: u8, f32, 14, Self::from_f64, |value| value.to_f32(), f8e5m2;
}

/// What a rank contributes at an index: every other one is such that two ranks' numbers cancel out, and
/// those added between them are lost or not, by the order.
fn element<T: Float>(rank: usize, ranks: usize, index: usize) -> T {
    let mut dice = Dice::new((rank * 8191 + index * 31 + 5) as u64);
    let mut roll = |sides| u32::try_from(dice.roll(sides)).unwrap_or(0);
    let (mantissa, low) = (f64::from(roll(1 << 26)), f64::from(roll(1 << 26)));
    let fraction = 1.0 + (mantissa + low / f64::from(1 << 26)) / f64::from(1 << 26);
    let small = match roll(2) {
        0 => fraction,
        _ => -fraction,
    };
    let large = 2_f64.powi(T::LARGE) * (1.0 + f64::from(u8::from(index.is_multiple_of(3))) / 4.0);
    // Far enough from what is large to be swallowed, in the types of eight bits as well.
    let tiny = small * 2_f64.powi(-T::LARGE.min(14));
    match (rank + index / 2) % ranks {
        _ if index.is_multiple_of(2) => T::near(small * f64::from(1_u32 << (index % 5))),
        0 => T::near(large),
        1 => T::near(-large),
        _ => T::near(tiny),
    }
}

/// What a rank contributes.
#[must_use]
pub fn inputs<T: Float>(rank: usize, ranks: usize, count: usize) -> Vec<T> {
    let at = |index| element(rank, ranks, index);
    (0..count).map(at).collect()
}

/// The reduction of what ranks contribute, in the order given.
#[must_use]
pub fn folded<T: Float>(op: ReduceOp, inputs: &[Vec<T>]) -> Vec<T> {
    let count = inputs.first().map_or(0, Vec::len);
    let at = |index| T::fold(op, inputs.iter().map(|input: &Vec<T>| input[index]));
    (0..count).map(at).collect()
}

/// The bits of every element.
pub fn bits<T: Float>(elements: &[T]) -> Vec<u64> {
    elements.iter().map(|element| element.bits()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differs<T: Float>(op: ReduceOp, order: &[usize]) -> bool {
        let all: Vec<Vec<T>> = (0..order.len())
            .map(|rank| inputs(rank, order.len(), 40))
            .collect();
        let other: Vec<_> = order.iter().map(|&rank| all[rank].clone()).collect();
        bits(&folded(op, &all)) != bits(&folded(op, &other))
    }

    #[test]
    fn another_order_has_other_bits() {
        for order in [
            vec![1, 2, 0],
            vec![2, 0, 1],
            vec![2, 1, 0],
            vec![3, 0, 1, 2],
        ] {
            assert!(differs::<f64>(ReduceOp::Sum, &order), "f64 {order:?}");
            assert!(differs::<f32>(ReduceOp::Sum, &order), "f32 {order:?}");
            assert!(differs::<f16>(ReduceOp::Sum, &order), "f16 {order:?}");
            assert!(differs::<bf16>(ReduceOp::Sum, &order), "bf16 {order:?}");
            assert!(differs::<F8E5M2>(ReduceOp::Sum, &order), "{order:?}");
            assert!(differs::<f32>(ReduceOp::Product, &order), "{order:?}");
        }
    }

    #[test]
    fn nothing_is_too_large() {
        let finite = |rank| {
            inputs::<F8E4M3>(rank, 3, 60)
                .iter()
                .all(|x| x.to_f32().is_finite())
        };
        assert!((0..3).all(finite));
    }
}
