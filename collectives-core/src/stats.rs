//! What a scratch allocator counts.

use crate::path::Reason;

/// Counters and sizes of one scratch allocator on this rank.
///
/// `requests = hits + growths + fallbacks + refusals` always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls of `acquire` with a valid size.
    pub requests: u64,
    /// Requests served by a slot that existed.
    pub hits: u64,
    /// Requests that registered a slot.
    pub growths: u64,
    /// Requests sent to the ordinary path, by reason.
    pub fallbacks: Vec<(Reason, u64)>,
    /// Requests that failed.
    pub refusals: u64,
    /// Waits enqueued because another stream, or a graph, used the slot before.
    pub fences: u64,
    /// Uses recorded into graphs.
    pub captured: u64,
    /// Windows registered since the beginning.
    pub registrations: u64,
    /// Windows retired since the beginning.
    pub deregistrations: u64,
    /// Windows registered after the seal; always zero.
    pub registrations_after_seal: u64,
    /// Agreement rounds.
    pub agreements: u64,
    /// Agreement rounds that failed.
    pub agreement_failures: u64,
    /// Nanoseconds spent on misses, in all.
    pub miss_nanoseconds: u64,
    /// Nanoseconds of the slowest miss.
    pub slowest_miss_nanoseconds: u64,
    /// The largest request served, in bytes.
    pub largest_request: usize,
    /// Slots kept, live and retired, ascending by generation.
    pub slots: Vec<SlotStats>,
    /// The largest sum of mapped bytes there ever was.
    pub peak_mapped_bytes: usize,
    /// The bound the policy promises for the sum of capacities, if it promises one.
    pub promised_bound: Option<usize>,
    /// Requests by size: entry `i` counts those of `2^i` up to `2^(i+1) - 1` bytes.
    pub histogram: Histogram,
    /// Digest of every decision so far; equal on all ranks.
    pub digest: u64,
    /// Why the allocator refuses work, if it does.
    pub poisoned: Option<String>,
}

/// Requests by power-of-two size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram(pub [u64; 64]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Histogram {
    /// Counts one request.
    #[inline]
    pub fn count(&mut self, bytes: usize) {
        let octave = bytes.max(1).ilog2() as usize;
        self.0[octave.min(63)] += 1;
    }
}

/// One slot of a scratch allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotStats {
    /// Its generation.
    pub generation: u64,
    /// Bytes the policy asked for.
    pub capacity: usize,
    /// Bytes the device lost.
    pub mapped: usize,
    /// Whether a lease holds it.
    pub leased: bool,
    /// Whether a graph on this rank owns it.
    pub claimed: bool,
    /// Whether the policy replaced it, so that it goes with its last graph.
    pub retired: bool,
    /// The arena whose bytes it maps, by its first generation, where it is one of several
    /// generations that may map the same bytes.
    pub arena: Option<u64>,
}

impl Stats {
    /// The sum of capacities kept; bytes that several generations of an arena map count once.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        once(&self.slots, |_| true).map(|slot| slot.capacity).sum()
    }

    /// The sum of mapped bytes kept, each once.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        once(&self.slots, |_| true).map(|slot| slot.mapped).sum()
    }

    /// Bytes of addresses that slots take; bytes that several generations of an arena map count for
    /// each.
    #[must_use]
    pub fn address_bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.mapped).sum()
    }

    /// Mapped bytes that graphs on this rank own, each once.
    #[must_use]
    pub fn claimed_bytes(&self) -> usize {
        let claimed = once(&self.slots, |slot| slot.claimed);
        claimed.map(|slot| slot.mapped).sum()
    }

    /// Requests that took the ordinary path, for all reasons.
    #[must_use]
    pub fn fallback_count(&self) -> u64 {
        self.fallbacks.iter().map(|(_, count)| count).sum()
    }
}

/// The chosen slots without generations whose bytes a newer chosen one maps as well.
fn once(
    slots: &[SlotStats],
    chosen: impl Fn(&SlotStats) -> bool + Copy,
) -> impl Iterator<Item = &SlotStats> {
    let newest = move |slot: &&SlotStats| {
        let newer = |other: &SlotStats| {
            chosen(other) && other.arena == slot.arena && other.generation > slot.generation
        };
        slot.arena.is_none() || !slots.iter().any(newer)
    };
    slots.iter().filter(move |slot| chosen(slot)).filter(newest)
}
