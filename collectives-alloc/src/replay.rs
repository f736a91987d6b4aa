//! Drives a policy with a trace, without a backend: what would it have kept?
//!
//! It follows the rules of the [`Pool`](crate::pool::Pool), with [`Policy::decide`] for every
//! decision. A trace that a pool wrote, replayed with the same policy, options and granule, comes to
//! exactly the totals of that pool, as long as no graph that captured scratch was destroyed before
//! the end of the trace: a trace does not show when a graph goes, so a replay keeps all of them.
//!
//! A request whose recorded outcome is [`Outcome::Failed`] failed for a reason that no replay can
//! know. It is counted as it was, and changes nothing, although the pool may have freed slots before
//! it failed, also idle ones for a second try.

use std::collections::HashMap;

use collectives_core::stats::Stats;

use crate::model::{Lease, Model, Place, Rules};
use crate::options::{OnMiss, Options, Seal};
use crate::policy::Policy;
use crate::trace::{Call, Event, Outcome};

/// What a trace is replayed with.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'a> {
    /// What decides.
    pub policy: &'a dyn Policy,
    /// The rules of the pool.
    pub options: &'a Options,
    /// Bytes that memory is mapped in multiples of.
    pub granule: usize,
    /// Bytes of every mapped block that the backend keeps for itself.
    pub overhead: usize,
}

/// The trace of the same calls with the [piece](Options::piece) of these options, as far as they could be
/// cut, which a trace does not say.
///
/// A replay takes requests as they are, since a trace that was recorded with a piece has leases already.
#[must_use]
pub fn in_pieces(events: &[Event], options: &Options) -> Vec<Event> {
    let leased = |event: &Event| {
        let mut event = *event;
        if let Call::Acquire { bytes, .. } | Call::Reserve { bytes, .. } = &mut event.call {
            *bytes = options.lease_for(*bytes);
        }
        event
    };
    events.iter().map(leased).collect()
}

/// What a replay comes to, and a part of what a pool counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Requests.
    pub requests: u64,
    /// Requests served by a slot that existed.
    pub hits: u64,
    /// Requests that registered a slot.
    pub growths: u64,
    /// Requests sent to the ordinary path.
    pub fallbacks: u64,
    /// Requests that failed.
    pub refusals: u64,
    /// Uses recorded into graphs.
    pub captured: u64,
    /// Windows registered.
    pub registrations: u64,
    /// Windows retired.
    pub deregistrations: u64,
    /// The largest request served, in bytes.
    pub largest_request: usize,
    /// The sum of capacities kept at the end.
    pub capacity_bytes: usize,
    /// The sum of mapped bytes kept at the end.
    pub mapped_bytes: usize,
    /// The largest sum of mapped bytes there ever was.
    pub peak_mapped_bytes: usize,
}

impl From<&Stats> for Totals {
    fn from(stats: &Stats) -> Self {
        Self {
            requests: stats.requests,
            hits: stats.hits,
            growths: stats.growths,
            fallbacks: stats.fallback_count(),
            refusals: stats.refusals,
            captured: stats.captured,
            registrations: stats.registrations,
            deregistrations: stats.deregistrations,
            largest_request: stats.largest_request,
            capacity_bytes: stats.capacity_bytes(),
            mapped_bytes: stats.mapped_bytes(),
            peak_mapped_bytes: stats.peak_mapped_bytes,
        }
    }
}

impl Replay<'_> {
    /// Replays a trace.
    #[must_use]
    pub fn run(&self, events: &[Event]) -> Totals {
        self.run_with(events, |_, _| {})
    }

    /// Replays a trace, and says after each call which it was and how many mapped bytes are kept.
    #[must_use]
    pub fn run_with(&self, events: &[Event], mut each: impl FnMut(&Event, usize)) -> Totals {
        let rules = Rules {
            policy: self.policy,
            options: self.options,
            granule: self.granule,
            overhead: self.overhead,
        };
        let mut state = State {
            replay: self,
            model: Model::new(rules),
            totals: Totals::default(),
            sealed: false,
            leases: HashMap::new(),
        };
        // The requests of one `reserve` are one call.
        let calls = events.chunk_by(|left, right| {
            let both = |event: &Event| matches!(event.call, Call::Reserve { .. });
            left.sequence == right.sequence && both(left) && both(right)
        });
        for call in calls {
            state.call(call);
            if let [first, ..] = call {
                each(first, state.model.kept.bytes().1);
            }
        }
        let (capacity_bytes, mapped_bytes) = state.model.kept.bytes();
        Totals {
            capacity_bytes,
            mapped_bytes,
            ..state.totals
        }
    }
}

struct State<'a> {
    replay: &'a Replay<'a>,
    model: Model<'a>,
    totals: Totals,
    sealed: bool,
    /// The slot of each lease that is out, by the number of its call.
    leases: HashMap<u64, Lease>,
}

impl State<'_> {
    fn call(&mut self, events: &[Event]) {
        let [first, ..] = events else { return };
        match first.call {
            Call::Acquire { outcome, .. } if !self.count(outcome) => {}
            Call::Acquire {
                bytes,
                stream,
                capture,
                ..
            } => self.acquire(first.sequence, bytes, Place { stream, capture }),
            Call::Release => {
                if let Some(lease) = self.leases.remove(&first.sequence) {
                    self.model.release(lease);
                }
            }
            Call::Reserve { outcome, .. } => {
                if outcome != Outcome::Failed {
                    self.reserve(events);
                }
            }
            Call::Seal => self.sealed |= self.replay.options.seal != Seal::Never,
            Call::Trim(Outcome::Done) => self.totals.deregistrations += self.model.trim(),
            Call::Close(outcome) => {
                if outcome == Outcome::Done {
                    self.totals.deregistrations += self.model.trim();
                }
                self.model.give_up();
            }
            Call::Trim(_) => {}
        }
    }

    /// Counts a request, and whether it is to be replayed.
    fn count(&mut self, recorded: Outcome) -> bool {
        self.totals.requests += 1;
        match recorded {
            Outcome::Failed => self.totals.refusals += 1,
            Outcome::FailedFallback => self.totals.fallbacks += 1,
            _ => return true,
        }
        false
    }

    fn acquire(&mut self, sequence: u64, bytes: usize, place: Place) {
        let may_grow = !self.sealed && place.capture.is_none();
        let served = self.model.serve(bytes, place, may_grow);
        self.totals.deregistrations += self.model.take_freed();
        match served {
            Ok(served) => {
                self.leases.insert(sequence, served.lease);
                self.totals.largest_request = self.totals.largest_request.max(bytes);
                self.totals.captured += u64::from(place.capture.is_some());
                if served.grown {
                    self.totals.growths += 1;
                    self.registered();
                } else {
                    self.totals.hits += 1;
                }
            }
            Err(refused) => {
                if refused.is_final() || self.replay.options.on_miss == OnMiss::Fallback {
                    self.totals.fallbacks += 1;
                } else {
                    self.totals.refusals += 1;
                }
            }
        }
    }

    fn reserve(&mut self, events: &[Event]) {
        let requests: Vec<usize> = events
            .iter()
            .filter_map(|event| match event.call {
                Call::Reserve { bytes, .. } if bytes > 0 => Some(bytes),
                _ => None,
            })
            .collect();
        // All of them or none.
        let may_grow = !self.sealed;
        let mut trial = self.model.clone();
        if trial.reserve_all(&requests, may_grow).is_err() {
            return;
        }
        for bytes in requests {
            let reserved = self.model.reserve(bytes, may_grow);
            self.totals.deregistrations += self.model.take_freed();
            match reserved {
                Ok(true) => self.registered(),
                Ok(false) => {}
                Err(_) => return,
            }
        }
        self.sealed |= self.replay.options.seal == Seal::AfterReserve;
    }

    fn registered(&mut self) {
        self.totals.registrations += 1;
        let (_, mapped) = self.model.kept.bytes();
        self.totals.peak_mapped_bytes = self.totals.peak_mapped_bytes.max(mapped);
    }
}
