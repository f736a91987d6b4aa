//! What a policy came to: on one rank, and on all of them.

use collectives_core::stats::Stats;
use half::bf16;
use serde::{Deserialize, Serialize};

/// What one rank saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) kept: Kept,
    /// Bytes of the device that the largest request takes, in whole granules.
    pub(crate) largest_mapped: usize,
    pub(crate) granule: usize,
    pub(crate) replays: usize,
    pub(crate) wrong_elements: u64,
    /// Of the bits of every result, in order.
    pub(crate) digest: u64,
    /// Bytes that the device lost to each of its ranks between the rehearsal and the end, when
    /// graphs and tensors are gone and scratch is all that is left; where the backend can tell.
    pub(crate) device_lost: Option<usize>,
    /// What of that it had not got back after scratch was given back too.
    pub(crate) device_lost_after_trim: Option<usize>,
    pub(crate) nanoseconds: u64,
    /// Mapped bytes that scratch kept after each step.
    pub(crate) kept_after: Vec<usize>,
}

/// What scratch kept at the end; the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) capacity: usize,
    pub(crate) mapped: usize,
    pub(crate) registrations: u64,
    pub(crate) hits: u64,
    /// Generation and capacity of each slot.
    pub(crate) slots: Vec<(u64, usize)>,
}

impl Kept {
    pub(crate) fn new(stats: &Stats) -> Self {
        Self {
            capacity: stats.capacity_bytes(),
            mapped: stats.mapped_bytes(),
            registrations: stats.registrations,
            hits: stats.hits,
            slots: stats
                .slots
                .iter()
                .map(|slot| (slot.generation, slot.capacity))
                .collect(),
        }
    }
}

impl Outcome {
    /// Whether the device lost what scratch says it keeps, to a granule a window of its own count.
    ///
    /// What a device loses is told by its driver and counts everything that the process and the
    /// library make it keep: mapped granules, the tables of windows and addresses, modules, memory of
    /// executables. What is made once is made in the rehearsal, which runs the same operations and as
    /// many graphs. Tensors are gone, because destructors of graphs, which own them, have been waited
    /// for: those run on another thread and late. So what is left is scratch, and what library and
    /// driver keep for each window; how much the latter keep when the windows are gone tells
    /// [`device_lost_after_trim`](Self::device_lost_after_trim).
    pub(crate) fn is_accounted_for(&self) -> bool {
        self.device_lost.is_none_or(|lost| {
            lost.abs_diff(self.kept.mapped) <= self.granule * self.kept.slots.len().max(1)
        })
    }
}

/// A running digest of results: FNV-1a over words of four elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    pub(crate) fn add(&mut self, result: &[bf16]) {
        for four in result.chunks(4) {
            let word = four
                .iter()
                .fold(0, |word, value| word << 16 | u64::from(value.to_bits()));
            self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lost: Option<usize>) -> Outcome {
        Outcome {
            kept: Kept {
                capacity: 5,
                mapped: 80,
                registrations: 2,
                hits: 0,
                slots: vec![(0, 2), (1, 3)],
            },
            largest_mapped: 40,
            granule: 40,
            replays: 0,
            wrong_elements: 0,
            digest: 0,
            device_lost: lost,
            device_lost_after_trim: lost.map(|_| 0),
            nanoseconds: 0,
            kept_after: Vec::new(),
        }
    }

    #[test]
    fn a_device_may_lose_a_granule_a_window_more_or_less() {
        for (lost, fine) in [(0, true), (160, true), (161, false), (usize::MAX, false)] {
            assert_eq!(outcome(Some(lost)).is_accounted_for(), fine, "{lost}");
        }
        assert!(outcome(None).is_accounted_for());
    }

    #[test]
    fn a_digest_sees_every_bit_and_the_order() {
        let digest = |values: &[f32]| {
            let mut digest = Digest::default();
            let values: Vec<_> = values.iter().map(|&value| bf16::from_f32(value)).collect();
            digest.add(&values);
            digest.get()
        };
        let one = digest(&[1.0, 2.0, 3.0, 4.0, 0.0]);
        assert_ne!(one, digest(&[1.0, 2.0, 3.0, 4.0, -0.0]));
        assert_ne!(one, digest(&[2.0, 1.0, 3.0, 4.0, 0.0]));
        assert_eq!(one, digest(&[1.0, 2.0, 3.0, 4.0, 0.0]));
    }
}
