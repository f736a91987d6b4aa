//! Collective points of a replay: which slots go, and whether there is room for another.

use super::model::{Key, Model, New, Refused, Slot};

impl Model<'_> {
    /// Retires what nobody holds; how many slots went.
    pub(super) fn trim(&mut self) -> u64 {
        let everything: Vec<_> = self.iter().copied().collect();
        self.free(&everything);
        self.domains
            .retain(|(key, slots)| *key == Key::Shared || !slots.is_empty());
        self.take_freed()
    }

    /// Capacities and mapped bytes there are.
    pub(super) fn kept(&self) -> (usize, usize) {
        let all: Vec<_> = self.iter().collect();
        let add = |(capacity, mapped): (usize, usize), slot: &Slot| {
            let more = self.mapped(slot.capacity);
            (
                capacity.saturating_add(slot.capacity),
                mapped.saturating_add(more),
            )
        };
        newest(&all).fold((0, 0), add)
    }

    fn iter(&self) -> impl Iterator<Item = &Slot> {
        let live = self.domains.iter().flat_map(|(_, slots)| slots);
        live.chain(&self.retired)
    }

    /// Frees what a collective point frees, and adds a slot if the limits allow it.
    pub(super) fn grow(&mut self, domain: usize, new: New) -> Result<usize, Refused> {
        let base = match new {
            New::Extending(Some(index), _) => Some(self.domains[domain].1[index]),
            _ => None,
        };
        let of_captures = self
            .domains
            .iter()
            .filter(|(key, _)| matches!(key, Key::Graph(_)));
        let of_captures = of_captures.flat_map(|(_, slots)| slots);
        let mut leftovers: Vec<Slot> = self.retired.iter().chain(of_captures).copied().collect();
        leftovers.retain(|slot| base.is_none_or(|base| base.generation != slot.generation));
        let mut candidates = leftovers.clone();
        if matches!(new, New::Replacing(_)) {
            candidates.extend(&self.domains[domain].1);
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
        let slots = &mut self.domains[domain].1;
        match new {
            New::Beside(_) | New::Extending(None, _) => {}
            New::Replacing(_) => self.retired.append(slots),
            New::Extending(Some(index), _) => self.retired.push(slots.remove(index)),
        }
        self.made += 1;
        let arena = match (new, base) {
            (New::Extending(..), Some(base)) => base.arena,
            (New::Extending(..), None) => Some(self.made),
            _ => None,
        };
        let slots = &mut self.domains[domain].1;
        slots.push(Slot {
            generation: self.made,
            capacity: new.capacity(),
            leased: false,
            claimed: false,
            arena,
        });
        Ok(slots.len() - 1)
    }

    /// Whether the rules allow one more slot once `going` are gone.
    fn check_room(
        &self,
        capacity: usize,
        base: Option<Slot>,
        going: &[Slot],
    ) -> Result<(), Refused> {
        let stays = |slot: &&Slot| {
            let same = |other: &Slot| other.generation == slot.generation;
            !going.iter().any(same)
        };
        let staying: Vec<_> = self.iter().filter(stays).collect();
        let options = self.replay.options;
        let too_many = |limit: usize| staying.len() + 1 > limit;
        if options.max_windows.is_some_and(too_many) {
            return Err(Refused::Miss);
        }
        let there_was = base.map_or(0, |base| self.mapped(base.capacity));
        let added = self.mapped(capacity).saturating_sub(there_was);
        let staying = newest(&staying).map(|slot| self.mapped(slot.capacity));
        let mapped = staying.fold(added, usize::saturating_add);
        match options.limit {
            Some(limit) if mapped > limit => Err(Refused::Miss),
            _ => Ok(()),
        }
    }

    /// Retires those of the slots that nobody holds.
    fn free(&mut self, slots: &[Slot]) {
        let before = self.iter().count();
        let stays = |slot: &Slot| {
            slot.is_held()
                || slots
                    .iter()
                    .all(|other| other.generation != slot.generation)
        };
        for (_, live) in &mut self.domains {
            let went: Vec<_> = live.iter().filter(|slot| !stays(slot)).copied().collect();
            live.retain(stays);
            // Of an arena whose newest generation goes, the one before is lent again.
            self.retired.retain(stays);
            for slot in went {
                let same = |other: &Slot| other.arena.is_some() && other.arena == slot.arena;
                if let Some(index) = self.retired.iter().rposition(same) {
                    live.push(self.retired.remove(index));
                }
            }
        }
        self.retired.retain(stays);
        self.freed += (before - self.iter().count()) as u64;
    }

    /// As [`CommInfo::mapped`](collectives_core::communicator::CommInfo::mapped).
    fn mapped(&self, capacity: usize) -> usize {
        capacity
            .saturating_add(self.replay.overhead)
            .checked_next_multiple_of(self.replay.granule.max(1))
            .unwrap_or(usize::MAX)
    }
}

/// The slots whose bytes no newer one of them maps again.
fn newest<'a>(slots: &[&'a Slot]) -> impl Iterator<Item = &'a Slot> {
    slots.iter().copied().filter(|slot| {
        let newer = |other: &&Slot| other.arena == slot.arena && other.generation > slot.generation;
        slot.arena.is_none() || !slots.iter().any(newer)
    })
}
