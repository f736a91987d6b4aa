//! One slot that is replaced when it is too small.

use collectives_core::error::Result;

use crate::digest::Digest;
use crate::geometric::grow;
use crate::growth::Growth;
use crate::policy::{self, Ask, Decision, Policy, SlotView};

/// One slot; a larger request retires it for one of `max(request, growth x old)` in whole granules.
///
/// A retired slot goes at the next collective point, or when the last graph that owns it is gone.
/// A slot that is large enough and leased is not replaced: it gets a second one beside it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replace {
    growth: Growth,
}

impl Replace {
    /// Grows by `growth`.
    ///
    /// # Errors
    ///
    /// [`Config`](collectives_core::error::ErrorKind::Config) unless `1 < growth <= 4`.
    pub fn new(growth: f64) -> Result<Self> {
        Growth::new(growth).map(|growth| Self { growth })
    }
}

impl Policy for Replace {
    fn name(&self) -> &str {
        "replace"
    }

    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
        if let Some(index) = policy::best_fit(slots, ask.bytes) {
            Decision::Hit(index)
        } else if slots.iter().any(|slot| slot.capacity >= ask.bytes) {
            let free = slots.iter().filter(|slot| !slot.leased);
            grow(free, ask, self.growth, false)
        } else {
            grow(slots.iter(), ask, self.growth, true)
        }
    }

    fn digest(&self) -> u64 {
        let digest = Digest::new().text(self.name());
        digest.word(self.growth.millionths().into()).finish()
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![("growth", self.growth.to_string())]
    }

    fn bound(&self, largest: usize, granule: usize) -> Option<usize> {
        self.growth.times(largest)?.checked_add(granule)
    }
}
