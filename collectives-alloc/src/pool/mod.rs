//! The slot pool that all policies share.
//!
//! A policy decides; the pool does everything else. Its slots are counted memory, each registered
//! as one window of its own, at the same generation on every rank. A hit is local: it makes no
//! collective call, takes no lock and allocates nothing.
//!
//! # A miss
//!
//! Every rank misses at the same call, because a decision depends only on what all ranks see. They
//! first agree on what they ask for and on which retired slots nobody holds any more; free those;
//! allocate; agree that all could; and register. Nothing is registered unless all of it succeeds
//! everywhere, and every rank gets the same error if it does not.
//!
//! The first round of a pool also compares how ranks were configured, key by key. A first call that needs
//! no round, because a rule of this rank refuses it, makes one, since another rank may have another rule.
//!
//! # Graphs
//!
//! A graph that captures a use of a slot owns the slot's memory until it, its clones and its
//! executables are gone. Such a claim never blocks a lease and changes no decision; it only keeps
//! a retired slot from being freed. Replays are ordered with eager uses by a fence that both wait
//! for and record. A replay between `acquire` and the end of a lease would be ordered with the use
//! before, so our own `launch` is refused then ([`Memory::try_enter`]); a framework that launches
//! for itself must not do it.
//!
//! [`Memory::try_enter`]: collectives_core::memory::Memory::try_enter
//!
//! # Arenas
//!
//! A slot may be a *generation* of an arena: an address range that maps the bytes of the generation
//! before it and new ones. Only the newest is leased; older ones are retired, and stay for the
//! graphs that captured them. Because all of them are the same bytes, they share one fence and one
//! claim: an eager use of the newest waits for replays on any of them and is waited for by them.
//!
//! # Out of memory
//!
//! If some rank gets no memory, all of them give up every slot that nobody holds on any rank, and
//! try once more. What they get then is the outcome.
//!
//! # Domains
//!
//! With a domain per stream or per graph, `reserve` fills the shared domain, and a domain that
//! misses takes over from it the slot that the policy would hit there. What a capture took over
//! goes with its graph; so reserve again before the next capture.

mod arena;
mod gone;
mod hold;
mod ledger;
mod make;
mod miss;
mod places;
mod plan;
mod reserve;
mod retire;
mod room;
mod round;
mod serve;
mod slot;
mod table;

use collectives_core::captures::Captures;
use collectives_core::communicator::{CommInfo, Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, MissedWhen, Misuse, Refusal, Result, Unsupported};
use collectives_core::path::Reason;
use collectives_core::rank::{CaptureId, CommId, Rank};
use collectives_core::scratch::{Lease, Plan, Request, ScratchAllocator, Splitting, Trimmed};
use collectives_core::stats::Stats;
use collectives_core::stream::StreamRef;

use crate::budget::Budget;
use crate::options::{OnMiss, Options, Ordering, Seal};
use crate::policy::{Ask, Policy};
use crate::pool::ledger::Ledger;
use crate::pool::round::Step;
use crate::pool::table::Table;
use crate::statistics;
use crate::verdict::How;

/// Scratch slots of one communicator, grown by a policy.
///
/// Dropping a pool makes no collective call: its bytes stay while leases, graphs or windows need
/// them. [`close`](ScratchAllocator::close) gives them back in order.
// In the order of declaration: what a hit reads comes first, and then what it counts.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Pool {
    home: Option<Home>,
    closed: bool,
    sealed: bool,
    /// What the options say of it, where a hit reads it.
    orders_by_events: bool,
    poisoned: Option<String>,
    table: Table,
    ledger: Ledger,
    policy: Box<dyn Policy>,
    options: Options,
    budget: Option<Budget>,
    /// Rounds that all ranks completed.
    rounds: u64,
    /// Why registering will never work here.
    unsupported: Option<Unsupported>,
    /// Bytes of addresses for windows, the least of all ranks, or why none can be extended; once
    /// that was asked.
    addresses: Option<Result<usize, Unsupported>>,
    /// Captures that it knows of.
    captures: Captures,
    /// The want of memory for which idle slots were given up last.
    want: Option<Error>,
}

/// What a pool learned of its communicator at the first call.
#[derive(Clone, Copy, Debug)]
struct Home {
    comm: CommId,
    granule: usize,
    overhead: usize,
}

/// A slot to be made.
#[derive(Clone, Copy, Debug)]
struct Growing {
    domain: usize,
    bytes: usize,
    capacity: usize,
    how: How,
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>, options: Options) -> Self {
        Self {
            table: Table::new(options.domain),
            orders_by_events: options.ordering == Ordering::Events,
            policy,
            options,
            budget: None,
            home: None,
            ledger: Ledger::default(),
            rounds: 0,
            sealed: false,
            closed: false,
            poisoned: None,
            unsupported: None,
            addresses: None,
            captures: Captures::default(),
            want: None,
        }
    }

    /// The pool with mapped bytes charged to a budget that it shares with others.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Reports what was counted, on calls that are slow anyway.
    fn report(&self, rank: Rank) {
        statistics::report(self.name(), rank, &self.stats());
    }

    /// The bound over all domains, if one is promised.
    fn promised_bound(&self) -> Option<usize> {
        let granule = self.home?.granule;
        if self.table.moved {
            return None;
        }
        self.table.domains().iter().try_fold(0_usize, |sum, slots| {
            if slots.largest == 0 {
                return Some(sum);
            }
            sum.checked_add(self.policy.bound(slots.largest, granule)?)
        })
    }
}

impl Home {
    const fn of(info: &CommInfo) -> Self {
        Self {
            comm: info.id,
            granule: info.granule,
            overhead: info.overhead,
        }
    }

    const fn ask(self, bytes: usize) -> Ask {
        Ask {
            bytes,
            granule: self.granule,
            overhead: self.overhead,
        }
    }
}

impl ScratchAllocator for Pool {
    fn name(&self) -> &str {
        self.policy.name()
    }

    // A hit is inlined down to the lease: returned, that would be read back in wider words than it was
    // written in, which waits until the writes have left the core and takes half as long as the hit.
    #[inline(always)]
    fn acquire(
        &mut self,
        comm: &mut dyn Communicator,
        request: Request,
        stream: &StreamRef,
        capture: Option<CaptureId>,
    ) -> Result<Lease> {
        if request.bytes == 0 {
            return Err(zero_bytes());
        }
        self.ledger.request(request.bytes);
        if let Some(capture) = capture {
            self.note_capture(&**comm.device(), capture, stream);
        }
        self.serve(comm, request.bytes, stream, capture)
    }

    #[inline(always)]
    fn release(&mut self, lease: Lease) -> Result<()> {
        match self.table.lent() {
            Some(mut lent) if lent.slot.lent(&lease) => lent.take_back(lease),
            // Lent before the last one, or by another.
            _ => lease.complete(),
        }
    }

    fn fallback_reason(&self, error: &Error) -> Option<Reason> {
        let configured = |reason| (self.options.on_miss == OnMiss::Fallback).then_some(reason);
        match error.kind() {
            ErrorKind::Refused { why, .. } => match why {
                Refusal::OverCap { .. } => Some(Reason::OverCap),
                Refusal::Policy => Some(Reason::Policy),
                Refusal::OverLimit { .. } => configured(Reason::OverLimit),
                Refusal::OverWindows { .. } => configured(Reason::OverWindows),
                Refusal::OverAddresses { .. } => configured(Reason::OverAddresses),
                _ => None,
            },
            ErrorKind::NeedsReserve { when, .. } => match when {
                MissedWhen::Capturing => configured(Reason::MissInCapture),
                MissedWhen::Sealed => configured(Reason::MissAfterSeal),
                _ => None,
            },
            ErrorKind::OutOfMemory { .. } => configured(Reason::OutOfMemory),
            ErrorKind::Unsupported(Unsupported::Aliasing(_)) => configured(Reason::NoAliasing),
            // Found on all ranks alike, and remembered, so that no later call tries again.
            ErrorKind::Unsupported(
                Unsupported::SymmetricMemory(_) | Unsupported::NullWindow | Unsupported::Version(_),
            ) => Some(Reason::NoSymmetricMemory),
            _ => None,
        }
    }

    fn plan(&mut self, comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan> {
        let planned = self.plan_at(comm, requests);
        planned.map_err(|error| located(error, comm.info(), "plan"))
    }

    fn reserve(&mut self, comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan> {
        let reserved = self.reserve_all(comm, requests);
        self.report(comm.info().rank);
        reserved.map_err(|error| {
            self.remember(&error);
            located(error, comm.info(), "reserve")
        })
    }

    fn seal(&mut self) {
        if self.options.seal == Seal::Never {
            tracing::debug!("`seal` has no effect, because the configuration says never");
        } else {
            self.sealed = true;
        }
    }

    fn trim(&mut self, comm: &mut dyn Communicator) -> Result<Trimmed> {
        let trimmed = self
            .admit(comm.info())
            .and_then(|_| self.trim_at(comm, Step::Trim));
        self.report(comm.info().rank);
        trimmed.map_err(|error| located(error, comm.info(), "trim"))
    }

    fn close(&mut self, comm: &mut dyn Communicator) -> Result<Deferred> {
        if self.closed {
            return Ok(Deferred::default());
        }
        if let Some(home) = self.home
            && home.comm != comm.info().id
        {
            self.admit(comm.info())?;
        }
        let closed = self.close_at(comm);
        self.report(comm.info().rank);
        closed.map_err(|error| located(error, comm.info(), "close"))
    }

    fn stats(&self) -> Stats {
        Stats {
            promised_bound: self.promised_bound(),
            poisoned: self.poisoned.clone(),
            ..self.ledger.snapshot(self.table.stats())
        }
    }

    fn max_windows(&mut self, comm: &mut dyn Communicator) -> Result<Option<usize>> {
        self.admit(comm.info())?;
        self.compare(comm, "symmetric_buffer")?;
        Ok(self.options.max_windows)
    }

    #[cold]
    fn note_capture(&mut self, device: &dyn Device, capture: CaptureId, stream: &StreamRef) {
        self.captures.note(device, capture, stream);
    }

    fn splitting(&self) -> Option<Splitting> {
        self.options.splitting()
    }

    fn note_pieces(&mut self, pieces: u64) {
        self.ledger.pieces(pieces);
    }
}

#[cold]
fn zero_bytes() -> Error {
    Error::from(Misuse::ZeroBytes).during("acquire")
}

fn located(error: Error, info: &CommInfo, operation: &'static str) -> Error {
    error
        .during(operation)
        .on_backend(info.backend)
        .on_rank(info.rank)
}
