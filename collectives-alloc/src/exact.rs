//! One slot per size: what frameworks do today.

use crate::digest::Digest;
use crate::policy::{Ask, Decision, Policy, SlotView};

/// A slot of exactly the request, reused only for requests of exactly that size.
///
/// Its slots grow without a bound under changing sizes. It is the oracle that tests compare other
/// policies with.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Exact;

impl Exact {
    /// The policy, which has no parameters.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl Policy for Exact {
    fn name(&self) -> &str {
        "exact"
    }

    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
        let same = |slot: &SlotView| !slot.leased && slot.capacity == ask.bytes;
        match slots.iter().position(same) {
            Some(index) => Decision::Hit(index),
            None if ask.whole_granules(ask.bytes).is_none() => Decision::Refuse,
            None => Decision::Grow {
                capacity: ask.bytes,
                retire: false,
            },
        }
    }

    fn digest(&self) -> u64 {
        Digest::new().text(self.name()).finish()
    }

    fn bound(&self, _largest: usize, _granule: usize) -> Option<usize> {
        None
    }
}
