//! One piece of memory that grows in place of being replaced.

use collectives_core::error::Result;

use crate::digest::Digest;
use crate::growth::Growth;
use crate::policy::{self, Ask, Decision, Policy, SlotView};

/// Memory that a larger request is appended to: all of it is mapped again at fresh addresses, as
/// the next *generation*, and graphs keep the generation they captured.
///
/// The bytes exist once, so that the device loses `growth` times the largest request and a granule,
/// whatever graphs own. A generation costs addresses, which are plenty but not endless: the pool
/// refuses one for which there are none left, by
/// [`OverAddresses`](collectives_core::error::Refusal::OverAddresses).
///
/// A request that comes while every slot is leased begins an arena of its own beside the others.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    growth: Growth,
}

impl Arena {
    /// The growth factor unless configured: an eighth more than what the last generation held.
    pub const DEFAULT_GROWTH: f64 = 1.125;

    /// Grows by `growth`, where 1 means by no more than what is missing.
    ///
    /// # Errors
    ///
    /// [`Config`](collectives_core::error::ErrorKind::Config) unless `1 <= growth <= 4`.
    pub fn new(growth: f64) -> Result<Self> {
        Growth::or_none(growth).map(|growth| Self { growth })
    }
}

impl Policy for Arena {
    fn name(&self) -> &str {
        "arena"
    }

    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
        if let Some(index) = policy::best_fit(slots, ask.bytes) {
            return Decision::Hit(index);
        }
        let slot = largest_free(slots);
        let old = slot.map_or(0, |index| slots[index].capacity);
        let grown = self.growth.times(old).unwrap_or(0);
        let capacity = ask
            .whole_granules(ask.bytes.max(grown))
            .or_else(|| ask.whole_granules(ask.bytes));
        match capacity {
            Some(capacity) => Decision::Extend { slot, capacity },
            None => Decision::Refuse,
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

/// The largest free slot; of equal ones, the oldest.
fn largest_free(slots: &[SlotView]) -> Option<usize> {
    let free = slots.iter().enumerate().filter(|(_, slot)| !slot.leased);
    let (index, _) = free.rev().max_by_key(|(_, slot)| slot.capacity)?;
    Some(index)
}
