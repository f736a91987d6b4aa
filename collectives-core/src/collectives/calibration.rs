//! At which sizes copying through scratch pays, by measurement.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::collective::OpKind;
use crate::dtype::DType;

/// How long one operation of one size takes on its two ways, the slowest rank's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The operation.
    pub op: OpKind,
    /// The element type, which stands for all that are calculated with as it is.
    pub dtype: DType,
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

/// Which sizes an operation is staged at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Bytes of the larger operand that staging pays for, as far as it was measured.
    pub sizes: Range<usize>,
    /// The largest size that was measured, in bytes; a larger one goes by the backend's table.
    pub measured: usize,
}

impl Calibration {
    /// At which sizes staging an operation on such elements pays, if it was measured: the range that loses
    /// least, as the sum over all samples of what the way taken takes longer than the better one, in parts
    /// of the better one. Of ranges that lose the same it is the one that stages least.
    ///
    /// A range, because copies cost too much where an operation is short, and may cost too much again
    /// where the ordinary kernel has caught up.
    #[must_use]
    pub fn staged(&self, op: OpKind, dtype: DType, captured: bool) -> Option<Staged> {
        let wanted = (op, dtype, captured);
        let of_this = |sample: &&Sample| (sample.op, sample.dtype, sample.captured) == wanted;
        let mut samples: Vec<_> = self.0.iter().filter(of_this).collect();
        samples.sort_unstable_by_key(|sample| sample.bytes);
        let measured = samples.last()?.bytes;
        // Each size begins a range, and what follows the last ends it.
        let end = measured.saturating_add(1);
        let mut bounds: Vec<_> = samples.iter().map(|sample| sample.bytes).collect();
        bounds.push(end);
        let loss = |sizes: &Range<usize>| -> f64 {
            let losses = samples
                .iter()
                .map(|sample| sample.loss(sizes.contains(&sample.bytes)));
            losses.sum()
        };
        let mut best = end..end;
        let mut least = loss(&best);
        for (index, &from) in bounds.iter().enumerate() {
            for &below in &bounds[index + 1..] {
                let sizes = from..below;
                let lost = loss(&sizes);
                if lost < least || lost <= least && sizes.len() < best.len() {
                    (best, least) = (sizes, lost);
                }
            }
        }
        Some(Staged {
            sizes: best,
            measured,
        })
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
                "{} of {} bytes of {}{}: {:.2} us direct, {:.2} us staged",
                sample.op,
                sample.bytes,
                sample.dtype,
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
            dtype: DType::F32,
            captured: false,
            bytes,
            direct: Duration::from_nanos(direct),
            staged: Duration::from_nanos(staged),
        };
        Calibration(times.iter().map(sample).collect())
    }

    fn staged(times: &[(usize, u64, u64)]) -> Range<usize> {
        let staged = samples(times).staged(OpKind::AllReduce, DType::F32, false);
        let staged = staged.unwrap();
        assert_eq!(Some(staged.measured), times.iter().map(|time| time.0).max());
        staged.sizes
    }

    #[test]
    fn staging_begins_where_it_begins_to_pay_and_ends_where_it_ends() {
        let crossing = [(64, 10, 20), (128, 15, 20), (256, 30, 21), (512, 60, 25)];
        assert_eq!(staged(&crossing), 256..513);
        assert!(staged(&crossing[..2]).is_empty());
        assert_eq!(staged(&crossing[2..]), 256..513);
        let twice = [(64, 10, 20), (128, 27, 26), (256, 42, 31), (512, 45, 57)];
        assert_eq!(staged(&twice), 128..512);
        assert!(staged(&[(64, 10, 10)]).is_empty(), "no scratch for no gain");
        let nothing = Calibration::default();
        assert_eq!(nothing.staged(OpKind::AllReduce, DType::F32, false), None);
    }

    #[test]
    fn one_odd_sample_does_not_move_it() {
        let noisy = [(64, 10, 20), (128, 100, 99), (256, 10, 20), (512, 60, 25)];
        assert_eq!(staged(&noisy), 512..513);
    }

    #[test]
    fn operations_element_types_and_graphs_are_apart() {
        let mut both = samples(&[(64, 10, 5)]);
        both.0.push(Sample {
            captured: true,
            direct: Duration::from_nanos(1),
            ..both.0[0]
        });
        let sizes = |op, dtype, captured| {
            let staged = both.staged(op, dtype, captured);
            staged.map(|staged| staged.sizes)
        };
        assert_eq!(sizes(OpKind::AllReduce, DType::F32, false), Some(64..65));
        assert_eq!(sizes(OpKind::AllReduce, DType::F32, true), Some(65..65));
        assert_eq!(sizes(OpKind::AllReduce, DType::Bf16, false), None);
        assert_eq!(sizes(OpKind::AllGather, DType::F32, false), None);
    }

    proptest! {
        #[test]
        fn no_other_range_loses_less(
            times in prop::collection::vec((1_usize..5000, 1_u64..1000, 1_u64..1000), 1..12),
        ) {
            let calibration = samples(&times);
            let total = |sizes: Range<usize>| -> f64 {
                let losses = calibration
                    .0
                    .iter()
                    .map(|sample| sample.loss(sizes.contains(&sample.bytes)));
                losses.sum()
            };
            let chosen = total(staged(&times));
            let bounds: Vec<_> = times.iter().map(|time| time.0).chain([0, 5000]).collect();
            for &from in &bounds {
                for &below in &bounds {
                    prop_assert!(chosen <= total(from..below) + 1e-9);
                }
            }
        }
    }
}
