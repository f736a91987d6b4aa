//! Bugs in a policy.

use collectives_alloc::policy::{Ask, Decision, Policy, SlotView};

use crate::planted::Planted;

/// The policy, or the one that the bug makes of it.
pub(crate) fn bugged(bug: Option<Planted>, rank: usize, inner: Box<dyn Policy>) -> Box<dyn Policy> {
    match bug {
        Some(
            bug @ (Planted::NeverGrowsAhead
            | Planted::GrowsEightfold
            | Planted::ReservesNothing
            | Planted::GranuleTooMany
            | Planted::NeverHits
            | Planted::WorstFit
            | Planted::ArenaBeginsAnew
            | Planted::LocalSizes),
        ) => Box::new(BuggedPolicy { bug, rank, inner }),
        _ => inner,
    }
}

#[derive(Debug)]
struct BuggedPolicy {
    bug: Planted,
    rank: usize,
    inner: Box<dyn Policy>,
}

impl Policy for BuggedPolicy {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
        let decision = self.inner.decide(slots, ask);
        let grow = |capacity, retire| Decision::Grow { capacity, retire };
        match (self.bug, decision) {
            (Planted::NeverGrowsAhead, _) => {
                // Reused for the same size only, too.
                let same = |slot: &SlotView| !slot.leased && slot.capacity == ask.bytes;
                match slots.iter().position(same) {
                    Some(index) => Decision::Hit(index),
                    None => grow(ask.bytes, false),
                }
            }
            (Planted::GrowsEightfold, Decision::Grow { capacity, retire }) => {
                grow(capacity * 8, retire)
            }
            (Planted::ReservesNothing, Decision::Grow { retire, .. }) => grow(ask.bytes, retire),
            (Planted::GranuleTooMany, Decision::Grow { capacity, retire }) => {
                grow(capacity + ask.granule, retire)
            }
            (Planted::NeverHits, Decision::Hit(_)) => grow(ask.bytes, true),
            (Planted::WorstFit, Decision::Hit(best)) => {
                let free = slots.iter().enumerate().filter(|(_, slot)| !slot.leased);
                let worst = free.max_by_key(|(_, slot)| slot.capacity);
                Decision::Hit(worst.map_or(best, |(index, _)| index))
            }
            (Planted::ArenaBeginsAnew, Decision::Extend { capacity, .. }) => Decision::Extend {
                slot: None,
                capacity,
            },
            (Planted::LocalSizes, Decision::Grow { capacity, retire }) => {
                grow(capacity + self.rank * ask.granule, retire)
            }
            (_, decision) => decision,
        }
    }

    fn digest(&self) -> u64 {
        self.inner.digest()
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        self.inner.parameters()
    }

    fn bound(&self, largest: usize, granule: usize) -> Option<usize> {
        self.inner.bound(largest, granule)
    }
}
