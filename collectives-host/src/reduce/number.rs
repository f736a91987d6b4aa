//! The arithmetic of accumulators.

/// A type that reductions accumulate in. Everything is branch-free where it can be, so that loops
/// over it vectorise.
pub(super) trait Number: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn smaller_of(self, other: Self) -> Self;
    fn larger_of(self, other: Self) -> Self;
    /// Divides by a number of ranks; integers truncate towards zero.
    fn divide(self, ranks: usize) -> Self;
}

macro_rules! integers {
    ($($ty:ty: $wide:ty),+) => {$(
        impl Number for $ty {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn smaller_of(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn larger_of(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                // The quotient fits: it is no larger than the dividend.
                let ranks = <$wide>::try_from(ranks).unwrap_or(<$wide>::MAX);
                Self::try_from(<$wide>::from(self) / ranks).unwrap_or_default()
            }
        }
    )+};
}

integers!(i64: i64, i32: i64, i8: i64, u64: u64, u32: u64, u8: u64);

macro_rules! floats {
    ($($ty:ty: $signed:ty, $unsigned:ty),+) => {$(
        impl Number for $ty {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn smaller_of(self, other: Self) -> Self {
                let smaller = if ordered(self) <= ordered(other) { self } else { other };
                if self.is_nan() | other.is_nan() { self + other } else { smaller }
            }
            #[inline(always)]
            fn larger_of(self, other: Self) -> Self {
                let larger = if ordered(self) >= ordered(other) { self } else { other };
                if self.is_nan() | other.is_nan() { self + other } else { larger }
            }
            #[inline(always)]
            #[expect(clippy::cast_precision_loss, reason = "worlds are far smaller than 2^24")]
            fn divide(self, ranks: usize) -> Self {
                self / ranks as Self
            }
        }

        impl Ordered for $ty {
            type Key = $signed;
            #[inline(always)]
            #[expect(clippy::cast_possible_wrap, clippy::cast_sign_loss, reason = "bits, not values")]
            fn ordered(self) -> $signed {
                let bits = self.to_bits() as $signed;
                bits ^ (((bits >> (<$signed>::BITS - 1)) as $unsigned) >> 1) as $signed
            }
        }
    )+};
}

/// Bits whose order as signed integers is the order of the numbers, with -0.0 below 0.0.
trait Ordered {
    type Key: Ord;
    fn ordered(self) -> Self::Key;
}

#[inline(always)]
fn ordered<T: Ordered>(value: T) -> T::Key {
    value.ordered()
}

floats!(f64: i64, u64, f32: i32, u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_and_maximum_propagate_nan_and_order_zeros() {
        assert!(1.0_f32.smaller_of(f32::NAN).is_nan() && f64::NAN.larger_of(1.0).is_nan());
        assert!(Number::smaller_of(0.0_f32, -0.0).is_sign_negative());
        assert!(Number::larger_of(-0.0_f64, 0.0).is_sign_positive());
        assert_eq!(
            Number::smaller_of(f32::NEG_INFINITY, f32::MIN),
            f32::NEG_INFINITY
        );
        assert_eq!(Number::larger_of(-2.0_f64, -3.0), -2.0);
    }

    #[test]
    fn integers_truncate_towards_zero() {
        assert_eq!(Number::divide(-7_i8, 2), -3);
        assert_eq!(Number::divide(-7_i8, 300), 0);
        assert_eq!(Number::divide(u64::MAX, 2), u64::MAX / 2);
    }
}
