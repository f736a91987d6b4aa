//! The slots of a pool as sizes, leases and claims, without memory: what requests would come to.
//!
//! A plan asks it of requests that may come, `reserve` before it spends anything, and a replay of
//! requests that came once. Its rules are those of the [`Pool`](crate::pool::Pool), and it has the
//! policy decide what the policy decides.

use collectives_core::error::Refusal;

use crate::options::{DomainMode, Options};
use crate::policy::{Ask, Policy, SlotView};
use crate::verdict::{self, Verdict};

pub(crate) use self::domain::{Domain, Key, Slot};
pub(crate) use self::kept::Kept;

mod domain;
mod kept;
mod room;

/// What decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    pub(crate) policy: &'a dyn Policy,
    pub(crate) options: &'a Options,
    pub(crate) granule: usize,
    pub(crate) overhead: usize,
}

/// What takes room beside the slots, and what else bounds it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outside {
    /// Windows that are no slots.
    pub(crate) windows: usize,
    /// Bytes of addresses for windows, where they are counted.
    pub(crate) addresses: Option<usize>,
    /// Mapped bytes that are left of a budget, if there is one.
    pub(crate) spare: Option<usize>,
}

/// Where a request is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) stream: u32,
    pub(crate) capture: Option<u32>,
}

/// What became of a request that was served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) lease: Lease,
    pub(crate) grown: bool,
}

/// The slot of a lease that is out, and where it was when the lease began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    generation: u64,
    domain: usize,
    index: usize,
}

/// Why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A rule refuses it.
    By(Refusal),
    /// It takes a slot more, which may not be made now.
    Miss,
    /// A budget has not so many bytes left for a slot of this capacity.
    Memory(usize),
}

impl Refused {
    /// Whether it takes the ordinary path, whatever is configured for a miss.
    pub(crate) const fn is_final(self) -> bool {
        matches!(
            self,
            Self::By(Refusal::OverCap { .. } | Refusal::Policy | Refusal::NoScratch)
        )
    }
}

/// All slots.
#[derive(Clone, Debug)]
pub(crate) struct Model<'a> {
    rules: Rules<'a>,
    outside: Outside,
    /// The first one is shared, and holds what was reserved.
    domains: Vec<Domain>,
    retired: Vec<Slot>,
    pub(crate) kept: Kept,
    made: u64,
    freed: u64,
    /// Whether a slot was an arena's.
    extended: bool,
    /// The capacity for want of whose bytes idle slots were given up last.
    pressed: Option<usize>,
}

const SHARED: usize = 0;

impl<'a> Model<'a> {
    /// No slot.
    pub(crate) fn new(rules: Rules<'a>) -> Self {
        Self::of(
            rules,
            Outside::default(),
            vec![Domain::new(Key::Shared)],
            Vec::new(),
        )
    }

    /// These slots, of which the first domain is shared.
    pub(crate) fn of(
        rules: Rules<'a>,
        outside: Outside,
        domains: Vec<Domain>,
        retired: Vec<Slot>,
    ) -> Self {
        let mut kept = Kept::new(rules.granule, rules.overhead);
        let mut made = 0;
        for slot in domains.iter().flat_map(Domain::slots).chain(&retired) {
            kept.add(slot);
            made = made.max(slot.generation);
        }
        Self {
            rules,
            outside,
            domains,
            retired,
            kept,
            made,
            freed: 0,
            extended: false,
            pressed: None,
        }
    }

    /// Serves a request, growing where that is allowed.
    pub(crate) fn serve(
        &mut self,
        bytes: usize,
        place: Place,
        may_grow: bool,
    ) -> Result<Served, Refused> {
        let domain = self.domain(place);
        let (index, grown) = match self.decide(domain, bytes).map_err(Refused::By)? {
            Verdict::Hit(index) => (index, false),
            Verdict::Grow { capacity, how } if may_grow => {
                (self.grow(domain, capacity, how)?, true)
            }
            Verdict::Grow { .. } => return Err(Refused::Miss),
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
    pub(crate) fn reserve(&mut self, bytes: usize, may_grow: bool) -> Result<bool, Refused> {
        let verdict = self.judge(self.domains[SHARED].views(), bytes);
        match verdict.map_err(Refused::By)? {
            Verdict::Hit(_) => Ok(false),
            Verdict::Grow { capacity, how } if may_grow => {
                self.grow(SHARED, capacity, how).map(|_| true)
            }
            Verdict::Grow { .. } => Err(Refused::Miss),
        }
    }

    /// Makes all of these hits, one after another and together; how many new slots that took, or why not
    /// a single one is made.
    pub(crate) fn reserve_all(
        &mut self,
        requests: &[usize],
        may_grow: bool,
    ) -> Result<usize, Refused> {
        let mut made = 0;
        for &bytes in requests {
            made += usize::from(self.reserve(bytes, may_grow)?);
        }
        self.keeps(requests).map(|()| made)
    }

    /// Whether none of the requests lost its slot to a later one for want of memory.
    pub(crate) fn keeps(&self, requests: &[usize]) -> Result<(), Refused> {
        let views = self.domains[SHARED].views();
        let hit = |&bytes: &usize| matches!(self.judge(views, bytes), Ok(Verdict::Hit(_)));
        match self.pressed {
            Some(capacity) if !requests.iter().all(hit) => Err(Refused::Memory(capacity)),
            _ => Ok(()),
        }
    }

    /// Ends a lease.
    pub(crate) fn release(&mut self, lease: Lease) {
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
    pub(crate) fn give_up(&mut self) {
        self.domains.truncate(1);
        self.domains[SHARED].take();
        self.retired.clear();
        self.kept.clear();
    }

    /// Slots retired since this was last asked.
    pub(crate) fn take_freed(&mut self) -> u64 {
        std::mem::take(&mut self.freed)
    }

    /// Whether a slot was made that maps bytes which may be mapped again.
    pub(crate) const fn has_extended(&self) -> bool {
        self.extended
    }

    /// The capacity of every slot whose bytes no newer one maps: retired ones, those of streams and
    /// graphs, and those that are shared.
    pub(crate) fn capacities(&self) -> Vec<usize> {
        let newest = |slot: &&Slot| {
            let newer =
                |other: &Slot| other.arena == slot.arena && other.generation > slot.generation;
            slot.arena.is_none() || !self.slots().any(newer)
        };
        let slots = self.slots().filter(newest);
        slots.map(|slot| slot.capacity).collect()
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        let (shared, others) = self.domains.split_at(1);
        let others = others.iter().flat_map(Domain::slots);
        let shared = shared.iter().flat_map(Domain::slots);
        self.retired.iter().chain(others).chain(shared)
    }

    fn domain(&mut self, place: Place) -> usize {
        let key = match (self.rules.options.domain, place.capture) {
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
    fn decide(&mut self, domain: usize, bytes: usize) -> Result<Verdict, Refusal> {
        let verdict = self.judge(self.domains[domain].views(), bytes)?;
        if domain != SHARED
            && matches!(verdict, Verdict::Grow { .. })
            && let Ok(Verdict::Hit(reserved)) = self.judge(self.domains[SHARED].views(), bytes)
        {
            let slot = self.domains[SHARED].remove(reserved);
            return Ok(Verdict::Hit(self.domains[domain].push(slot)));
        }
        Ok(verdict)
    }

    fn judge(&self, views: &[SlotView], bytes: usize) -> Result<Verdict, Refusal> {
        let ask = Ask {
            bytes,
            granule: self.rules.granule,
            overhead: self.rules.overhead,
        };
        verdict::judge(self.rules.policy, self.rules.options.cap, views, &ask)
    }
}
