//! Freeing slots: on all ranks, in the same order, after everybody has finished with them.

use collectives_core::communicator::{Communicator, Deferred};
use collectives_core::error::{CaptureFault, Error, ErrorKind, Result};
use collectives_core::scratch::{SlotId, Trimmed};

use crate::pool::Pool;
use crate::pool::arena::Base;
use crate::pool::places::is_of_slots;
use crate::pool::round::{Step, Subject, first_raised};

impl Pool {
    /// Retires the windows of slots that no rank holds, ascending, and drops their memory.
    ///
    /// Every rank first waits for its own last uses and then for the others, so that no window
    /// goes while a peer still reads it.
    pub(super) fn free(&mut self, comm: &mut dyn Communicator, slots: &[SlotId]) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        for slot in self.table.iter() {
            if slots.contains(&slot.id) {
                slot.settle();
            }
        }
        let subject = Subject {
            count: slots.len(),
            ..Subject::default()
        };
        self.round(comm, Step::Settled, subject, &[])?;
        let freed = slots.iter().try_for_each(|&id| self.free_one(comm, id));
        comm.device().collect();
        freed
    }

    fn free_one(&mut self, comm: &mut dyn Communicator, id: SlotId) -> Result<()> {
        let Some(slot) = self.table.take(id) else {
            return Ok(());
        };
        let retired = match comm.symmetric() {
            Some(symmetric) => symmetric.retire(slot.window),
            None => Err(Error::new(ErrorKind::Closed)),
        };
        if let Err(error) = retired {
            // Ranks may have different windows now.
            self.table.retire_one(slot);
            let error = error.poisoning();
            self.remember(&error);
            return Err(error);
        }
        self.ledger.deregistered(id.0);
        self.ledger.gone(&slot.stats(true));
        tracing::debug!(slot = id.0, mapped = slot.mapped, "retired");
        Ok(())
    }

    pub(super) fn trim_at(&mut self, comm: &mut dyn Communicator, step: Step) -> Result<Trimmed> {
        if self.table.iter().next().is_none() {
            self.table.forget_empty_domains();
            return Ok(Trimmed::default());
        }
        comm.device().collect();
        let everything = self.table.everything();
        let capturing = self.is_capturing(comm);
        let ballot = self.ballot(everything, capturing);
        let facts = ballot.facts(capturing.into());
        let records = self.round(comm, step, Subject::default(), &facts)?;
        if step == Step::Trim && first_raised(&records).is_some() {
            return Err(Error::capture(CaptureFault::WindowChange));
        }
        let free = ballot.free(&records);
        let before = self.table.mapped();
        self.free(comm, &free)?;
        self.table.forget_empty_domains();
        let held_bytes = self.table.mapped();
        Ok(Trimmed {
            slots: free.len(),
            mapped_bytes: before - held_bytes,
            held_bytes,
        })
    }

    /// Frees every slot but `base` that no lease and no graph holds on any rank, because some rank is
    /// out of memory. How many there were.
    pub(super) fn give_up_idle(
        &mut self,
        comm: &mut dyn Communicator,
        base: Option<&Base>,
    ) -> Result<usize> {
        let mut idle = self.table.everything();
        idle.retain(|&slot| base.is_none_or(|base| base.id != slot));
        if idle.is_empty() {
            return Ok(0);
        }
        let capturing = self.is_capturing(comm);
        let ballot = self.ballot(idle, capturing);
        let facts = ballot.facts(0);
        let records = self.round(comm, Step::Pressure, Subject::default(), &facts)?;
        let idle = ballot.free(&records);
        self.free(comm, &idle)?;
        Ok(idle.len())
    }

    /// Trims, and gives up what is still held: its bytes and windows belong to the graphs and
    /// leases that hold it, and to the communicator, from then on.
    pub(super) fn close_at(&mut self, comm: &mut dyn Communicator) -> Result<Deferred> {
        let trimmed = match &self.poisoned {
            Some(cause) => Err(Error::new(ErrorKind::Poisoned {
                cause: cause.clone(),
            })),
            None => match self.trim_at(comm, Step::Close) {
                // Slots lay in different domains, which they do no more.
                Err(error) if is_of_slots(&error) && !error.poisons() => {
                    self.trim_at(comm, Step::Close)
                }
                trimmed => trimmed,
            },
        };
        self.closed = true;
        let mapped_bytes = self.table.mapped();
        let left = self.table.take_all();
        for slot in &left {
            self.ledger.gone(&slot.stats(true));
        }
        let deferred = Deferred {
            windows: left.len(),
            mapped_bytes,
            communicator: false,
        };
        drop(left);
        comm.device().collect();
        trimmed.map(|_| deferred)
    }
}
