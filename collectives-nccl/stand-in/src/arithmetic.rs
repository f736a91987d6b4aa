//! Elements of NCCL's types, and how they are folded.
//!
//! Written from the numbers in `nccl.h`, and from nothing of the backend's.

use std::convert::identity;
use std::ffi::c_int;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// What a collective makes of the elements of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Product,
    Max,
    Min,
    /// The sum, divided by how many there are.
    Average,
    /// The sum of what is first multiplied by an element, which is at the front of these bytes.
    Scaled([u8; 8]),
}

impl Reduction {
    /// A reduction by its number, if the library has it.
    pub(crate) fn of(number: c_int) -> Option<Self> {
        Some(match number {
            0 => Self::Sum,
            1 => Self::Product,
            2 => Self::Max,
            3 => Self::Min,
            4 => Self::Average,
            _ => return None,
        })
    }
}

trait Number: Copy {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn is_less(self, other: Self) -> bool;
    /// Divided by a whole number; integers without a rest.
    fn over(self, by: u32) -> Self;
    /// Divided by a number, rounded once.
    fn divided(self, by: f64) -> Self;
}

macro_rules! integers {
    ($($ty:ty)+) => {$(
        impl Number for $ty {
            const SIZE: usize = size_of::<Self>();

            fn read(bytes: &[u8]) -> Self {
                bytes.try_into().map_or(0, Self::from_ne_bytes)
            }

            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }

            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn is_less(self, other: Self) -> bool {
                self < other
            }

            fn over(self, by: u32) -> Self {
                Self::try_from(by).map_or(0, |by| self / by)
            }

            fn divided(self, _by: f64) -> Self {
                // No kernel divides integers.
                self
            }
        }
    )+};
}

macro_rules! floats {
    ($($ty:ty, $narrow:expr, $widen:expr, $number:expr;)+) => {$(
        impl Number for $ty {
            const SIZE: usize = size_of::<Self>();

            fn read(bytes: &[u8]) -> Self {
                let zero = [0; size_of::<Self>()];
                Self::from_bits(Bits::from_ne_bytes_of(bytes.try_into().unwrap_or(zero)))
            }

            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_bits().to_ne_bytes());
            }

            fn plus(self, other: Self) -> Self {
                $narrow($widen(self) + $widen(other))
            }

            fn times(self, other: Self) -> Self {
                $narrow($widen(self) * $widen(other))
            }

            fn is_less(self, other: Self) -> bool {
                $widen(self) < $widen(other)
            }

            fn over(self, by: u32) -> Self {
                self.divided(f64::from(by))
            }

            fn divided(self, by: f64) -> Self {
                $narrow($widen(self) / $number(by))
            }
        }
    )+};
}

/// The bits of a floating-point number.
trait Bits<const N: usize> {
    fn from_ne_bytes_of(bytes: [u8; N]) -> Self;
}

macro_rules! bits {
    ($($ty:ty, $size:literal;)+) => {$(
        impl Bits<$size> for $ty {
            fn from_ne_bytes_of(bytes: [u8; $size]) -> Self {
                Self::from_ne_bytes(bytes)
            }
        }
    )+};
}

bits! { u8, 1; u16, 2; u32, 4; u64, 8; }
integers! { i8 u8 i32 u32 i64 u64 }
floats! {
    f64, identity::<Self>, identity::<Self>, identity::<f64>;
    f32, identity::<Self>, identity::<Self>, single;
    f16, Self::from_f32, Self::to_f32, single;
    bf16, Self::from_f32, Self::to_f32, single;
    F8E4M3, Self::from_f32, |number: Self| number.to_f32(), single;
    F8E5M2, Self::from_f32, |number: Self| number.to_f32(), single;
}

/// What narrow elements are divided by.
#[expect(
    clippy::cast_possible_truncation,
    reason = "whole numbers of ranks fit"
)]
fn single(number: f64) -> f32 {
    number as f32
}

/// Runs a function for the type of this number.
macro_rules! with_type {
    ($dtype:expr, $function:ident($($arg:expr),*)) => {
        match $dtype {
            0 => Some($function::<i8>($($arg),*)),
            1 => Some($function::<u8>($($arg),*)),
            2 => Some($function::<i32>($($arg),*)),
            3 => Some($function::<u32>($($arg),*)),
            4 => Some($function::<i64>($($arg),*)),
            5 => Some($function::<u64>($($arg),*)),
            6 => Some($function::<f16>($($arg),*)),
            7 => Some($function::<f32>($($arg),*)),
            8 => Some($function::<f64>($($arg),*)),
            9 => Some($function::<bf16>($($arg),*)),
            10 => Some($function::<F8E4M3>($($arg),*)),
            11 => Some($function::<F8E5M2>($($arg),*)),
            _ => None,
        }
    };
}

/// Bytes of an element, if there is such a type.
pub(crate) fn size(dtype: c_int) -> Option<usize> {
    fn size_of_number<N: Number>() -> usize {
        N::SIZE
    }
    with_type!(dtype, size_of_number())
}

/// Folds what all ranks give, in rank order, rounding at every step.
pub(crate) fn fold(dtype: c_int, reduction: Reduction, inputs: &[&[u8]]) -> Vec<u8> {
    with_type!(dtype, fold_numbers(reduction, inputs)).unwrap_or_default()
}

/// Divides elements by a number, in place.
pub(crate) fn divide(dtype: c_int, elements: &mut [u8], by: f64) {
    let _ = with_type!(dtype, divide_numbers(elements, by));
}

fn fold_numbers<N: Number>(reduction: Reduction, inputs: &[&[u8]]) -> Vec<u8> {
    let Some((first, others)) = inputs.split_first() else {
        return Vec::new();
    };
    let ranks = u32::try_from(inputs.len()).unwrap_or(u32::MAX);
    let before = |number: N| match reduction {
        Reduction::Scaled(scalar) => number.times(N::read(&scalar[..N::SIZE])),
        _ => number,
    };
    let with = |one: N, other: N| match reduction {
        Reduction::Sum | Reduction::Average | Reduction::Scaled(_) => one.plus(other),
        Reduction::Product => one.times(other),
        Reduction::Max if one.is_less(other) => other,
        Reduction::Min if other.is_less(one) => other,
        Reduction::Max | Reduction::Min => one,
    };
    let mut folded = first.to_vec();
    for (index, element) in folded.chunks_exact_mut(N::SIZE).enumerate() {
        let at = index * N::SIZE..(index + 1) * N::SIZE;
        let mut number = before(N::read(element));
        for other in others {
            number = with(number, before(N::read(&other[at.clone()])));
        }
        if reduction == Reduction::Average {
            number = number.over(ranks);
        }
        number.write(element);
    }
    folded
}

fn divide_numbers<N: Number>(elements: &mut [u8], by: f64) {
    for element in elements.chunks_exact_mut(N::SIZE) {
        N::read(element).divided(by).write(element);
    }
}
