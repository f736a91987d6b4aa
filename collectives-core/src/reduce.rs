//! Reductions, and the arithmetic every backend must agree on.
//!
//! # Accumulation rules
//!
//! The value of a reduction over ranks `0..n` is defined by a left fold in rank order, so that one
//! path gives the same bits whichever scratch it ran through:
//!
//! | element type | accumulates in | rounded |
//! |---|---|---|
//! | `f64` | `f64` | at every step |
//! | `f32` | `f32` | at every step |
//! | `f16`, `bf16`, `f8e4m3`, `f8e5m2` | `f32` | once, to nearest even, at the end |
//! | integers | the same type, wrapping | never |
//!
//! * [`ReduceOp::Average`] is the sum divided by the number of ranks: in the accumulator for
//!   floating point, a division that truncates towards zero for integers.
//! * [`ReduceOp::PreMulSum`] multiplies each rank's input by that rank's own scalar, in the
//!   accumulator, before adding.
//! * [`ReduceOp::Min`] and [`ReduceOp::Max`] propagate NaN, and order `-0.0` below `0.0`.
//! * Where a library fixes another order (NCCL's rings round at every hop for 16-bit types), its
//!   backend documents it; sums that are exact in every order, and no larger than the type holds, are
//!   equal everywhere.
//!
//! # What is too large
//!
//! Rounding to nearest even is that of IEEE 754, for what is too large as well: it becomes infinite in
//! `f16`, `bf16`, `f32`, `f64` and `f8e5m2`. `f8e4m3` has no infinity, so it becomes NaN there. An infinity or NaN
//! among the inputs stays one wherever arithmetic keeps it. Who looks for overflow in what was reduced
//! therefore finds it. [`eight_bits`](crate::eight_bits) has the conversions.
//!
//! | | `f8e5m2` | `f8e4m3` |
//! |---|---|---|
//! | largest | 57344 | 448 |
//! | rounded to that | up to, but not, 61440 | up to 464 |
//! | beyond, and overflow of the accumulator | ±∞ | NaN |
//! | `max(∞, 1)`, `∞ + 1`, `∞ × 1`, the average of ∞ and 1 | ∞ | |
//!
//! NCCL's kernels convert as CUDA does, which *saturates*: what is too large becomes the largest number, and so
//! does an infinity. `docs/decisions/0033-what-is-too-large-for-8-bits-is-seen.md` says why others do not.

use std::fmt;

use crate::dtype::{DType, Element};

/// How the elements of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum; infinite, or NaN in `f8e4m3`, where it is too large for a floating-point type.
    Sum,
    /// The product; what is too large becomes what it does in a sum.
    Product,
    /// The smallest element; NaN if any is NaN.
    Min,
    /// The largest element; NaN if any is NaN.
    Max,
    /// The sum divided by the number of ranks, in the accumulator: two large 8-bit or 16-bit floats whose
    /// sum is too large have an average.
    Average,
    /// The sum of each rank's input times that rank's own scalar.
    PreMulSum(Scalar),
}

impl ReduceOp {
    /// The lower-case name used in traces and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
            Self::Average => "average",
            Self::PreMulSum(_) => "premulsum",
        }
    }

    /// A number that is equal on two ranks exactly when they ask for the same reduction; the
    /// scalar of a pre-multiplied sum may differ.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Sum => 0,
            Self::Product => 1,
            Self::Min => 2,
            Self::Max => 3,
            Self::Average => 4,
            Self::PreMulSum(_) => 5,
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One element of any type, by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scalar {
    dtype: DType,
    bits: [u8; 8],
}

impl Scalar {
    /// The scalar that holds `value`.
    #[must_use]
    pub fn new<T: Element>(value: T) -> Self {
        let mut bits = [0; 8];
        // SAFETY: `T: Element` has no padding and `T::DTYPE.size()` bytes, of which there are at
        // most eight.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&raw const value).cast::<u8>(),
                bits.as_mut_ptr(),
                T::DTYPE.size(),
            );
        }
        Self {
            dtype: T::DTYPE,
            bits,
        }
    }

    /// The element type this scalar was made from.
    #[must_use]
    pub const fn dtype(self) -> DType {
        self.dtype
    }

    /// The value, or `None` if `T` is not the type it was made from.
    #[must_use]
    pub fn value<T: Element>(self) -> Option<T> {
        // SAFETY: The dtype is checked, so `bits` starts with the bytes of a `T`; every bit
        // pattern of a `T: Element` is valid, and the read needs no alignment.
        (self.dtype == T::DTYPE).then(|| unsafe { self.bits.as_ptr().cast::<T>().read_unaligned() })
    }

    /// The value's bytes, little end first, padded with zeros.
    #[must_use]
    pub const fn bits(self) -> u64 {
        u64::from_le_bytes(self.bits)
    }

    /// The scalar with the bits that [`Scalar::bits`] gave.
    #[must_use]
    pub const fn from_bits(dtype: DType, bits: u64) -> Self {
        Self {
            dtype,
            bits: bits.to_le_bytes(),
        }
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:#x})", self.dtype, self.bits())
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn a_scalar_gives_back_what_it_was_made_from() {
        let scalar = Scalar::new(bf16::from_f32(1.5));
        assert_eq!(scalar.value::<bf16>(), Some(bf16::from_f32(1.5)));
        assert_eq!(scalar.value::<f32>(), None);
        assert_eq!(Scalar::from_bits(DType::Bf16, scalar.bits()), scalar);
    }
}
