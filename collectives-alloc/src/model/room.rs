//! Collective points of a model: which slots go, and whether there is room for another.

use std::collections::HashSet;

use collectives_core::error::Refusal;

use super::domain::{Key, Slot};
use super::{Model, Refused};
use crate::verdict::How;

impl Model<'_> {
    /// Retires what nobody holds; how many slots went.
    pub(crate) fn trim(&mut self) -> u64 {
        let everything: Vec<_> = self.slots().copied().collect();
        self.free(&everything);
        self.domains
            .retain(|domain| domain.key == Key::Shared || !domain.slots().is_empty());
        self.take_freed()
    }

    /// Frees what a collective point frees, and adds a slot if there is room for it.
    pub(super) fn grow(
        &mut self,
        domain: usize,
        capacity: usize,
        how: How,
    ) -> Result<usize, Refused> {
        let base = match how {
            How::Extending(Some(index)) => Some(self.domains[domain].slots()[index]),
            _ => None,
        };
        let of_captures = self
            .domains
            .iter()
            .filter(|domain| matches!(domain.key, Key::Graph(_)));
        let of_captures = of_captures.flat_map(|domain| domain.slots());
        let mut leftovers: Vec<Slot> = self.retired.iter().chain(of_captures).copied().collect();
        leftovers.retain(|slot| base.is_none_or(|base| base.generation != slot.generation));
        let mut candidates = leftovers.clone();
        if how == How::Replacing {
            candidates.extend(self.domains[domain].slots());
            candidates.sort_unstable_by_key(|slot| slot.generation);
            candidates.dedup_by_key(|slot| slot.generation);
        }
        let check = |model: &Self, going: &[Slot]| {
            let room = model.check_room(capacity, how, base, going);
            room.map_err(Refused::By)
        };
        check(self, &candidates)?;
        candidates.retain(|slot| !slot.is_held());
        let fits = check(self, &candidates);
        // What would only have retired for the new slot stays where there is no new slot.
        self.free(if fits.is_ok() {
            &candidates
        } else {
            &leftovers
        });
        fits?;
        self.charge(capacity, base)?;
        let slots = &mut self.domains[domain];
        match how {
            How::Beside | How::Extending(None) => {}
            How::Replacing => self.retired.append(&mut slots.take()),
            // Giving idle slots up may have moved it.
            How::Extending(Some(_)) => {
                let is_base =
                    |slot: &Slot| base.is_some_and(|base| base.generation == slot.generation);
                if let Some(index) = slots.slots().iter().position(is_base) {
                    self.retired.push(slots.remove(index));
                }
            }
        }
        self.made += 1;
        self.extended |= matches!(how, How::Extending(_));
        let arena = match (how, base) {
            (How::Extending(_), Some(base)) => base.arena,
            (How::Extending(_), None) => Some(self.made),
            _ => None,
        };
        let slot = Slot {
            generation: self.made,
            capacity,
            leased: false,
            claimed: false,
            arena,
        };
        self.kept.add(&slot);
        Ok(self.domains[domain].push(slot))
    }

    /// Bytes that a slot of this capacity adds to those of the one whose bytes it maps.
    fn added(&self, capacity: usize, base: Option<Slot>) -> usize {
        let there_was = base.map_or(0, |base| self.kept.mapped(base.capacity));
        self.kept.mapped(capacity).saturating_sub(there_was)
    }

    /// Whether the rules allow one more slot once `going` are gone.
    fn check_room(
        &self,
        capacity: usize,
        how: How,
        base: Option<Slot>,
        going: &[Slot],
    ) -> Result<(), Refusal> {
        let options = self.rules.options;
        if let Some(limit) = options.limit {
            let staying = self.kept.mapped_without(going);
            let mapped = staying.saturating_add(self.added(capacity, base));
            if mapped > limit {
                return Err(Refusal::OverLimit { mapped, limit });
            }
        }
        if let Some(limit) = options.max_windows {
            let there_are = self.outside.windows + self.kept.slots();
            let windows = (there_are + 1).saturating_sub(going.len());
            if windows > limit {
                return Err(Refusal::OverWindows { windows, limit });
            }
        }
        if let (Some(limit), How::Extending(_)) = (self.outside.addresses, how) {
            let goes = |slot: &Slot| {
                going
                    .iter()
                    .any(|other| other.generation == slot.generation)
            };
            let staying = self.slots().filter(|slot| !goes(slot));
            let staying = staying.map(|slot| self.kept.mapped(slot.capacity));
            let addresses = staying.fold(self.kept.mapped(capacity), usize::saturating_add);
            if addresses > limit {
                return Err(Refusal::OverAddresses { addresses, limit });
            }
        }
        Ok(())
    }

    /// Takes a slot's bytes out of the budget, if there is one; where it has too few, gives up what is idle
    /// first.
    fn charge(&mut self, capacity: usize, base: Option<Slot>) -> Result<(), Refused> {
        let added = self.added(capacity, base);
        let short = |model: &Self| model.outside.spare.is_some_and(|spare| spare < added);
        if short(self) {
            self.pressed = Some(capacity);
            let is_base =
                |slot: &&Slot| base.is_some_and(|base| base.generation == slot.generation);
            let idle: Vec<_> = self
                .slots()
                .filter(|slot| !is_base(slot))
                .copied()
                .collect();
            self.free(&idle);
        }
        if short(self) {
            return Err(Refused::Memory(capacity));
        }
        if let Some(spare) = &mut self.outside.spare {
            *spare -= added;
        }
        Ok(())
    }

    /// Retires those of the slots that nobody holds.
    fn free(&mut self, slots: &[Slot]) {
        if slots.is_empty() {
            return;
        }
        let (before, (_, mapped)) = (self.kept.slots(), self.kept.bytes());
        let named: HashSet<_> = slots.iter().map(|slot| slot.generation).collect();
        let stays = |slot: &Slot| slot.is_held() || !named.contains(&slot.generation);
        let kept = &mut self.kept;
        self.retired.retain(|slot| {
            let stays = stays(slot);
            if !stays {
                kept.remove(slot);
            }
            stays
        });
        for domain in &mut self.domains {
            for slot in domain.take_unless(stays) {
                kept.remove(&slot);
                // Of an arena whose newest generation goes, the one before is lent again.
                let same = |other: &Slot| other.arena.is_some() && other.arena == slot.arena;
                if let Some(index) = self.retired.iter().rposition(same) {
                    domain.push(self.retired.remove(index));
                }
            }
        }
        self.freed += (before - self.kept.slots()) as u64;
        let given_back = mapped - self.kept.bytes().1;
        if let Some(spare) = &mut self.outside.spare {
            *spare = spare.saturating_add(given_back);
        }
    }
}
