//! What a pool should be after every step: slots, counts and mapped bytes, in plain lists.
//!
//! The policy decides here too, because it is a pure function with tests of its own. Everything that
//! the pool adds is written down once more: who is lent what, what retires, what is freed when, what
//! becomes of a miss where a rank has no memory or cannot register, and what a budget holds.

use std::sync::Arc;

use collectives_alloc::policy::{Ask, Decision, Policy, SlotView};
use collectives_core::stats::Stats;

use crate::plan::{Budgets, Fault, RANKS};
use collectives_testkit::decorators::Point;

/// One slot, or one generation of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    generation: u64,
    capacity: usize,
    leased: bool,
    graphs: usize,
    replays: u64,
    arena: Option<u64>,
}

impl Slot {
    const fn is_held(&self) -> bool {
        self.leased || self.graphs > 0
    }
}

/// Why a request that misses fails, on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// This rank has no memory for this capacity.
    Memory { rank: usize, capacity: usize },
    /// A rank cannot register.
    Registration,
}

/// What a trim comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trim {
    pub(crate) slots: usize,
    pub(crate) mapped_bytes: usize,
    pub(crate) held_bytes: usize,
}

/// Counts that must come true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    requests: u64,
    hits: u64,
    growths: u64,
    refusals: u64,
    busy: u64,
    registrations: u64,
    deregistrations: u64,
    replays: u64,
}

/// A pool.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    policy: Arc<dyn Policy>,
    granule: usize,
    live: Vec<Slot>,
    retired: Vec<Slot>,
    generations: u64,
    counts: Counts,
    fault: Option<Fault>,
    calls: u64,
}

impl Model {
    pub(crate) fn new(policy: Box<dyn Policy>, granule: usize, fault: Option<Fault>) -> Self {
        Self {
            policy: policy.into(),
            granule,
            live: Vec::new(),
            retired: Vec::new(),
            generations: 0,
            counts: Counts::default(),
            fault,
            calls: 0,
        }
    }

    /// A request that is served, by this generation, or fails. Nothing is lent yet.
    pub(crate) fn request(&mut self, bytes: usize, budgets: &Budgets) -> Result<u64, Failed> {
        self.counts.requests += 1;
        if let Decision::Hit(index) = self.decide(bytes) {
            self.counts.hits += 1;
            return Ok(self.live[index].generation);
        }
        let busy = |slot: &Slot| slot.leased && slot.capacity >= bytes;
        self.counts.busy += u64::from(self.live.iter().any(busy));
        let grown = self.grow(bytes, budgets);
        match grown {
            Ok(_) => self.counts.growths += 1,
            Err(_) => self.counts.refusals += 1,
        }
        grown
    }

    /// As a request, of `reserve`, for which nothing is spent where a budget is too small.
    pub(crate) fn reserve(&mut self, bytes: usize, budgets: &Budgets) -> Result<(), Failed> {
        if let Decision::Hit(_) = self.decide(bytes) {
            return Ok(());
        }
        let mut trial = self.clone();
        trial.fault = None;
        trial.grow(bytes, budgets)?;
        self.grow(bytes, budgets).map(drop)
    }

    /// Lends a generation, or ends its lease.
    pub(crate) fn lend(&mut self, generation: u64, leased: bool) {
        self.of(generation).leased = leased;
    }

    /// A graph claims a generation, or gives it up.
    pub(crate) fn claim(&mut self, generation: u64, claims: bool) {
        let graphs = &mut self.of(generation).graphs;
        *graphs = if claims { *graphs + 1 } else { *graphs - 1 };
    }

    /// A graph that claimed a generation is launched.
    pub(crate) fn replay(&mut self, generation: u64) {
        self.counts.replays += 1;
        self.of(generation).replays += 1;
    }

    pub(crate) fn trim(&mut self) -> Trim {
        let before = self.mapped();
        let free: Vec<_> = self.everything().filter(|slot| !slot.is_held()).collect();
        self.free(&free);
        let held_bytes = self.mapped();
        Trim {
            slots: free.len(),
            mapped_bytes: before - held_bytes,
            held_bytes,
        }
    }

    /// Bytes that the device lost: those of an arena once, as many as its newest generation maps.
    pub(crate) fn mapped(&self) -> usize {
        let newest = |slot: &Slot| {
            let newer =
                |other: Slot| other.arena == slot.arena && other.generation > slot.generation;
            slot.arena.is_none() || !self.everything().any(newer)
        };
        let counted = self.everything().filter(newest);
        counted.map(|slot| self.mapping(slot.capacity)).sum()
    }

    /// How a pool differs from this.
    pub(crate) fn difference(&self, stats: &Stats) -> Option<String> {
        let counts = Counts {
            requests: stats.requests,
            hits: stats.hits,
            growths: stats.growths,
            refusals: stats.refusals,
            busy: stats.busy,
            registrations: stats.registrations,
            deregistrations: stats.deregistrations,
            replays: stats.replays,
        };
        if counts != self.counts {
            return Some(format!("{counts:?}, and the model {:?}", self.counts));
        }
        let mut expected: Vec<_> = self.everything().collect();
        expected.sort_by_key(|slot| slot.generation);
        let live = |generation| self.live.iter().any(|slot| slot.generation == generation);
        let alike = stats.slots.len() == expected.len()
            && stats.slots.iter().zip(&expected).all(|(found, slot)| {
                found.generation == slot.generation
                    && found.capacity == slot.capacity
                    && found.mapped == self.mapping(slot.capacity)
                    && found.leased == slot.leased
                    && found.replays == slot.replays
                    && found.retired != live(slot.generation)
                    && found.arena == slot.arena
            });
        (!alike).then(|| format!("{:?}, and the model {expected:?}", stats.slots))
    }

    fn decide(&self, bytes: usize) -> Decision {
        let view = |slot: &Slot| SlotView {
            capacity: slot.capacity,
            leased: slot.leased,
        };
        let views: Vec<_> = self.live.iter().map(view).collect();
        let (granule, overhead) = (self.granule, 0);
        self.policy.decide(
            &views,
            &Ask {
                bytes,
                granule,
                overhead,
            },
        )
    }

    fn grow(&mut self, bytes: usize, budgets: &Budgets) -> Result<u64, Failed> {
        let (capacity, replaces, base, extends) = match self.decide(bytes) {
            Decision::Grow { capacity, retire } => (capacity, retire, None, false),
            Decision::Extend { slot, capacity } => {
                (capacity, false, slot.map(|index| self.live[index]), true)
            }
            other => panic!("{other:?} is no growth"),
        };
        let is_base = |slot: &Slot| base.is_some_and(|base| base.generation == slot.generation);
        // What is retired goes first, and so does what the new slot replaces.
        let mut going = self.retired.clone();
        if replaces {
            going.extend(&self.live);
        }
        going.retain(|slot| !slot.is_held());
        self.free(&going);
        let added = self.mapping(capacity) - base.map_or(0, |base| self.mapping(base.capacity));
        if let Err(failed) = self.allocate(capacity, added, budgets) {
            let idle = self.everything();
            let idle: Vec<_> = idle
                .filter(|slot| !slot.is_held() && !is_base(slot))
                .collect();
            if idle.is_empty() {
                return Err(failed);
            }
            self.free(&idle);
            self.allocate(capacity, added, budgets)?;
        }
        if self.fails(Point::Register, None) {
            return Err(Failed::Registration);
        }
        self.counts.registrations += 1;
        self.generations += 1;
        let generation = self.generations;
        if replaces {
            self.retired.append(&mut self.live);
        }
        if let Some(index) = self.live.iter().position(is_base) {
            self.retired.push(self.live.remove(index));
        }
        let first = base.map_or(Some(generation), |base| base.arena);
        self.live.push(Slot {
            generation,
            capacity,
            leased: false,
            graphs: 0,
            replays: 0,
            arena: extends.then_some(first).flatten(),
        });
        Ok(generation)
    }

    /// Asks every rank for memory; the first that has none is named.
    fn allocate(&mut self, capacity: usize, added: usize, budgets: &Budgets) -> Result<(), Failed> {
        let spent = self.mapped() + budgets.others;
        let mut outcome = Ok(());
        for rank in 0..RANKS {
            let affords = spent + added <= budgets.total[rank];
            if (!affords || self.fails(Point::Allocate, Some(rank))) && outcome.is_ok() {
                outcome = Err(Failed::Memory { rank, capacity });
            }
        }
        outcome
    }

    /// Whether the call that is made now, on this rank or on all, is one that was planned to fail.
    fn fails(&mut self, point: Point, rank: Option<usize>) -> bool {
        let Some(fault) = self.fault else {
            return false;
        };
        if fault.point != point || rank.is_some_and(|rank| rank != fault.rank) {
            return false;
        }
        self.calls += 1;
        (fault.k..fault.k + fault.times).contains(&self.calls)
    }

    /// Frees slots, ascending. A generation comes back when the one that extended it goes.
    fn free(&mut self, going: &[Slot]) {
        let mut going = going.to_vec();
        going.sort_by_key(|slot| slot.generation);
        for slot in going {
            self.counts.deregistrations += 1;
            let same = |other: &Slot| other.generation == slot.generation;
            if let Some(index) = self.retired.iter().position(same) {
                self.retired.remove(index);
                continue;
            }
            self.live.retain(|other| !same(other));
            let kin = |other: &&Slot| slot.arena.is_some() && other.arena == slot.arena;
            let before = self
                .retired
                .iter()
                .filter(kin)
                .max_by_key(|other| other.generation);
            if let Some(before) = before.copied() {
                self.retired
                    .retain(|other| other.generation != before.generation);
                self.live.push(before);
            }
        }
    }

    fn mapping(&self, capacity: usize) -> usize {
        capacity.next_multiple_of(self.granule)
    }

    fn everything(&self) -> impl Iterator<Item = Slot> + '_ {
        self.live.iter().chain(&self.retired).copied()
    }

    fn of(&mut self, generation: u64) -> &mut Slot {
        let mut all = self.live.iter_mut().chain(&mut self.retired);
        let slot = all.find(|slot| slot.generation == generation);
        slot.expect("what is lent or claimed stays")
    }
}
