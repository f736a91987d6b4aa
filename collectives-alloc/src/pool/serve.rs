//! One request: admitted, decided, ordered and lent, or a miss.

use std::time::Instant;

use collectives_core::communicator::{CommInfo, Communicator};
use collectives_core::error::{Error, ErrorKind, MissedWhen, Misuse, Result};
use collectives_core::scratch::{Lease, ScratchAllocator, Site};

use crate::options::Ordering;
use crate::policy::{Ask, SlotView};
use crate::pool::ledger::Event;
use crate::pool::round::Step;
use crate::pool::table::SHARED;
use crate::pool::{Growing, Home, Pool, Verdict, located};

impl Pool {
    /// Whether this pool may work, and for this communicator.
    #[inline]
    pub(super) fn admit(&mut self, info: &CommInfo) -> Result<Home> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed));
        }
        if let Some(cause) = &self.poisoned {
            let cause = cause.clone();
            return Err(Error::new(ErrorKind::Poisoned { cause }));
        }
        let home = *self.home.get_or_insert(Home {
            comm: info.id,
            granule: info.granule,
            overhead: info.overhead,
        });
        if home.comm != info.id {
            let text = "the scratch pool belongs to another communicator";
            return Err(Misuse::Other(text.to_owned()).into());
        }
        Ok(home)
    }

    /// A lease for an admitted request, or why there is none.
    #[inline]
    pub(super) fn serve(
        &mut self,
        comm: &mut dyn Communicator,
        bytes: usize,
        site: Site<'_>,
    ) -> Result<Lease> {
        match self.find(comm, bytes, site) {
            Ok((domain, index)) => self.table.at(domain).lease(index, bytes),
            Err(error) => {
                self.remember(&error);
                let reason = self.fallback_reason(&error);
                self.ledger.failed(reason);
                Err(located(error, comm.info(), "acquire"))
            }
        }
    }

    /// The domain and the index of a slot that is free, large enough and ordered.
    #[inline]
    fn find(
        &mut self,
        comm: &mut dyn Communicator,
        bytes: usize,
        site: Site<'_>,
    ) -> Result<(usize, usize)> {
        let home = self.admit(comm.info())?;
        let ask = home.ask(bytes);
        let domain = self.table.domain(site);
        let (index, event) = match self.decide(domain, &ask)? {
            Verdict::Hit(index) => (index, Event::Hit),
            Verdict::Grow { capacity, how } => {
                let growing = Growing {
                    domain,
                    bytes,
                    capacity,
                    how,
                };
                (self.miss(comm, growing, site)?, Event::Growth)
            }
        };
        let events = self.options.ordering == Ordering::Events;
        let slots = self.table.at(domain);
        let slot = slots.slot(index);
        let waited = slot.order(site, events)?;
        self.ledger.ordered(waited, site.capture.is_some());
        self.ledger.served(event, slot.id.0, bytes);
        Ok((domain, index))
    }

    /// The policy's answer for a domain, after taking a reserved slot over where that serves.
    #[inline]
    pub(super) fn decide(&mut self, domain: usize, ask: &Ask) -> Result<Verdict> {
        let slots = self.table.at(domain);
        let all_free = slots.refresh();
        if all_free && let Some(index) = slots.remembered(ask.bytes) {
            return Ok(Verdict::Hit(index));
        }
        self.decide_anew(domain, ask, all_free)
    }

    fn decide_anew(&mut self, domain: usize, ask: &Ask, all_free: bool) -> Result<Verdict> {
        let verdict = self.consult(domain, ask, all_free)?;
        if domain != SHARED && matches!(verdict, Verdict::Grow { .. }) {
            let all_free = self.table.at(SHARED).refresh();
            if let Ok(Verdict::Hit(reserved)) = self.consult(SHARED, ask, all_free) {
                let index = self.table.hand_over(reserved, domain);
                self.ledger.note(Event::Moved, domain as u64);
                return Ok(Verdict::Hit(index));
            }
        }
        Ok(verdict)
    }

    /// Asks the policy, and remembers the slot it chooses while all are free.
    fn consult(&mut self, domain: usize, ask: &Ask, all_free: bool) -> Result<Verdict> {
        let verdict = self.judge(self.table.domains()[domain].views(), ask)?;
        let slots = self.table.at(domain);
        slots.largest = slots.largest.max(ask.bytes);
        if all_free && let Verdict::Hit(index) = verdict {
            slots.remember(ask.bytes, index);
        }
        Ok(verdict)
    }

    pub(super) fn miss(
        &mut self,
        comm: &mut dyn Communicator,
        growing: Growing,
        site: Site<'_>,
    ) -> Result<usize> {
        let leased = self.table.at(growing.domain).views().iter();
        let busy = |slot: &SlotView| slot.leased && slot.capacity >= growing.bytes;
        self.ledger.busy(leased.copied().any(|slot| busy(&slot)));
        if site.capture.is_some() {
            return Err(self.needs_reserve(&growing, MissedWhen::Capturing));
        }
        if self.sealed {
            return Err(self.needs_reserve(&growing, MissedWhen::Sealed));
        }
        let begun = Instant::now();
        let grown = self.grow(comm, growing, Step::Miss);
        self.ledger.missed(begun.elapsed());
        if grown.is_ok() {
            tracing::warn!(
                domain = self.table.at(growing.domain).label(),
                capacity = growing.capacity,
                "scratch grew while serving; `reserve(&[Request::new({})])` beforehand prevents it",
                growing.bytes,
            );
            self.report(comm.info().rank);
        }
        grown
    }

    pub(super) fn needs_reserve(&mut self, growing: &Growing, when: MissedWhen) -> Error {
        Error::new(ErrorKind::NeedsReserve {
            bytes: growing.bytes,
            domain: self.table.at(growing.domain).label(),
            when,
        })
    }
}
