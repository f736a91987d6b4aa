//! Slots that lie in different domains on different ranks.
//!
//! A hit moves a slot into the domain of a stream or of a capture without a round. Where one rank makes
//! such a call and another does not, because its capture could not begin for example, their tables differ
//! from then on. The next round finds that, and here the ranks make their tables equal again.

use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Field, Result};

use crate::pool::Pool;
use crate::pool::round::{Ballot, Step, Subject};

impl Pool {
    /// After a round in which tables differed, on all ranks: retires every slot that does not lie in the
    /// shared domain on all ranks, so that each domain of a stream or of a capture begins anew. What is
    /// retired goes with the last graph and lease that holds it, as always.
    ///
    /// # Errors
    ///
    /// A mismatch that poisons where the slots are not even the same.
    pub(super) fn reconcile(&mut self, comm: &mut dyn Communicator) -> Result<()> {
        let shared = self.table.shared();
        let ballot = Ballot::new(self.table.everything(), |slot| {
            shared.binary_search(&slot).is_err()
        });
        let facts = ballot.facts(self.table.domains_seen());
        let records = self
            .round(comm, Step::Places, Subject::default(), &facts)
            .map_err(|error| match is_of_slots(&error) {
                true => error.poisoning(),
                false => error,
            })
            .inspect_err(|error| self.remember(error))?;
        let seen = records.iter().filter_map(|record| record.facts().first());
        let seen = seen.copied().max().unwrap_or(0);
        self.table.begin_anew(&ballot.free(&records), seen);
        Ok(())
    }
}

/// Whether ranks have found that their slots differ.
pub(super) fn is_of_slots(error: &Error) -> bool {
    let ErrorKind::Mismatch { field, .. } = error.kind() else {
        return false;
    };
    *field == Field::Slots
}
