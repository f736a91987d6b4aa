//! Statistics for those who watch: as an event of `tracing`, and by the `metrics` facade.
//!
//! A pool reports by itself after every growth, reservation, trim and close, at level `debug` and with
//! the target `collectives::scratch`. A hit reports nothing; whoever wants more calls [`report`] with
//! [`Collectives::stats`](collectives_core::collectives::Collectives::stats), as often as wanted.
//!
//! With the feature `metrics`, the same numbers go to the recorder of the process, whichever exporter
//! it belongs to. Counters are absolute, so that a report may be missed.

use collectives_core::rank::Rank;
use collectives_core::stats::Stats;

/// The target of the events.
pub const TARGET: &str = "collectives::scratch";

/// Reports the statistics of one rank's allocator.
pub fn report(policy: &str, rank: Rank, stats: &Stats) {
    let (live, retired) = stats.slot_counts();
    tracing::debug!(
        target: TARGET,
        policy,
        rank = rank.0,
        requests = stats.requests,
        hits = stats.hits,
        growths = stats.growths,
        fallbacks = stats.fallback_count(),
        refusals = stats.refusals,
        busy = stats.busy,
        fences = stats.fences,
        captured = stats.captured,
        pieces = stats.pieces,
        replays = stats.replays,
        slots_live = live,
        slots_retired = retired,
        capacity_bytes = stats.capacity_bytes(),
        mapped_bytes = stats.mapped_bytes(),
        address_bytes = stats.address_bytes(),
        claimed_bytes = stats.claimed_bytes(),
        overhead_bytes = stats.overhead_bytes(),
        peak_mapped_bytes = stats.peak_mapped_bytes,
        largest_request = stats.largest_request,
        promised_bound = stats.promised_bound,
        headroom = stats.headroom(),
        registrations = stats.registrations,
        deregistrations = stats.deregistrations,
        registrations_after_seal = stats.registrations_after_seal,
        agreements = stats.agreements,
        agreement_failures = stats.agreement_failures,
        misses = stats.misses,
        miss_nanoseconds = stats.miss_nanoseconds,
        slowest_miss_nanoseconds = stats.slowest_miss_nanoseconds,
        digest = stats.digest,
        poisoned = stats.poisoned.as_deref(),
        "statistics"
    );
    #[cfg(feature = "metrics")]
    facade::record(policy, rank, stats);
}

#[cfg(feature = "metrics")]
mod facade {
    use metrics::{Label, counter, gauge};

    use super::{Rank, Stats};

    /// Hands every number to the recorder, under `collectives_scratch_…`.
    pub(super) fn record(policy: &str, rank: Rank, stats: &Stats) {
        let own = || {
            vec![
                Label::new("policy", policy.to_owned()),
                Label::new("rank", rank.to_string()),
            ]
        };
        macro_rules! counters {
            ($($name:literal: $value:expr;)+) => {
                $(counter!(concat!("collectives_scratch_", $name), own()).absolute($value);)+
            };
        }
        macro_rules! gauges {
            ($($name:literal: $value:expr;)+) => {
                $(gauge!(concat!("collectives_scratch_", $name), own()).set(real($value));)+
            };
        }
        counters! {
            "requests": stats.requests;
            "hits": stats.hits;
            "growths": stats.growths;
            "refusals": stats.refusals;
            "busy": stats.busy;
            "fences": stats.fences;
            "captured": stats.captured;
            "pieces": stats.pieces;
            "replays": stats.replays;
            "registrations": stats.registrations;
            "deregistrations": stats.deregistrations;
            "registrations_after_seal": stats.registrations_after_seal;
            "agreements": stats.agreements;
            "agreement_failures": stats.agreement_failures;
            "misses": stats.misses;
            "miss_nanoseconds": stats.miss_nanoseconds;
        }
        for (reason, count) in &stats.fallbacks {
            let mut labels = own();
            labels.push(Label::new("reason", reason.to_string()));
            counter!("collectives_scratch_fallbacks", labels).absolute(*count);
        }
        for (octave, &count) in stats.histogram.0.iter().enumerate() {
            if count > 0 {
                let mut labels = own();
                labels.push(Label::new("octave", octave.to_string()));
                counter!("collectives_scratch_requests_by_size", labels).absolute(count);
            }
        }
        let (live, retired) = stats.slot_counts();
        gauges! {
            "slots_live": live;
            "slots_retired": retired;
            "capacity_bytes": stats.capacity_bytes();
            "mapped_bytes": stats.mapped_bytes();
            "address_bytes": stats.address_bytes();
            "claimed_bytes": stats.claimed_bytes();
            "overhead_bytes": stats.overhead_bytes();
            "peak_mapped_bytes": stats.peak_mapped_bytes;
            "largest_request_bytes": stats.largest_request;
            "poisoned": usize::from(stats.poisoned.is_some());
        }
        if let Some(headroom) = stats.headroom() {
            gauge!("collectives_scratch_headroom_bytes", own()).set(real(headroom));
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "the facade has floats only")]
    fn real(number: usize) -> f64 {
        number as f64
    }
}
