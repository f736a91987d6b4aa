//! From how many bytes on copying through scratch pays, by measurement.

use std::fmt;
use std::time::Duration;

use crate::collective::OpKind;

/// How long one operation of one size takes on its two ways, the slowest rank's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The operation.
    pub op: OpKind,
    /// Whether it was replayed from a graph.
    pub captured: bool,
    /// Bytes of its larger operand.
    pub bytes: usize,
    /// By the ordinary path.
    pub direct: Duration,
    /// Copied through scratch.
    pub staged: Duration,
}

/// What [`Collectives::calibrate`] measured; equal on all ranks.
///
/// [`Collectives::calibrate`]: super::Collectives::calibrate
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calibration(pub Vec<Sample>);

impl Calibration {
    /// From how many bytes on staging an operation pays: the size that loses least, as the sum over all
    /// samples of what the way taken takes longer than the better one, in parts of the better one. What
    /// is larger than every sample goes as `otherwise`, a number of bytes, says.
    #[must_use]
    pub fn stage_from(&self, op: OpKind, captured: bool, otherwise: usize) -> usize {
        let samples = self.0.iter().filter(|sample| {
            (sample.op, sample.captured) == (op, captured) && sample.bytes < usize::MAX
        });
        let samples: Vec<_> = samples.collect();
        let Some(largest) = samples.iter().map(|sample| sample.bytes).max() else {
            return otherwise;
        };
        let beyond = otherwise.max(largest + 1);
        let loss = |from: usize| -> f64 {
            let losses = samples
                .iter()
                .map(|sample| sample.loss(sample.bytes >= from));
            losses.sum()
        };
        // Of two that lose the same the larger one takes less scratch.
        let candidates = samples.iter().map(|sample| sample.bytes);
        candidates
            .map(|from| (loss(from), from))
            .fold((loss(beyond), beyond), |best, other| {
                let less = other.0.total_cmp(&best.0);
                match less.then(best.1.cmp(&other.1)) {
                    std::cmp::Ordering::Less => other,
                    _ => best,
                }
            })
            .1
    }

    /// The most that the way taken takes longer than the better one, in parts of the better one, over
    /// the samples of one operation.
    #[must_use]
    pub fn worst_loss(&self, op: OpKind, captured: bool, from: usize) -> f64 {
        let samples = self.0.iter();
        samples
            .filter(|sample| (sample.op, sample.captured) == (op, captured))
            .map(|sample| sample.loss(sample.bytes >= from))
            .fold(0.0, f64::max)
    }
}

impl Sample {
    fn loss(&self, staged: bool) -> f64 {
        let best = self.direct.min(self.staged).as_secs_f64();
        let taken = match staged {
            true => self.staged,
            false => self.direct,
        };
        match best > 0.0 {
            true => taken.as_secs_f64() / best - 1.0,
            false => 0.0,
        }
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for sample in &self.0 {
            writeln!(
                f,
                "{} of {} bytes{}: {:.2} us direct, {:.2} us staged",
                sample.op,
                sample.bytes,
                if sample.captured { " in a graph" } else { "" },
                sample.direct.as_secs_f64() * 1e6,
                sample.staged.as_secs_f64() * 1e6,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples(times: &[(usize, u64, u64)]) -> Calibration {
        let sample = |&(bytes, direct, staged)| Sample {
            op: OpKind::AllReduce,
            captured: false,
            bytes,
            direct: Duration::from_nanos(direct),
            staged: Duration::from_nanos(staged),
        };
        Calibration(times.iter().map(sample).collect())
    }

    fn from(times: &[(usize, u64, u64)], otherwise: usize) -> usize {
        samples(times).stage_from(OpKind::AllReduce, false, otherwise)
    }

    #[test]
    fn staging_begins_where_it_begins_to_pay() {
        let crossing = [(64, 10, 20), (128, 15, 20), (256, 30, 21), (512, 60, 25)];
        assert_eq!(from(&crossing, 1 << 20), 256);
        assert_eq!(from(&crossing[..2], 1 << 20), 1 << 20);
        assert_eq!(
            from(&crossing[..2], 0),
            129,
            "never, as far as it was measured"
        );
        assert_eq!(from(&crossing[2..], 1 << 20), 256, "always");
        assert_eq!(from(&[], 77), 77);
        assert_eq!(from(&[(64, 10, 10)], 0), 65, "no scratch for no gain");
    }

    #[test]
    fn one_odd_sample_does_not_move_it() {
        let noisy = [(64, 10, 20), (128, 100, 99), (256, 10, 20), (512, 60, 25)];
        assert_eq!(from(&noisy, 1 << 20), 512);
    }

    #[test]
    fn operations_and_graphs_are_apart() {
        let mut both = samples(&[(64, 10, 5)]);
        both.0.push(Sample {
            captured: true,
            direct: Duration::from_nanos(1),
            ..both.0[0]
        });
        assert_eq!(both.stage_from(OpKind::AllReduce, false, 9999), 64);
        assert_eq!(both.stage_from(OpKind::AllReduce, true, 9999), 9999);
        assert_eq!(both.stage_from(OpKind::AllGather, false, 9999), 9999);
    }

    proptest! {
        #[test]
        fn no_other_size_loses_less(
            times in prop::collection::vec((1_usize..5000, 1_u64..1000, 1_u64..1000), 1..12),
            otherwise in 0_usize..6000,
        ) {
            let calibration = samples(&times);
            let total = |from: usize| -> f64 {
                calibration.0.iter().map(|sample| sample.loss(sample.bytes >= from)).sum()
            };
            let chosen = total(calibration.stage_from(OpKind::AllReduce, false, otherwise));
            for from in times.iter().map(|time| time.0).chain([0, usize::MAX]) {
                prop_assert!(chosen <= total(from) + 1e-9);
            }
        }
    }
}
