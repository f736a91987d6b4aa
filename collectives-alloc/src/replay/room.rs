//! Collective points of a replay: which slots go, and whether there is room for another.

use super::model::{Key, Model, Refused, Slot};

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
        let add = |(capacity, mapped): (usize, usize), slot: &Slot| {
            let more = self.mapped(slot.capacity);
            (
                capacity.saturating_add(slot.capacity),
                mapped.saturating_add(more),
            )
        };
        self.iter().fold((0, 0), add)
    }

    fn iter(&self) -> impl Iterator<Item = &Slot> {
        let live = self.domains.iter().flat_map(|(_, slots)| slots);
        live.chain(&self.retired)
    }

    /// Frees what a collective point frees, and adds a slot if the limit allows it.
    pub(super) fn grow(
        &mut self,
        domain: usize,
        capacity: usize,
        retire: bool,
    ) -> Result<usize, Refused> {
        let of_captures = self
            .domains
            .iter()
            .filter(|(key, _)| matches!(key, Key::Graph(_)));
        let of_captures = of_captures.flat_map(|(_, slots)| slots);
        let leftovers: Vec<Slot> = self.retired.iter().chain(of_captures).copied().collect();
        let mut candidates = leftovers.clone();
        if retire {
            candidates.extend(&self.domains[domain].1);
        }
        self.check_limit(capacity, &candidates)?;
        candidates.retain(|slot| !slot.is_held());
        let fits = self.check_limit(capacity, &candidates);
        // What would only have retired for the new slot stays where there is no new slot.
        self.free(if fits.is_ok() {
            &candidates
        } else {
            &leftovers
        });
        fits?;
        if retire {
            self.retired.append(&mut self.domains[domain].1);
        }
        self.made += 1;
        let slots = &mut self.domains[domain].1;
        slots.push(Slot {
            generation: self.made,
            capacity,
            leased: false,
            claimed: false,
        });
        Ok(slots.len() - 1)
    }

    /// Whether the limit allows one more slot once `going` are gone.
    fn check_limit(&self, capacity: usize, going: &[Slot]) -> Result<(), Refused> {
        let goes = |slot: &Slot| {
            going
                .iter()
                .any(|other| other.generation == slot.generation)
        };
        let staying = self.iter().filter(|slot| !goes(slot));
        let staying = staying.map(|slot| self.mapped(slot.capacity));
        let mapped = staying.fold(self.mapped(capacity), usize::saturating_add);
        match self.replay.options.limit {
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
        self.retired.retain(stays);
        for (_, live) in &mut self.domains {
            live.retain(stays);
        }
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
