//! A miss: plan, agree, allocate, agree on the outcome, register.

use collectives_core::communicator::Communicator;
use collectives_core::error::{MissedWhen, Result};

use crate::pool::round::{Step, Subject, first_raised};
use crate::pool::{Growing, Pool};
use crate::verdict::How;

impl Pool {
    /// Registers a slot in a domain, on all ranks or on none. Returns its index there.
    pub(super) fn grow(
        &mut self,
        comm: &mut dyn Communicator,
        growing: Growing,
        step: Step,
    ) -> Result<usize> {
        self.can_register(comm)?;
        if matches!(growing.how, How::Extending(_)) {
            self.learn_addresses(comm)?;
        }
        comm.device().collect();
        let base = self.base(&growing)?;
        let keep = base.as_ref().map(|base| base.id);
        let mut leftovers = self.table.leftovers();
        leftovers.retain(|&slot| Some(slot) != keep);
        let mut candidates = leftovers.clone();
        if growing.how == How::Replacing {
            candidates.extend(self.table.live_in(growing.domain));
            candidates.sort_unstable();
            candidates.dedup();
        }
        // Even if every candidate went: no round is needed to refuse.
        self.check_room(comm, &growing, base.as_ref(), &candidates)?;
        let capturing = self.is_capturing(comm);
        let ballot = self.ballot(candidates, capturing);
        let subject = Subject {
            domain: self.table.at(growing.domain).ordinal,
            count: 1,
            bytes: growing.bytes as u64,
            capacity: growing.capacity,
        };
        let facts = ballot.facts(capturing.into());
        let records = self.round(comm, step, subject, &facts)?;
        if first_raised(&records).is_some() {
            return Err(self.needs_reserve(&growing, MissedWhen::Capturing));
        }
        let mut free = ballot.free(&records);
        let fits = self.check_room(comm, &growing, base.as_ref(), &free);
        if fits.is_err() {
            // What would only have retired for the new slot stays.
            free.retain(|slot| leftovers.contains(slot));
        }
        self.free(comm, &free)?;
        fits?;
        let parts = self.allocate(comm, &growing, base.as_ref())?;
        self.register(comm, growing, parts, base.as_ref())
    }
}
