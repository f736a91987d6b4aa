//! Collective points of a replay: which slots go, and whether there is room for another.

use std::collections::HashSet;

use super::domain::{Key, Slot};
use super::model::{Model, New, Refused};

impl Model<'_> {
    /// Retires what nobody holds; how many slots went.
    pub(super) fn trim(&mut self) -> u64 {
        let live = self.domains.iter().flat_map(|domain| domain.slots());
        let everything: Vec<_> = live.chain(&self.retired).copied().collect();
        self.free(&everything);
        self.domains
            .retain(|domain| domain.key == Key::Shared || !domain.slots().is_empty());
        self.take_freed()
    }

    /// Frees what a collective point frees, and adds a slot if the limits allow it.
    pub(super) fn grow(&mut self, domain: usize, new: New) -> Result<usize, Refused> {
        let base = match new {
            New::Extending(Some(index), _) => Some(self.domains[domain].slots()[index]),
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
        if matches!(new, New::Replacing(_)) {
            candidates.extend(self.domains[domain].slots());
            candidates.sort_unstable_by_key(|slot| slot.generation);
            candidates.dedup_by_key(|slot| slot.generation);
        }
        self.check_room(new.capacity(), base, &candidates)?;
        candidates.retain(|slot| !slot.is_held());
        let fits = self.check_room(new.capacity(), base, &candidates);
        // What would only have retired for the new slot stays where there is no new slot.
        self.free(if fits.is_ok() {
            &candidates
        } else {
            &leftovers
        });
        fits?;
        let slots = &mut self.domains[domain];
        match new {
            New::Beside(_) | New::Extending(None, _) => {}
            New::Replacing(_) => self.retired.append(&mut slots.take()),
            New::Extending(Some(index), _) => self.retired.push(slots.remove(index)),
        }
        self.made += 1;
        let arena = match (new, base) {
            (New::Extending(..), Some(base)) => base.arena,
            (New::Extending(..), None) => Some(self.made),
            _ => None,
        };
        let slot = Slot {
            generation: self.made,
            capacity: new.capacity(),
            leased: false,
            claimed: false,
            arena,
        };
        self.kept.add(&slot);
        Ok(self.domains[domain].push(slot))
    }

    /// Whether the rules allow one more slot once `going` are gone.
    fn check_room(
        &self,
        capacity: usize,
        base: Option<Slot>,
        going: &[Slot],
    ) -> Result<(), Refused> {
        let options = self.replay.options;
        let too_many = |limit: usize| self.kept.slots() - going.len() + 1 > limit;
        if options.max_windows.is_some_and(too_many) {
            return Err(Refused::Miss);
        }
        let there_was = base.map_or(0, |base| self.kept.mapped(base.capacity));
        let added = self.kept.mapped(capacity).saturating_sub(there_was);
        let mapped = || self.kept.mapped_without(going).saturating_add(added);
        match options.limit {
            Some(limit) if mapped() > limit => Err(Refused::Miss),
            _ => Ok(()),
        }
    }

    /// Retires those of the slots that nobody holds.
    fn free(&mut self, slots: &[Slot]) {
        if slots.is_empty() {
            return;
        }
        let before = self.kept.slots();
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
    }
}
