//! Growth ratios, exact on every rank.

use std::fmt;

use collectives_core::error::{Error, Result};

/// A growth ratio of at most 4, kept in millionths: above 1, or 1 itself where a policy takes it.
///
/// Sizes are multiplied as integers and rounded up, so that no rank and no platform comes to
/// another capacity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Growth(u32);

impl Growth {
    /// Doubling: the ratio with the least worst case for rules that never free.
    pub const DOUBLE: Self = Self(2 * Self::ONE);

    const ONE: u32 = 1_000_000;

    /// The ratio `ratio`, rounded to millionths, and never rounded down to 1.
    ///
    /// # Errors
    ///
    /// [`Config`](collectives_core::error::ErrorKind::Config) unless `1 < ratio <= 4`.
    pub fn new(ratio: f64) -> Result<Self> {
        if !(ratio > 1.0 && ratio <= 4.0) {
            let text = format!("growth must be above 1 and at most 4, and {ratio} is not");
            return Err(Error::config(text));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the product lies between 1 and 4 millions"
        )]
        let millionths = (ratio * f64::from(Self::ONE)).round() as u32;
        Ok(Self(millionths.max(Self::ONE + 1)))
    }

    /// As [`Growth::new`], and also 1, for a policy that grows by what is missing.
    ///
    /// # Errors
    ///
    /// [`Config`](collectives_core::error::ErrorKind::Config) unless `1 <= ratio <= 4`.
    pub fn or_none(ratio: f64) -> Result<Self> {
        if ratio.to_bits() == 1.0_f64.to_bits() {
            return Ok(Self(Self::ONE));
        }
        Self::new(ratio)
    }

    /// The ratio in millionths.
    #[must_use]
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// `size` times the ratio, rounded up; `None` when that overflows.
    #[must_use]
    pub fn times(self, size: usize) -> Option<usize> {
        let product = size as u128 * u128::from(self.0);
        usize::try_from(product.div_ceil(Self::ONE.into())).ok()
    }

    /// `r^2 / (r - 1)` times `size`, rounded down and saturating: what slots that are never freed
    /// may add up to when none exceeds the one before it by less than `r`, and each was made for
    /// at most `size` bytes. Without growth there is no bound.
    #[must_use]
    pub fn worst_sum(self, size: usize) -> usize {
        let (ratio, one) = (u128::from(self.0), u128::from(Self::ONE));
        let sum = (size as u128 * (ratio * ratio)).checked_div(one * (ratio - one));
        sum.and_then(|sum| usize::try_from(sum).ok())
            .unwrap_or(usize::MAX)
    }

    /// `size / (r - 1)`, rounded up and saturating.
    #[must_use]
    pub(crate) fn share(self, size: usize) -> usize {
        let (ratio, one) = (u128::from(self.0), u128::from(Self::ONE));
        let parts = (ratio - one).max(1);
        usize::try_from((size as u128 * one).div_ceil(parts)).unwrap_or(usize::MAX)
    }
}

impl Default for Growth {
    fn default() -> Self {
        Self::DOUBLE
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / f64::from(Self::ONE))
    }
}

impl fmt::Debug for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Growth({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::one(1.0)]
    #[case::below(0.5)]
    #[case::above(4.000_001)]
    #[case::nan(f64::NAN)]
    #[case::infinite(f64::INFINITY)]
    // invariant 47
    fn growth_outside_its_range_is_rejected(#[case] ratio: f64) {
        assert!(Growth::new(ratio).is_err());
    }

    #[test]
    fn every_accepted_growth_grows() {
        let least = Growth::new(1.0 + f64::EPSILON).unwrap();
        assert_eq!(least.times(1), Some(2));
        assert_eq!(Growth::new(4.0).unwrap().times(3), Some(12));
        assert_eq!(Growth::new(1.1).unwrap().times(10), Some(11));
        assert_eq!(Growth::DOUBLE.times(usize::MAX / 2 + 1), None);
        assert_eq!(Growth::DOUBLE.worst_sum(7), 28);
        assert_eq!(Growth::DOUBLE.worst_sum(usize::MAX), usize::MAX);
        let none = Growth::or_none(1.0).unwrap();
        assert_eq!((none.times(7), none.worst_sum(7)), (Some(7), usize::MAX));
        assert!(Growth::or_none(0.999).is_err() && Growth::or_none(4.1).is_err());
    }

    proptest! {
        #[test]
        fn the_product_is_the_ceiling(ratio in 1.000_001..=4.0_f64, size in 0..1_usize << 60) {
            let growth = Growth::new(ratio).unwrap();
            let product = size as u128 * u128::from(growth.millionths());
            let times = growth.times(size).unwrap() as u128 * 1_000_000;
            prop_assert!(times >= product && times < product + 1_000_000);
        }
    }
}
