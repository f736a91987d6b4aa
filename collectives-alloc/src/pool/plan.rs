//! Pricing a workload without spending anything.

use collectives_core::communicator::CommInfo;
use collectives_core::error::{Error, ErrorKind, Misuse, Refusal, Result};
use collectives_core::scratch::{Plan, Request};

use crate::policy::{Ask, Decision, SlotView};
use crate::pool::table::SHARED;
use crate::pool::{Pool, Verdict};

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
        let view = |slot: &super::slot::Slot| SlotView {
            capacity: slot.capacity,
            leased: slot.is_leased(),
        };
        let mut views: Vec<_> = shared.live().iter().map(view).collect();
        // Slots that stay although a policy retires them, because somebody holds them.
        let mut kept: Vec<usize> = Vec::new();
        let mut unretired = shared.live().len();
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
                Ok(Verdict::Grow { capacity, retire }) => {
                    if retire {
                        let held = shared.live()[..unretired]
                            .iter()
                            .filter(|slot| slot.is_leased() || slot.is_claimed());
                        kept.extend(held.map(|slot| slot.capacity));
                        unretired = 0;
                        views.clear();
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
        let elsewhere = self.table.retired().iter().chain(elsewhere);
        kept.extend(elsewhere.map(|slot| slot.capacity));
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
                Ok(Verdict::Grow { capacity, retire })
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
