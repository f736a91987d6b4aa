//! Few slots that grow by a ratio: the default.

use collectives_core::error::Result;

use crate::digest::Digest;
use crate::growth::Growth;
use crate::policy::{self, Ask, Decision, Policy, SlotView};

/// The smallest free slot that is large enough, else a new one of
/// `max(request, growth x largest free slot)` in whole granules.
///
/// With growth 2 the slots never add up to more than four times the largest request and a granule,
/// which no rule that never frees can better. Leases that are live at once get slots beside each
/// other instead of ever larger ones: only free slots, which are too small then, drive growth. So
/// `n` leases live at once keep at most `n` times the bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct Geometric {
    growth: Growth,
}

impl Geometric {
    /// Grows by `growth`.
    ///
    /// # Errors
    ///
    /// [`Config`](collectives_core::error::ErrorKind::Config) unless `1 < growth <= 4`.
    pub fn new(growth: f64) -> Result<Self> {
        Growth::new(growth).map(|growth| Self { growth })
    }
}

impl Policy for Geometric {
    fn name(&self) -> &str {
        "geometric"
    }

    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
        fit_or_grow(slots, ask, self.growth)
    }

    fn digest(&self) -> u64 {
        let digest = Digest::new().text(self.name());
        digest.word(self.growth.millionths().into()).finish()
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        vec![("growth", self.growth.to_string())]
    }

    fn bound(&self, largest: usize, granule: usize) -> Option<usize> {
        Some(self.growth.worst_sum(largest).saturating_add(granule))
    }
}

/// The smallest free slot that is large enough, else one that is `growth` times the largest free.
pub(crate) fn fit_or_grow(slots: &[SlotView], ask: &Ask, growth: Growth) -> Decision {
    match policy::best_fit(slots, ask.bytes) {
        Some(index) => Decision::Hit(index),
        None => {
            let free = slots.iter().filter(|slot| !slot.leased);
            grow(free, ask, growth, false)
        }
    }
}

/// A slot for the request that is `growth` times the largest of `slots`, where that can be
/// expressed, in whole granules.
pub(crate) fn grow<'a>(
    slots: impl Iterator<Item = &'a SlotView>,
    ask: &Ask,
    growth: Growth,
    retire: bool,
) -> Decision {
    let largest = slots.map(|slot| slot.capacity).max().unwrap_or(0);
    let grown = growth.times(largest).unwrap_or(0);
    let capacity = ask
        .whole_granules(ask.bytes.max(grown))
        .or_else(|| ask.whole_granules(ask.bytes));
    match capacity {
        Some(capacity) => Decision::Grow { capacity, retire },
        None => Decision::Refuse,
    }
}
