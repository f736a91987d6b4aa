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
    /// Requests that registered a slot, or failed, although one that is large enough was there: it was
    /// leased. Part of the growths and failures.
    pub busy: u64,
    /// Waits enqueued because another stream, or a graph, used the slot before.
    pub fences: u64,
    /// Uses recorded into graphs.
    pub captured: u64,
    /// Pieces enqueued or captured of calls that were split; a call that is staged whole counts none.
    /// A piece counts once its copies and its operation are enqueued, also if a later one fails. The
    /// pieces of one call share one request.
    pub pieces: u64,
    /// Uses of slots by replays, since the beginning: each launch counts once for every slot that its
    /// graph owns, as in [`SlotStats::replays`], and slots that are gone count on with what they had.
    /// One given up at `close` while graphs own it is gone from then on.
    pub replays: u64,
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
    /// Misses that ranks met for while serving, whether they registered a slot or failed; `reserve`
    /// is none.
    pub misses: u64,
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
    /// Replays that [`Executable::launch`](crate::graph::Executable::launch) enqueued on this rank of
    /// graphs that own it, however often they use it; those that failed, and those that a framework
    /// launches by itself, which nobody tells us of, are not among them.
    pub replays: u64,
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

    /// Mapped bytes that no capacity asked for: the rest of the last granule, and what the backend
    /// keeps for itself.
    #[must_use]
    pub fn overhead_bytes(&self) -> usize {
        self.mapped_bytes().saturating_sub(self.capacity_bytes())
    }

    /// Capacity that the policy may still add before it would break its promise, if it made one.
    ///
    /// What graphs and leases keep is not part of the promise, and retired slots are kept for them.
    #[must_use]
    pub fn headroom(&self) -> Option<usize> {
        let live = once(&self.slots, |slot| !slot.retired);
        let live: usize = live.map(|slot| slot.capacity).sum();
        Some(self.promised_bound?.saturating_sub(live))
    }

    /// Mapped bytes over the largest request served; zero before the first.
    #[must_use]
    pub fn retained_ratio(&self) -> f64 {
        ratio(self.mapped_bytes() as u64, self.largest_request as u64)
    }

    /// Hits over requests; zero before the first.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hits, self.requests)
    }

    /// Slots that leases may get, and those that only graphs and leases keep.
    #[must_use]
    pub fn slot_counts(&self) -> (usize, usize) {
        let retired = self.slots.iter().filter(|slot| slot.retired).count();
        (self.slots.len() - retired, retired)
    }

    /// What was counted since an earlier snapshot; sizes, slots, digest and poison are those of now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let fallbacks = self.fallbacks.iter().map(|&(reason, count)| {
            let known = earlier.fallbacks.iter().find(|(known, _)| *known == reason);
            (
                reason,
                count - known.map_or(0, |(_, count)| *count).min(count),
            )
        });
        let histogram = std::array::from_fn(|octave| {
            self.histogram.0[octave].saturating_sub(earlier.histogram.0[octave])
        });
        let counted = |count: fn(&Self) -> u64| count(self).saturating_sub(count(earlier));
        Self {
            requests: counted(|stats| stats.requests),
            hits: counted(|stats| stats.hits),
            growths: counted(|stats| stats.growths),
            fallbacks: fallbacks.filter(|(_, count)| *count > 0).collect(),
            refusals: counted(|stats| stats.refusals),
            busy: counted(|stats| stats.busy),
            fences: counted(|stats| stats.fences),
            captured: counted(|stats| stats.captured),
            pieces: counted(|stats| stats.pieces),
            replays: counted(|stats| stats.replays),
            registrations: counted(|stats| stats.registrations),
            deregistrations: counted(|stats| stats.deregistrations),
            registrations_after_seal: counted(|stats| stats.registrations_after_seal),
            agreements: counted(|stats| stats.agreements),
            agreement_failures: counted(|stats| stats.agreement_failures),
            misses: counted(|stats| stats.misses),
            miss_nanoseconds: counted(|stats| stats.miss_nanoseconds),
            histogram: Histogram(histogram),
            ..self.clone()
        }
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

#[expect(clippy::cast_precision_loss, reason = "a ratio for people to read")]
fn ratio(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(generation: u64, mapped: usize, arena: Option<u64>, retired: bool) -> SlotStats {
        SlotStats {
            generation,
            capacity: mapped - 1,
            mapped,
            leased: false,
            claimed: retired,
            replays: 0,
            retired,
            arena,
        }
    }

    #[test]
    fn bytes_that_generations_share_count_once() {
        let stats = Stats {
            slots: vec![
                slot(1, 10, Some(1), true),
                slot(2, 5, None, true),
                slot(3, 20, Some(1), true),
                slot(4, 7, Some(4), false),
                slot(5, 30, Some(1), false),
            ],
            largest_request: 21,
            promised_bound: Some(40),
            ..Stats::default()
        };
        assert_eq!(stats.mapped_bytes(), 5 + 7 + 30);
        assert_eq!(stats.capacity_bytes(), 4 + 6 + 29);
        assert_eq!(stats.address_bytes(), 10 + 5 + 20 + 7 + 30);
        assert_eq!(stats.claimed_bytes(), 20 + 5);
        assert_eq!(stats.overhead_bytes(), 3);
        assert_eq!(stats.headroom(), Some(40 - 6 - 29));
        assert_eq!(stats.slot_counts(), (2, 3));
        assert!((stats.retained_ratio() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_difference_has_counts_of_the_time_between_and_sizes_of_now() {
        let mut earlier = Stats {
            requests: 5,
            hits: 3,
            pieces: 2,
            replays: 4,
            fallbacks: vec![(Reason::OverCap, 2)],
            ..Stats::default()
        };
        earlier.histogram.count(8);
        let mut now = Stats {
            requests: 9,
            hits: 6,
            pieces: 7,
            replays: 9,
            fallbacks: vec![(Reason::OverCap, 2), (Reason::Policy, 1)],
            digest: 7,
            ..earlier.clone()
        };
        now.histogram.count(9);
        let between = now.since(&earlier);
        assert_eq!((between.requests, between.hits, between.digest), (4, 3, 7));
        assert_eq!(between.pieces, 5);
        assert_eq!(between.replays, 5);
        assert_eq!(between.fallbacks, [(Reason::Policy, 1)]);
        assert_eq!(between.histogram.0[3], 1);
        assert!((between.hit_rate() - 0.75).abs() < 1e-9);
        assert!(Stats::default().hit_rate().abs() < 1e-9);
    }
}
