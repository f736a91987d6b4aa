//! A clock that is cheap enough for single operations of some ten nanoseconds.

use std::time::{Duration, Instant};

use crate::sample::{Sample, smallest};

/// The time-stamp counter where there is one, calibrated against the system's clock.
///
/// Both reads are fenced, so that no instruction moves across them. What an empty pair of reads
/// takes is known, and is subtracted from every single operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    nanoseconds_per_tick: f64,
    overhead: f64,
    step: f64,
}

impl Clock {
    pub(crate) fn calibrated() -> Self {
        let begun = Instant::now();
        let first = ticks();
        while begun.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let ticked = ticks() - first;
        #[expect(
            clippy::cast_precision_loss,
            reason = "20 ms of ticks fit into 53 bits"
        )]
        let nanoseconds_per_tick = begun.elapsed().as_nanos() as f64 / ticked as f64;
        let mut clock = Self {
            nanoseconds_per_tick,
            overhead: 0.0,
            step: 0.0,
        };
        let empty = (0..10_001).map(|_| clock.single(|| ())).collect();
        clock.overhead = Sample::new(empty).quantile(0.5);
        let steps = (0..1_000).map(|_| clock.next_step());
        clock.step = smallest(steps).unwrap_or(0.0);
        clock
    }

    /// The smallest difference of two reads: virtual machines make coarse counters.
    pub(crate) const fn step(&self) -> f64 {
        self.step
    }

    fn next_step(&self) -> f64 {
        let first = ticks();
        loop {
            let later = ticks();
            if later != first {
                #[expect(clippy::cast_precision_loss, reason = "short spans fit into 53 bits")]
                let ticked = (later - first) as f64;
                return ticked * self.nanoseconds_per_tick;
            }
        }
    }

    /// What an empty measurement takes, in nanoseconds.
    pub(crate) const fn overhead(&self) -> f64 {
        self.overhead
    }

    /// Nanoseconds of one call, less the overhead.
    #[inline(always)]
    pub(crate) fn single(&self, call: impl FnOnce()) -> f64 {
        let first = ticks();
        call();
        let last = ticks();
        #[expect(clippy::cast_precision_loss, reason = "short spans fit into 53 bits")]
        let ticked = last.saturating_sub(first) as f64;
        (ticked * self.nanoseconds_per_tick - self.overhead).max(0.0)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ticks() -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: Every x86-64 processor has both instructions.
    unsafe { _mm_lfence() };
    // SAFETY: As above.
    let ticks = unsafe { _rdtsc() };
    // SAFETY: As above.
    unsafe { _mm_lfence() };
    ticks
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    use std::sync::LazyLock;
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGUN.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
