//! The ranks of one communicator, as operations on it see them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use collectives_core::collective::Counts;
use collectives_core::error::Result;
use collectives_core::rank::Rank;

use crate::raw::{Comm, int};

/// The most bytes, or elements, that one MPI call carries: what its `int` can count.
static LARGEST: AtomicUsize = AtomicUsize::new(c_int::MAX as usize);

/// Whether floats are summed in the order of ranks.
static IN_RANK_ORDER: AtomicBool = AtomicBool::new(false);

/// Who takes part in an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) comm: Comm,
    pub(crate) me: usize,
    pub(crate) ranks: usize,
    /// What one call carries at most.
    pub(crate) largest: usize,
    /// Whether floats are summed in the order of ranks, or in whichever MPI chooses.
    pub(crate) in_rank_order: bool,
}

/// Each rank's bytes, and where they begin, as MPI takes them.
pub(crate) struct Parts {
    pub(crate) counts: Vec<c_int>,
    pub(crate) places: Vec<c_int>,
}

impl Group {
    pub(crate) fn new(comm: Comm, me: usize, ranks: usize, in_rank_order: bool) -> Self {
        Self {
            comm,
            me,
            ranks,
            largest: LARGEST.load(Ordering::Relaxed),
            in_rank_order,
        }
    }

    /// A rank as MPI takes it.
    pub(crate) fn int(rank: usize) -> c_int {
        c_int::try_from(rank).unwrap_or(c_int::MAX)
    }
}

impl Parts {
    /// Parts of `unit` bytes an element, one behind the other.
    pub(crate) fn of(counts: &Counts<'_>, ranks: usize, unit: usize) -> Result<Self> {
        Self::of_lengths((0..ranks).map(|rank| counts.of(Rank::new(rank)) * unit))
    }

    /// Parts of these lengths, one behind the other.
    pub(crate) fn of_lengths(lengths: impl Iterator<Item = usize>) -> Result<Self> {
        let (mut counts, mut places) = (Vec::new(), Vec::new());
        let mut place = 0;
        for length in lengths {
            counts.push(int(length)?);
            places.push(int(place)?);
            place += length;
        }
        Ok(Self { counts, places })
    }

    pub(crate) fn as_pair(&self) -> (&[c_int], &[c_int]) {
        (&self.counts, &self.places)
    }
}

/// Whether communicators that are made now sum floats in the order of ranks.
pub(crate) fn is_in_rank_order() -> bool {
    IN_RANK_ORDER.load(Ordering::Relaxed)
}

/// Has communicators that are made from now on sum floats in the order of ranks.
pub(crate) fn sum_in_rank_order(ordered: bool) {
    IN_RANK_ORDER.store(ordered, Ordering::Relaxed);
}

/// Lets one MPI call carry at most this many bytes.
pub(crate) fn limit_calls(bytes: usize) {
    LARGEST.store(bytes.clamp(64, c_int::MAX as usize), Ordering::Relaxed);
}

/// The count of every rank, if it is the same one. Ranks may say the same with a vector or without,
/// and must choose alike.
pub(crate) fn even(counts: &Counts<'_>, ranks: usize) -> Option<usize> {
    let first = counts.of(Rank(0));
    (1..ranks)
        .all(|rank| counts.of(Rank::new(rank)) == first)
        .then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_of_equal_counts_is_even() {
        assert_eq!(even(&Counts::Even(3), 4), Some(3));
        assert_eq!(even(&Counts::Uneven(&[3, 3]), 2), Some(3));
        assert_eq!(even(&Counts::Uneven(&[3, 4]), 2), None);
    }

    #[test]
    fn parts_lie_behind_each_other_and_too_much_is_refused() {
        let parts = Parts::of(&Counts::Uneven(&[2, 0, 3]), 3, 4).unwrap();
        assert_eq!(parts.counts, [8, 0, 12]);
        assert_eq!(parts.places, [0, 8, 8]);
        assert!(Parts::of(&Counts::Even(1 << 30), 3, 1).is_err());
    }
}
