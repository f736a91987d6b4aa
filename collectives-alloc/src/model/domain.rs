//! The slots of one domain, beside them as the policy sees them.

use crate::policy::SlotView;

/// Which requests a domain serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Shared,
    Stream(u32),
    Graph(u32),
}

/// A slot without its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) generation: u64,
    pub(crate) capacity: usize,
    pub(crate) leased: bool,
    /// Whether something else than a lease holds it, as a graph does.
    pub(crate) claimed: bool,
    /// The first generation of its arena.
    pub(crate) arena: Option<u64>,
}

/// Slots in the order in which they came, and what a policy is told of each, so that no request makes
/// a list of all.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) key: Key,
    slots: Vec<Slot>,
    views: Vec<SlotView>,
}

impl Slot {
    pub(super) const fn is_held(&self) -> bool {
        self.leased || self.claimed
    }

    const fn view(&self) -> SlotView {
        SlotView {
            capacity: self.capacity,
            leased: self.leased,
        }
    }
}

impl Domain {
    pub(crate) const fn new(key: Key) -> Self {
        Self {
            key,
            slots: Vec::new(),
            views: Vec::new(),
        }
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(super) fn views(&self) -> &[SlotView] {
        &self.views
    }

    /// Adds a slot; its index.
    pub(crate) fn push(&mut self, slot: Slot) -> usize {
        self.slots.push(slot);
        self.views.push(slot.view());
        self.slots.len() - 1
    }

    pub(super) fn remove(&mut self, index: usize) -> Slot {
        self.views.remove(index);
        self.slots.remove(index)
    }

    pub(super) fn take(&mut self) -> Vec<Slot> {
        self.views.clear();
        std::mem::take(&mut self.slots)
    }

    /// Takes the slots that do not stay.
    pub(super) fn take_unless(&mut self, stays: impl Fn(&Slot) -> bool) -> Vec<Slot> {
        let went: Vec<_> = self
            .slots
            .iter()
            .filter(|slot| !stays(slot))
            .copied()
            .collect();
        if !went.is_empty() {
            self.slots.retain(stays);
            self.views = self.slots.iter().map(Slot::view).collect();
        }
        went
    }

    /// Begins a lease of a slot, which a graph claims or not; its generation.
    pub(super) fn lease(&mut self, index: usize, claims: bool) -> u64 {
        let slot = &mut self.slots[index];
        slot.leased = true;
        slot.claimed |= claims;
        self.views[index] = slot.view();
        slot.generation
    }

    /// Ends the lease of a generation, which probably is at this index; whether it is here.
    pub(super) fn release(&mut self, generation: u64, index: usize) -> bool {
        let is_it = |slot: &Slot| slot.generation == generation;
        let index = match self.slots.get(index) {
            Some(slot) if is_it(slot) => Some(index),
            _ => self.slots.iter().position(is_it),
        };
        if let Some(index) = index {
            self.slots[index].leased = false;
            self.views[index].leased = false;
        }
        index.is_some()
    }
}
