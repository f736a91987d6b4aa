//! What a pool counts.

use std::time::Duration;

use collectives_core::path::Reason;
use collectives_core::stats::{SlotStats, Stats};

use crate::digest::Digest;

/// Counters, and the digest of every decision. What a hit counts comes first.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Ledger {
    decisions: Digest,
    requests: u64,
    hits: u64,
    fences: u64,
    captured: u64,
    largest_request: usize,
    /// The rest.
    stats: Stats,
}

/// What became of one request; the code goes into the digest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Hit = 1,
    Growth = 2,
    Failure = 3,
    Registered = 4,
    Retired = 5,
    Moved = 6,
}

impl Ledger {
    /// One word of the digest of decisions.
    #[inline]
    pub(super) fn note(&mut self, event: Event, word: u64) {
        self.decisions = self.decisions.word(event as u64 ^ word.rotate_left(8));
    }

    #[inline]
    pub(super) fn request(&mut self, bytes: usize) {
        self.requests += 1;
        self.stats.histogram.count(bytes);
        self.decisions = self.decisions.size(bytes);
    }

    #[inline]
    pub(super) fn served(&mut self, event: Event, generation: u64, bytes: usize) {
        match event {
            Event::Growth => self.stats.growths += 1,
            _ => self.hits += 1,
        }
        self.largest_request = self.largest_request.max(bytes);
        self.note(event, generation);
    }

    pub(super) fn busy(&mut self, busy: bool) {
        self.stats.busy += u64::from(busy);
    }

    pub(super) fn failed(&mut self, fallback: Option<Reason>) {
        self.note(Event::Failure, 0);
        let Some(reason) = fallback else {
            self.stats.refusals += 1;
            return;
        };
        let counts = &mut self.stats.fallbacks;
        match counts.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => counts.push((reason, 1)),
        }
    }

    #[inline]
    pub(super) fn ordered(&mut self, waited: bool, captured: bool) {
        self.fences += u64::from(waited);
        self.captured += u64::from(captured);
    }

    /// They are no decision: how many pieces of a call that fails are enqueued is one rank's affair.
    pub(super) fn pieces(&mut self, pieces: u64) {
        self.stats.pieces += pieces;
    }

    pub(super) fn registered(&mut self, generation: u64, sealed: bool, mapped: usize) {
        self.stats.registrations += 1;
        self.stats.registrations_after_seal += u64::from(sealed);
        self.stats.peak_mapped_bytes = self.stats.peak_mapped_bytes.max(mapped);
        self.note(Event::Registered, generation);
    }

    pub(super) fn deregistered(&mut self, generation: u64) {
        self.stats.deregistrations += 1;
        self.note(Event::Retired, generation);
    }

    /// Keeps what was counted of a slot that goes.
    pub(super) fn gone(&mut self, slot: &SlotStats) {
        self.stats.replays += slot.replays;
    }

    pub(super) fn agreed(&mut self, success: bool) {
        self.stats.agreements += 1;
        self.stats.agreement_failures += u64::from(!success);
    }

    /// Rounds that were tried.
    pub(super) fn agreements(&self) -> u64 {
        self.stats.agreements
    }

    pub(super) fn missed(&mut self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let stats = &mut self.stats;
        stats.misses += 1;
        stats.miss_nanoseconds = stats.miss_nanoseconds.saturating_add(nanoseconds);
        stats.slowest_miss_nanoseconds = stats.slowest_miss_nanoseconds.max(nanoseconds);
    }

    /// The counters, and the slots that there are.
    pub(super) fn snapshot(&self, slots: Vec<SlotStats>) -> Stats {
        let replays = slots.iter().map(|slot| slot.replays).sum::<u64>();
        Stats {
            requests: self.requests,
            hits: self.hits,
            fences: self.fences,
            captured: self.captured,
            largest_request: self.largest_request,
            replays: self.stats.replays + replays,
            digest: self.decisions.finish(),
            slots,
            ..self.stats.clone()
        }
    }
}
