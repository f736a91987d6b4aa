//! Making a slot: memory on all ranks or on none, then a window.

use std::sync::Arc;

use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Result, Unsupported};
use collectives_core::layered::symmetric_of;
use collectives_core::outcome;

use crate::budget::Charge;
use crate::pool::arena::Base;
use crate::pool::round::{Step, Subject};
use crate::pool::slot::{Parts, Slot};
use crate::pool::{Growing, Pool};
use crate::verdict::How;

impl Pool {
    /// Allocates on all ranks. Where one has no memory, all give up what nobody holds, and try once
    /// more if there was anything.
    pub(super) fn allocate(
        &mut self,
        comm: &mut dyn Communicator,
        growing: &Growing,
        base: Option<&Base>,
    ) -> Result<Parts> {
        let failed = match self.allocate_once(comm, growing, base) {
            Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory { .. }) => error,
            outcome => return outcome,
        };
        if self.give_up_idle(comm, base)? == 0 {
            return Err(failed);
        }
        self.want = Some(failed);
        self.allocate_once(comm, growing, base)
    }

    /// Allocates, and agrees that all ranks could.
    fn allocate_once(
        &mut self,
        comm: &mut dyn Communicator,
        growing: &Growing,
        base: Option<&Base>,
    ) -> Result<Parts> {
        let bytes = growing.capacity;
        let mine = self.allocate_here(comm, bytes, base);
        let subject = Subject {
            capacity: bytes,
            ..Subject::default()
        };
        let records = self.round(comm, Step::Outcome, subject, &outcome::facts(&mine))?;
        outcome::settle(mine, &records).inspect_err(|_| comm.device().collect())
    }

    /// Everything about a slot that may fail on this rank alone.
    fn allocate_here(
        &self,
        comm: &mut dyn Communicator,
        bytes: usize,
        base: Option<&Base>,
    ) -> Result<Parts> {
        let rank = comm.info().rank;
        let out_of_memory = |bytes| Error::new(ErrorKind::OutOfMemory { rank, bytes });
        let mapped = comm.info().mapped(bytes);
        let mut charges = base.map_or_else(Vec::new, |base| base.charges.clone());
        if let Some(budget) = &self.budget {
            let added = mapped.saturating_sub(base.map_or(0, |base| base.mapped));
            let charge = budget.charge(added).ok_or_else(|| out_of_memory(bytes))?;
            charges.push(Arc::new(charge));
        }
        let fence = match base {
            Some(base) => base.fence.clone(),
            None => comm.device().create_fence()?,
        };
        let symmetric = symmetric_of(comm)?;
        let memory = symmetric.allocate(bytes, base.map(|base| base.window))?;
        if memory.bytes() < bytes {
            return Err(out_of_memory(bytes));
        }
        for charge in &charges {
            memory.keeps(Arc::<Charge>::clone(charge));
        }
        Ok(Parts {
            memory,
            fence,
            charges,
        })
    }

    pub(super) fn register(
        &mut self,
        comm: &mut dyn Communicator,
        growing: Growing,
        parts: Parts,
        base: Option<&Base>,
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
        if growing.how == How::Replacing {
            self.table.retire(growing.domain);
        }
        let mapped = comm.info().mapped(growing.capacity);
        let id = self.table.next_slot();
        let device = Arc::clone(comm.device());
        let place = (comm.info().id, window);
        let slot = Slot::new(id, parts, device, place, (growing.capacity, mapped));
        let index = match growing.how {
            How::Extending(_) => self.join_arena(growing.domain, slot, base),
            _ => self.table.at(growing.domain).push(slot),
        };
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
}
