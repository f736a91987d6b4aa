//! One request: admitted, decided, ordered and lent, or a miss.

use std::time::Instant;

use collectives_core::communicator::{CommInfo, Communicator};
use collectives_core::error::{Error, ErrorKind, MissedWhen, Misuse, Result};
use collectives_core::rank::CaptureId;
use collectives_core::scratch::{Lease, ScratchAllocator};
use collectives_core::stream::StreamRef;

use crate::policy::{Ask, SlotView};
use crate::pool::ledger::Event;
use crate::pool::round::Step;
use crate::pool::table::SHARED;
use crate::pool::{Growing, Home, Pool, located};
use crate::verdict::{self, Verdict};

impl Pool {
    /// Whether this pool may work, and for this communicator.
    pub(super) fn admit(&mut self, info: &CommInfo) -> Result<Home> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed));
        }
        if let Some(cause) = &self.poisoned {
            let cause = cause.clone();
            return Err(Error::new(ErrorKind::Poisoned { cause }));
        }
        let home = *self.home.get_or_insert(Home::of(info));
        if home.comm != info.id {
            let text = "the scratch pool belongs to another communicator";
            return Err(Misuse::Other(text.to_owned()).into());
        }
        Ok(home)
    }

    /// Whether [`admit`](Self::admit) has let this communicator in and would again, at a glance.
    #[inline]
    fn admits(&self, info: &CommInfo) -> bool {
        let known = self.home.as_ref().is_some_and(|home| home.comm == info.id);
        known && !self.closed && self.poisoned.is_none()
    }

    /// A lease for an admitted request, or why there is none.
    #[inline(always)]
    pub(super) fn serve(
        &mut self,
        comm: &mut dyn Communicator,
        bytes: usize,
        stream: &StreamRef,
        capture: Option<CaptureId>,
    ) -> Result<Lease> {
        if self.admits(comm.info()) {
            let domain = self.table.domain(stream, capture);
            if let Some(chosen) = self.table.known(domain, bytes) {
                // In place: by a function of its own, which returned it, the lease would be moved.
                return match chosen.slot.order(stream, capture, self.orders_by_events) {
                    Ok(waited) => {
                        self.ledger.ordered(waited, capture.is_some());
                        self.ledger.served(Event::Hit, chosen.slot.id.0, bytes);
                        chosen.lease(bytes)
                    }
                    Err(error) => Err(self.failed(error, comm.info())),
                };
            }
        }
        match self.find(comm, bytes, stream, capture) {
            Ok((domain, index)) => self.table.chosen(domain, index).lease(bytes),
            Err(error) => Err(self.failed(error, comm.info())),
        }
    }

    /// Counts a request that gets no lease.
    #[cold]
    fn failed(&mut self, error: Error, info: &CommInfo) -> Error {
        self.remember(&error);
        let reason = self.fallback_reason(&error);
        self.ledger.failed(reason);
        located(error, info, "acquire")
    }

    /// As [`look`](Self::look), for which a first call outside captures has ranks compare how they were
    /// configured, whatever comes of it here.
    #[inline(never)]
    fn find(
        &mut self,
        comm: &mut dyn Communicator,
        bytes: usize,
        stream: &StreamRef,
        capture: Option<CaptureId>,
    ) -> Result<(usize, usize)> {
        let rounds = self.ledger.agreements();
        let found = self.look(comm, bytes, stream, capture);
        let is_first = self.admits(comm.info()) && capture.is_none();
        if found.is_err() && is_first && self.ledger.agreements() == rounds {
            self.compare(comm, "acquire")?;
        }
        found
    }

    /// The domain and the index of a slot that is free, large enough and ordered, as the policy chooses it.
    fn look(
        &mut self,
        comm: &mut dyn Communicator,
        bytes: usize,
        stream: &StreamRef,
        capture: Option<CaptureId>,
    ) -> Result<(usize, usize)> {
        let ask = self.admit(comm.info())?.ask(bytes);
        let mut domain = self.table.domain(stream, capture);
        let mut verdict = self.decide(domain, &ask)?;
        if matches!(verdict, Verdict::Grow { .. })
            && capture.is_none()
            && !self.sealed
            && self.take_back_from_gone(comm, Some(domain))?
        {
            domain = self.table.domain(stream, capture);
            verdict = self.decide(domain, &ask)?;
        }
        let (index, event) = match verdict {
            Verdict::Hit(index) => (index, Event::Hit),
            Verdict::Grow { capacity, how } => {
                let growing = Growing {
                    domain,
                    bytes,
                    capacity,
                    how,
                };
                (self.miss(comm, growing, capture)?, Event::Growth)
            }
        };
        let slot = self.table.chosen(domain, index).slot;
        let waited = slot.order(stream, capture, self.orders_by_events)?;
        let generation = slot.id.0;
        self.ledger.ordered(waited, capture.is_some());
        self.ledger.served(event, generation, bytes);
        Ok((domain, index))
    }

    /// The policy's answer for a domain, after taking a reserved slot over where that serves.
    pub(super) fn decide(&mut self, domain: usize, ask: &Ask) -> Result<Verdict> {
        let all_free = self.table.at(domain).refresh();
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

    /// The policy's answer, where the cap and the policy's own contract allow it.
    #[inline]
    fn judge(&self, views: &[SlotView], ask: &Ask) -> Result<Verdict> {
        verdict::judge(&*self.policy, self.options.cap, views, ask).map_err(|why| {
            let bytes = ask.bytes;
            Error::new(ErrorKind::Refused { bytes, why })
        })
    }

    pub(super) fn miss(
        &mut self,
        comm: &mut dyn Communicator,
        growing: Growing,
        capture: Option<CaptureId>,
    ) -> Result<usize> {
        let leased = self.table.at(growing.domain).views().iter();
        let busy = |slot: &SlotView| slot.leased && slot.capacity >= growing.bytes;
        self.ledger.busy(leased.copied().any(|slot| busy(&slot)));
        if capture.is_some() {
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
