//! One slot per power-of-two class of sizes.

use std::iter;

use collectives_core::error::{Error, Result};

use crate::digest::Digest;
use crate::policy::{Ask, Decision, Policy, SlotView};

/// A slot of the request's own class, reused only for that class.
///
/// A class is a power of two bytes, or with `k` classes an octave one of `k` steps between two. More
/// classes waste less of a slot and keep more slots: the worst sum is four times the largest request
/// with one class an octave, and 7.75 times with four.
#[derive(Clone, Copy, Debug)]
pub struct GeometricClass {
    per_octave: u32,
}

impl Default for GeometricClass {
    fn default() -> Self {
        Self { per_octave: 1 }
    }
}

impl GeometricClass {
    /// With this many classes an octave.
    ///
    /// # Errors
    ///
    /// [`Config`](collectives_core::error::ErrorKind::Config) unless there are 1 to 64.
    pub fn new(classes_per_octave: u32) -> Result<Self> {
        if !(1..=64).contains(&classes_per_octave) {
            let text =
                format!("classes_per_octave must be 1 to 64, and {classes_per_octave} is not");
            return Err(Error::config(text));
        }
        Ok(Self {
            per_octave: classes_per_octave,
        })
    }

    /// The smallest class of at least `bytes` bytes; `None` when that overflows.
    #[must_use]
    pub fn class(&self, bytes: usize) -> Option<usize> {
        let base = 1_u128 << bytes.max(1).ilog2();
        let classes = u128::from(self.per_octave);
        (classes..=2 * classes)
            .map(|step| (base * step).div_ceil(classes))
            .find(|&class| class >= bytes as u128)
            .and_then(|class| usize::try_from(class).ok())
    }
}

impl Policy for GeometricClass {
    fn name(&self) -> &str {
        "geometric-class"
    }

    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
        let Some(class) = self.class(ask.bytes) else {
            return Decision::Refuse;
        };
        let same = |slot: &SlotView| !slot.leased && slot.capacity == class;
        match slots.iter().position(same) {
            Some(index) => Decision::Hit(index),
            None if ask.whole_granules(class).is_none() => Decision::Refuse,
            None => Decision::Grow {
                capacity: class,
                retire: false,
            },
        }
    }

    fn digest(&self) -> u64 {
        let digest = Digest::new().text(self.name());
        digest.word(self.per_octave.into()).finish()
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![("classes_per_octave", self.per_octave.to_string())]
    }

    /// One slot in every class up to that of the largest request.
    fn bound(&self, largest: usize, _granule: usize) -> Option<usize> {
        let top = self.class(largest)?;
        let next = |&class: &usize| self.class(class.checked_add(1)?);
        iter::successors(Some(1), next)
            .take_while(|&class| class <= top)
            .try_fold(0_usize, usize::checked_add)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(1, 640 << 10, 1 << 20)]
    #[case(1, 1 << 20, 1 << 20)]
    #[case(1, (1 << 20) + 1, 2 << 20)]
    #[case(1, 1, 1)]
    #[case(4, 640 << 10, 640 << 10)]
    #[case(4, (640 << 10) + 1, 768 << 10)]
    #[case(4, 1000, 1024)]
    fn a_request_gets_the_smallest_class_that_holds_it(
        #[case] per_octave: u32,
        #[case] bytes: usize,
        #[case] class: usize,
    ) {
        assert_eq!(
            GeometricClass::new(per_octave).unwrap().class(bytes),
            Some(class)
        );
    }

    #[test]
    fn a_class_beyond_the_address_space_is_refused() {
        let policy = GeometricClass::default();
        assert_eq!(policy.class(usize::MAX), None);
        assert!(GeometricClass::new(0).is_err() && GeometricClass::new(65).is_err());
    }
}
