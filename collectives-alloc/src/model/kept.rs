//! Bytes that are kept, counted as slots come and go.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::domain::Slot;

/// Sums of the slots there are; of an arena, its newest generation, which maps the bytes of all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    slots: usize,
    capacity: u128,
    mapped: u128,
    arenas: HashMap<u64, BTreeMap<u64, usize>>,
    granule: usize,
    overhead: usize,
}

impl Kept {
    pub(super) fn new(granule: usize, overhead: usize) -> Self {
        Self {
            granule: granule.max(1),
            overhead,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, slot: &Slot) {
        self.slots += 1;
        self.change(slot, |generations| {
            generations.insert(slot.generation, slot.capacity);
        });
        if slot.arena.is_none() {
            self.capacity += slot.capacity as u128;
            self.mapped += self.mapped(slot.capacity) as u128;
        }
    }

    pub(super) fn remove(&mut self, slot: &Slot) {
        self.slots -= 1;
        self.change(slot, |generations| {
            generations.remove(&slot.generation);
        });
        if slot.arena.is_none() {
            self.capacity -= slot.capacity as u128;
            self.mapped -= self.mapped(slot.capacity) as u128;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.granule, self.overhead);
    }

    /// Slots there are.
    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    /// Capacities and mapped bytes.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let clamped = |sum: u128| usize::try_from(sum).unwrap_or(usize::MAX);
        (clamped(self.capacity), clamped(self.mapped))
    }

    /// Mapped bytes there would be without some of the slots.
    pub(super) fn mapped_without(&self, going: &[Slot]) -> usize {
        let mut mapped = self.mapped;
        let mut touched = HashSet::new();
        for slot in going {
            match slot.arena {
                Some(arena) => drop(touched.insert(arena)),
                None => mapped -= self.mapped(slot.capacity) as u128,
            }
        }
        let going: HashSet<_> = going.iter().map(|slot| slot.generation).collect();
        for generations in touched.iter().filter_map(|arena| self.arenas.get(arena)) {
            let mut newest = generations.iter().rev();
            let of = |found: Option<(_, &usize)>| {
                found.map_or(0, |(_, &capacity)| self.mapped(capacity) as u128)
            };
            mapped -= of(newest.clone().next());
            mapped += of(newest.find(|(generation, _)| !going.contains(generation)));
        }
        usize::try_from(mapped).unwrap_or(usize::MAX)
    }

    /// As [`CommInfo::mapped`](collectives_core::communicator::CommInfo::mapped).
    pub(super) fn mapped(&self, capacity: usize) -> usize {
        capacity
            .saturating_add(self.overhead)
            .checked_next_multiple_of(self.granule)
            .unwrap_or(usize::MAX)
    }

    /// Changes the generations of the slot's arena, if it is of one, and counts the newest.
    fn change(&mut self, slot: &Slot, change: impl FnOnce(&mut BTreeMap<u64, usize>)) {
        let Some(arena) = slot.arena else { return };
        let generations = self.arenas.entry(arena).or_default();
        let newest = |generations: &BTreeMap<u64, usize>| {
            let newest = generations.last_key_value();
            newest.map(|(_, &capacity)| capacity)
        };
        let before = newest(generations);
        change(generations);
        let after = newest(generations);
        if let Some(before) = before {
            self.capacity -= before as u128;
            self.mapped -= self.mapped(before) as u128;
        }
        if let Some(after) = after {
            self.capacity += after as u128;
            self.mapped += self.mapped(after) as u128;
        }
    }
}
