//! Sized from the configuration before the first use.

use collectives_core::error::Result;

use crate::bytes::ByteSize;
use crate::digest::Digest;
use crate::geometric;
use crate::growth::Growth;
use crate::policy::{Ask, Decision, Policy, SlotView};

/// The first slot holds `bytes`, the largest request the configuration allows, so that no later
/// request misses; where that was too low, it grows as
/// [`Geometric`](crate::geometric::Geometric) does.
///
/// A bound that is right costs one slot; one that is too low never costs more than growing from
/// nothing would.
#[derive(Clone, Copy, Debug)]
pub struct Reserved {
    bytes: usize,
    growth: Growth,
}

impl Reserved {
    /// Expects no request above `bytes`, and grows by `growth` if one comes.
    ///
    /// # Errors
    ///
    /// [`Config`](collectives_core::error::ErrorKind::Config) unless `1 < growth <= 4`.
    pub fn new(bytes: usize, growth: f64) -> Result<Self> {
        Growth::new(growth).map(|growth| Self { bytes, growth })
    }
}

impl Policy for Reserved {
    fn name(&self) -> &str {
        "reserved"
    }

    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
        if !slots.is_empty() {
            return geometric::fit_or_grow(slots, ask, self.growth);
        }
        match ask.whole_granules(ask.bytes.max(self.bytes)) {
            Some(capacity) => Decision::Grow {
                capacity,
                retire: false,
            },
            None => Decision::Refuse,
        }
    }

    fn digest(&self) -> u64 {
        let digest = Digest::new().text(self.name()).size(self.bytes);
        digest.word(self.growth.millionths().into()).finish()
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![
            ("max_request", ByteSize::new(self.bytes).to_string()),
            ("growth", self.growth.to_string()),
        ]
    }

    fn bound(&self, largest: usize, granule: usize) -> Option<usize> {
        let slots = if largest <= self.bytes {
            self.bytes
        } else {
            let grown = self.growth.worst_sum(largest);
            // The first slot takes the place of all smaller ones. Both terms are rounded, in
            // opposite directions, so one byte more makes the difference a bound.
            grown.saturating_sub(self.growth.share(self.bytes).saturating_sub(1))
        };
        Some(slots.saturating_add(granule))
    }
}
