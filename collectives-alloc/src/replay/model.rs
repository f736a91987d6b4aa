//! The slots of a pool as a replay models them: sizes, leases and claims.

use super::Replay;
use super::domain::{Domain, Key, Slot};
use super::kept::Kept;
use crate::options::DomainMode;
use crate::policy::{Ask, Decision, SlotView};

/// Where a request is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) stream: u32,
    pub(super) capture: Option<u32>,
}

/// What became of a request that was served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) lease: Lease,
    pub(super) grown: bool,
}

/// The slot of a lease that is out, and where it was when the lease began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    generation: u64,
    domain: usize,
    index: usize,
}

/// Why a request was not served.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// Cap or policy: the ordinary path, whatever is configured.
    ByRule,
    /// Limit, seal or capture: as configured.
    Miss,
}

/// A new slot, and what it does to those there are.
#[derive(Clone, Copy, Debug)]
pub(super) enum New {
    Beside(usize),
    Replacing(usize),
    Extending(Option<usize>, usize),
}

/// All slots.
#[derive(Debug)]
pub(super) struct Model<'a> {
    pub(super) replay: &'a Replay<'a>,
    /// The first one is shared, and holds what was reserved.
    pub(super) domains: Vec<Domain>,
    pub(super) retired: Vec<Slot>,
    pub(super) kept: Kept,
    pub(super) made: u64,
    pub(super) freed: u64,
}

const SHARED: usize = 0;

impl<'a> Model<'a> {
    pub(super) fn new(replay: &'a Replay<'a>) -> Self {
        Self {
            replay,
            domains: vec![Domain::new(Key::Shared)],
            retired: Vec::new(),
            kept: Kept::new(replay.granule, replay.overhead),
            made: 0,
            freed: 0,
        }
    }

    /// Serves a request, growing where that is allowed.
    pub(super) fn serve(
        &mut self,
        bytes: usize,
        place: Place,
        may_grow: bool,
    ) -> Result<Served, Refused> {
        let domain = self.domain(place);
        let (index, grown) = match self.decide(domain, bytes)? {
            Decision::Hit(index) => (index, false),
            decision => match New::of(decision) {
                Some(new) if may_grow => (self.grow(domain, new)?, true),
                _ => return Err(Refused::Miss),
            },
        };
        let generation = self.domains[domain].lease(index, place.capture.is_some());
        let lease = Lease {
            generation,
            domain,
            index,
        };
        Ok(Served { lease, grown })
    }

    /// Makes a request a hit; whether that took a new slot.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<bool, Refused> {
        let decision = self.judge(self.domains[SHARED].views(), bytes)?;
        match New::of(decision) {
            Some(new) => self.grow(SHARED, new).map(|_| true),
            None => Ok(false),
        }
    }

    /// Whether cap and policy serve all of these, one after another.
    pub(super) fn would_serve(&self, requests: &[usize]) -> bool {
        let mut views = self.domains[SHARED].views().to_vec();
        requests
            .iter()
            .all(|&bytes| match self.judge(&views, bytes) {
                Ok(decision) => {
                    if let Some(new) = New::of(decision) {
                        match new {
                            New::Replacing(_) => views.clear(),
                            New::Extending(Some(index), _) => drop(views.remove(index)),
                            New::Beside(_) | New::Extending(None, _) => {}
                        }
                        views.push(SlotView {
                            capacity: new.capacity(),
                            leased: false,
                        });
                    }
                    true
                }
                Err(_) => false,
            })
    }

    /// Ends a lease.
    pub(super) fn release(&mut self, lease: Lease) {
        let Lease {
            generation,
            domain,
            index,
        } = lease;
        let there = self.domains.get_mut(domain);
        if there.is_some_and(|there| there.release(generation, index)) {
            return;
        }
        let mut others = self.domains.iter_mut();
        if others.any(|domain| domain.release(generation, index)) {
            return;
        }
        let mut retired = self.retired.iter_mut();
        if let Some(slot) = retired.find(|slot| slot.generation == generation) {
            slot.leased = false;
        }
    }

    /// Leaves everything to whoever still holds it.
    pub(super) fn give_up(&mut self) {
        self.domains.truncate(1);
        self.domains[SHARED].take();
        self.retired.clear();
        self.kept.clear();
    }

    /// Slots retired since this was last asked.
    pub(super) fn take_freed(&mut self) -> u64 {
        std::mem::take(&mut self.freed)
    }

    fn domain(&mut self, place: Place) -> usize {
        let key = match (self.replay.options.domain, place.capture) {
            (DomainMode::Shared, _) | (DomainMode::Graph, None) => return SHARED,
            (DomainMode::Stream, _) => Key::Stream(place.stream),
            (DomainMode::Graph, Some(capture)) => Key::Graph(capture),
        };
        let known = self.domains.iter().position(|known| known.key == key);
        known.unwrap_or_else(|| {
            self.domains.push(Domain::new(key));
            self.domains.len() - 1
        })
    }

    /// The decision, after taking a reserved slot over where that serves.
    fn decide(&mut self, domain: usize, bytes: usize) -> Result<Decision, Refused> {
        let decision = self.judge(self.domains[domain].views(), bytes)?;
        if domain != SHARED
            && New::of(decision).is_some()
            && let Ok(Decision::Hit(reserved)) = self.judge(self.domains[SHARED].views(), bytes)
        {
            let slot = self.domains[SHARED].remove(reserved);
            return Ok(Decision::Hit(self.domains[domain].push(slot)));
        }
        Ok(decision)
    }

    /// The policy's answer, where the cap and the policy's own contract allow it.
    fn judge(&self, views: &[SlotView], bytes: usize) -> Result<Decision, Refused> {
        if self.replay.options.cap.is_some_and(|cap| bytes > cap) {
            return Err(Refused::ByRule);
        }
        let ask = Ask {
            bytes,
            granule: self.replay.granule,
            overhead: self.replay.overhead,
        };
        let decision = self.replay.policy.decide(views, &ask);
        let keeps_contract = match decision {
            Decision::Hit(index) => views
                .get(index)
                .is_some_and(|slot| !slot.leased && slot.capacity >= bytes),
            Decision::Grow { capacity, .. } => capacity >= bytes,
            Decision::Extend { slot, capacity } => {
                let smaller = |slot: &SlotView| !slot.leased && slot.capacity < capacity;
                let free = |index| views.get(index).is_some_and(smaller);
                capacity >= bytes && slot.is_none_or(free)
            }
            Decision::Refuse => false,
        };
        keeps_contract.then_some(decision).ok_or(Refused::ByRule)
    }
}

impl New {
    /// What a decision makes, if it makes something.
    fn of(decision: Decision) -> Option<Self> {
        match decision {
            Decision::Grow { capacity, retire } if retire => Some(Self::Replacing(capacity)),
            Decision::Grow { capacity, .. } => Some(Self::Beside(capacity)),
            Decision::Extend { slot, capacity } => Some(Self::Extending(slot, capacity)),
            Decision::Hit(_) | Decision::Refuse => None,
        }
    }

    pub(super) const fn capacity(self) -> usize {
        match self {
            Self::Beside(capacity) | Self::Replacing(capacity) | Self::Extending(_, capacity) => {
                capacity
            }
        }
    }
}
