//! How much a calibration measures of one size, so that it ends in time also where a call is slow.

use std::time::Duration;

/// How often both ways take turns; the median counts.
const ROUNDS: usize = 21;

/// The same where more would take too long.
const FEW_ROUNDS: usize = 5;

/// What is timed takes this long, or as many calls as that are made, or one: the host waits for the device
/// behind it.
const TIMED: Duration = Duration::from_micros(500);
const BATCHES: [usize; 3] = [16, 4, 1];

/// What the calls of one way may take, unless few rounds of one call take longer.
const PATIENCE: Duration = Duration::from_millis(50);

/// What is measured. There are few values, so that ranks whose clocks differ a little differ in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effort {
    /// Rounds that count; one more warms up.
    pub(super) rounds: usize,
    /// Calls in what is timed. As many may come before, to bring the ranks together.
    pub(super) batch: usize,
}

impl Effort {
    /// What is affordable where a call takes this long, with the wait for it.
    pub(super) fn affordable(call: Duration) -> Self {
        let fits = |batch: &usize| times(call, *batch) <= TIMED;
        let batch = BATCHES.into_iter().find(fits).unwrap_or(1);
        let all = times(call, 2 * batch * (ROUNDS + 1));
        Self {
            rounds: if all <= PATIENCE { ROUNDS } else { FEW_ROUNDS },
            batch,
        }
    }
}

fn times(call: Duration, calls: usize) -> Duration {
    call.saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(Duration::ZERO, 21, 16)]
    #[case::small_on_a_gpu(Duration::from_micros(20), 21, 16)]
    #[case::medium(Duration::from_micros(100), 21, 4)]
    #[case::large(Duration::from_micros(400), 21, 1)]
    #[case::slow(Duration::from_millis(1), 21, 1)]
    #[case::slower(Duration::from_millis(6), 5, 1)]
    #[case::for_ever(Duration::MAX, 5, 1)]
    fn slow_calls_are_made_less_often(
        #[case] call: Duration,
        #[case] rounds: usize,
        #[case] batch: usize,
    ) {
        assert_eq!(Effort::affordable(call), Effort { rounds, batch });
    }

    #[test]
    fn one_way_takes_its_time_or_the_least_there_is() {
        for exponent in 0..36 {
            let call = Duration::from_nanos(1 << exponent);
            let Effort { rounds, batch } = Effort::affordable(call);
            let all = times(call, 2 * batch * (rounds + 1));
            assert!(all <= PATIENCE || (rounds, batch) == (FEW_ROUNDS, 1));
        }
    }
}
