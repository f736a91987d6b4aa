//! A miss: plan, agree, allocate, agree on the outcome, register.

use std::sync::Arc;

use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, MissedWhen, Refusal, Result, Unsupported};
use collectives_core::scratch::SlotId;

use crate::pool::round::{Step, Subject, first_raised};
use crate::pool::slot::{Parts, Slot};
use crate::pool::{Growing, Pool};

impl Pool {
    /// Registers a slot in a domain, on all ranks or on none. Returns its index there.
    pub(super) fn grow(
        &mut self,
        comm: &mut dyn Communicator,
        growing: Growing,
        step: Step,
    ) -> Result<usize> {
        if let Some(why) = &self.unsupported {
            return Err(Error::unsupported(why.clone()));
        }
        if comm.symmetric().is_none() {
            let why = comm.capabilities().symmetric.clone().err();
            let none = || Unsupported::SymmetricMemory("the backend offers none".to_owned());
            return Err(Error::unsupported(why.unwrap_or_else(none)));
        }
        comm.device().collect();
        let mapped = comm.info().mapped(growing.capacity);
        let leftovers = self.table.leftovers();
        let mut candidates = leftovers.clone();
        if growing.retire {
            candidates.extend(self.table.live_in(growing.domain));
            candidates.sort_unstable();
            candidates.dedup();
        }
        // Even if every candidate went: no round is needed to refuse.
        self.check_limit(&growing, &candidates, mapped)?;
        let capturing = self.is_capturing();
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
        let fits = self.check_limit(&growing, &free, mapped);
        if fits.is_err() {
            // What would only have retired for the new slot stays.
            free.retain(|slot| leftovers.contains(slot));
        }
        self.free(comm, &free)?;
        fits?;
        let parts = self.allocate(comm, &growing, mapped)?;
        self.register(comm, growing, parts, mapped)
    }

    /// Allocates, and agrees that all ranks could.
    fn allocate(
        &mut self,
        comm: &mut dyn Communicator,
        growing: &Growing,
        mapped: usize,
    ) -> Result<Parts> {
        let bytes = growing.capacity;
        let mine = self.allocate_here(comm, bytes, mapped);
        let missing = match &mine {
            Ok(_) => 0,
            Err(error) => match error.kind() {
                ErrorKind::OutOfMemory { bytes, .. } => *bytes,
                _ => bytes,
            },
        };
        let facts = [mine.is_err().into(), missing as u64];
        let subject = Subject {
            capacity: bytes,
            ..Subject::default()
        };
        let records = self.round(comm, Step::Outcome, subject, &facts)?;
        let Some(rank) = first_raised(&records) else {
            return mine;
        };
        let theirs = records[rank.index()].facts().get(1).copied();
        let bytes = theirs.and_then(|bytes| usize::try_from(bytes).ok());
        let failed = Error::new(ErrorKind::OutOfMemory {
            rank,
            bytes: bytes.unwrap_or(growing.capacity),
        });
        match mine {
            Ok(parts) => {
                drop(parts);
                comm.device().collect();
                Err(failed)
            }
            Err(error) => Err(failed.caused_by(error)),
        }
    }

    /// Everything about a slot that may fail on this rank alone.
    fn allocate_here(
        &self,
        comm: &mut dyn Communicator,
        bytes: usize,
        mapped: usize,
    ) -> Result<Parts> {
        let rank = comm.info().rank;
        let out_of_memory = |bytes| Error::new(ErrorKind::OutOfMemory { rank, bytes });
        let charge = match &self.budget {
            Some(budget) => Some(budget.charge(mapped).ok_or_else(|| out_of_memory(bytes))?),
            None => None,
        };
        let fence = comm.device().create_fence()?;
        let symmetric = comm.symmetric().ok_or_else(|| out_of_memory(bytes))?;
        let memory = symmetric.allocate(bytes, None)?;
        if memory.bytes() < bytes {
            return Err(out_of_memory(bytes));
        }
        Ok(Parts {
            memory,
            fence,
            charge,
        })
    }

    fn register(
        &mut self,
        comm: &mut dyn Communicator,
        growing: Growing,
        parts: Parts,
        mapped: usize,
    ) -> Result<usize> {
        let registered = match comm.symmetric() {
            Some(symmetric) => symmetric.register(&parts.memory),
            None => Err(Error::new(ErrorKind::Closed)),
        };
        let window = match registered {
            Ok(window) => window,
            Err(error) => {
                drop(parts);
                comm.device().collect();
                // The same on all ranks, and for every later size, unlike one call refused.
                if let ErrorKind::Unsupported(why) = error.kind()
                    && !matches!(why, Unsupported::Operation(_))
                {
                    self.unsupported = Some(why.clone());
                }
                return Err(error);
            }
        };
        if growing.retire {
            self.table.retire(growing.domain);
        }
        let id = self.table.next_slot();
        let device = Arc::clone(comm.device());
        let place = (comm.info().id, window);
        let slot = Slot::new(id, parts, device, place, (growing.capacity, mapped))
            .map_err(Error::poisoning)?;
        let index = self.table.at(growing.domain).push(slot);
        let total = self.table.mapped();
        self.ledger.registered(id.0, self.sealed, total);
        tracing::debug!(
            slot = id.0,
            window = window.0,
            capacity = growing.capacity,
            mapped,
            "grew"
        );
        Ok(index)
    }

    /// Whether the limit allows `mapped` bytes more once `going` are gone.
    fn check_limit(&self, growing: &Growing, going: &[SlotId], mapped: usize) -> Result<()> {
        let Some(limit) = self.options.limit else {
            return Ok(());
        };
        let staying = self
            .table
            .iter()
            .filter(|slot| !going.contains(&slot.id))
            .map(|slot| slot.mapped);
        let mapped = staying.fold(mapped, usize::saturating_add);
        if mapped <= limit {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Refused {
            bytes: growing.bytes,
            why: Refusal::OverLimit { mapped, limit },
        }))
    }
}
