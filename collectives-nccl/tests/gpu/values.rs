//! Small numbers whose sums are exact in every element type, and the oracle over them.

use collectives_core::dtype::Element;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// An element type that holds small whole numbers.
pub(crate) trait Small: Element {
    /// The largest input; eight of them still have an exact sum.
    const MOST: i32;
    fn of(value: i32) -> Self;
}

macro_rules! small {
    ($($ty:ty, $most:literal, $of:expr;)+) => {$(
        impl Small for $ty {
            const MOST: i32 = $most;
            fn of(value: i32) -> Self {
                let convert: fn(i32) -> $ty = $of;
                convert(value)
            }
        }
    )+};
}

small! {
    f64, 3, f64::from;
    f32, 3, |value| value as f32;
    f16, 3, |value| f16::from_f32(value as f32);
    bf16, 3, |value| bf16::from_f32(value as f32);
    F8E4M3, 1, |value| F8E4M3::from_f32(value as f32);
    F8E5M2, 1, |value| F8E5M2::from_f32(value as f32);
    i64, 3, i64::from;
    i32, 3, |value| value;
    i8, 3, |value| i8::try_from(value).unwrap_or(0);
    u64, 3, |value| u64::try_from(value).unwrap_or(0);
    u32, 3, |value| u32::try_from(value).unwrap_or(0);
    u8, 3, |value| u8::try_from(value).unwrap_or(0);
}

/// What rank `rank` puts at `index` in a round.
pub(crate) fn input(most: i32, rank: usize, index: usize, round: usize) -> i32 {
    let mixed = index.wrapping_mul(7) + rank * 5 + round * 3 + index / 11;
    i32::try_from(mixed % (usize::try_from(most).unwrap_or(1) + 1)).unwrap_or(0)
}

/// A rank's inputs.
pub(crate) fn inputs<T: Small>(rank: usize, count: usize, round: usize) -> Vec<T> {
    (0..count)
        .map(|index| T::of(input(T::MOST, rank, index, round)))
        .collect()
}

/// The sum over all ranks, from `start` on.
pub(crate) fn sums<T: Small>(ranks: usize, start: usize, count: usize, round: usize) -> Vec<T> {
    (start..start + count)
        .map(|index| {
            T::of(
                (0..ranks)
                    .map(|rank| input(T::MOST, rank, index, round))
                    .sum(),
            )
        })
        .collect()
}

/// Fails with the first element that differs.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    actual: &[T],
    expected: &[T],
) -> Result<(), String> {
    if actual.len() != expected.len() {
        return Err(format!(
            "{what}: {} elements, not {}",
            actual.len(),
            expected.len()
        ));
    }
    let wrong = actual.iter().zip(expected).filter(|(a, e)| a != e).count();
    match actual.iter().zip(expected).position(|(a, e)| a != e) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{what}: {wrong} of {} wrong, the first at {at}: {:?}, not {:?}",
            actual.len(),
            actual[at],
            expected[at]
        )),
    }
}
