//! Pricing a workload without spending anything.

use collectives_core::communicator::CommInfo;
use collectives_core::error::{Error, ErrorKind, Misuse, Refusal, Result};
use collectives_core::scratch::{Plan, Request};

use crate::policy::{Ask, Decision, SlotView};
use crate::pool::slot::Slot;
use crate::pool::table::SHARED;
use crate::pool::{How, Pool, Verdict};

/// What a simulation came to.
#[derive(Debug)]
pub(super) struct Simulated {
    pub(super) plan: Plan,
    /// Why the first request that would not be staged is refused.
    pub(super) refusal: Option<Error>,
}

impl Pool {
    /// Serves the requests one after another on copies of what the policy sees.
    pub(super) fn simulate(&self, info: &CommInfo, requests: &[Request]) -> Result<Simulated> {
        let shared = &self.table.domains()[SHARED];
        let view = |slot: &Slot| SlotView {
            capacity: slot.capacity,
            leased: slot.is_leased(),
        };
        let mut views: Vec<_> = shared.live().iter().map(view).collect();
        // Slots that stay although a policy retires them, because somebody holds them.
        let mut kept: Vec<usize> = Vec::new();
        let mut unretired: Vec<_> = shared.live().iter().collect();
        let mut plan = Plan::default();
        let mut refusal = None;
        for request in requests {
            if request.bytes == 0 {
                return Err(Misuse::ZeroBytes.into());
            }
            let ask = Ask {
                bytes: request.bytes,
                granule: info.granule,
                overhead: info.overhead,
            };
            match self.judge(&views, &ask) {
                Ok(Verdict::Hit(_)) => {}
                Ok(Verdict::Grow { capacity, how }) => {
                    match how {
                        How::Beside | How::Extending(None) => {}
                        How::Replacing => {
                            let held = |slot: &&Slot| slot.is_leased() || slot.is_claimed();
                            let held = unretired.drain(..).filter(held);
                            kept.extend(held.map(|slot| slot.capacity));
                            views.clear();
                        }
                        // Its bytes are there once, whoever holds the generation before.
                        How::Extending(Some(index)) => {
                            views.remove(index);
                            if index < unretired.len() {
                                unretired.remove(index);
                            }
                        }
                    }
                    views.push(SlotView {
                        capacity,
                        leased: false,
                    });
                    plan.registrations += 1;
                }
                Err(error) => {
                    plan.refused += 1;
                    refusal.get_or_insert(error);
                }
            }
        }
        let elsewhere = self.table.domains()[SHARED + 1..]
            .iter()
            .flat_map(|slots| slots.live());
        let retired = self.table.retired().iter();
        let retired = retired.filter(|slot| !self.table.maps_again(slot));
        kept.extend(retired.chain(elsewhere).map(|slot| slot.capacity));
        kept.extend(views.iter().map(|view| view.capacity));
        let sum = |sizes: &mut dyn Iterator<Item = usize>| sizes.fold(0, usize::saturating_add);
        plan.capacity_bytes = sum(&mut kept.iter().copied());
        plan.mapped_bytes = sum(&mut kept.iter().map(|&capacity| info.mapped(capacity)));
        plan.capacities = kept;
        Ok(Simulated { plan, refusal })
    }

    /// The policy's answer, where the cap and the policy's own contract allow it.
    #[inline]
    pub(super) fn judge(&self, views: &[SlotView], ask: &Ask) -> Result<Verdict> {
        let refused = |why| {
            Error::new(ErrorKind::Refused {
                bytes: ask.bytes,
                why,
            })
        };
        if let Some(cap) = self.options.cap
            && ask.bytes > cap
        {
            return Err(refused(Refusal::OverCap { cap }));
        }
        match self.policy.decide(views, ask) {
            Decision::Hit(index)
                if views
                    .get(index)
                    .is_some_and(|slot| !slot.leased && slot.capacity >= ask.bytes) =>
            {
                Ok(Verdict::Hit(index))
            }
            Decision::Grow { capacity, retire } if capacity >= ask.bytes => {
                let how = if retire { How::Replacing } else { How::Beside };
                Ok(Verdict::Grow { capacity, how })
            }
            Decision::Extend { slot, capacity }
                if capacity >= ask.bytes && extends(views, slot, capacity) =>
            {
                let how = How::Extending(slot);
                Ok(Verdict::Grow { capacity, how })
            }
            Decision::Refuse => Err(refused(Refusal::Policy)),
            decision => {
                let policy = self.policy.name();
                tracing::error!(
                    policy,
                    ?decision,
                    bytes = ask.bytes,
                    "the policy's answer is void"
                );
                Err(refused(Refusal::Policy))
            }
        }
    }
}

/// Whether the slot, if there is one, is free and smaller.
fn extends(views: &[SlotView], slot: Option<usize>, capacity: usize) -> bool {
    let free = |view: &SlotView| !view.leased && view.capacity < capacity;
    slot.is_none_or(|index| views.get(index).is_some_and(free))
}
