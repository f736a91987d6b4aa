//! What a policy decides: a pure function from slots, request and limits to a decision.

use std::fmt::Debug;

/// One slot of the domain, as a policy sees it.
///
/// Everything here is equal on all ranks, as long as leases end in program order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Bytes the policy asked for.
    pub capacity: usize,
    /// Whether a lease holds the slot, so that it cannot be used now.
    pub leased: bool,
}

/// What is asked for, and the numbers that govern the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Bytes requested, more than zero.
    pub bytes: usize,
    /// Bytes that memory is mapped in multiples of.
    pub granule: usize,
    /// Bytes of every mapped block that the backend keeps for itself.
    pub overhead: usize,
}

impl Ask {
    /// The largest capacity that maps no more granules than `capacity` does: whole granules less
    /// the overhead. `None` when that overflows.
    #[must_use]
    pub fn whole_granules(&self, capacity: usize) -> Option<usize> {
        capacity
            .checked_add(self.overhead)?
            .checked_next_multiple_of(self.granule.max(1))
            .map(|mapped| mapped - self.overhead)
    }
}

/// A policy's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// Use the slot at this index.
    Hit(usize),
    /// Register a new slot.
    Grow {
        /// Bytes, at least those requested.
        capacity: usize,
        /// Whether the slots there are now retire: nobody is given them again, and they go as soon
        /// as no lease and no graph holds them.
        retire: bool,
    },
    /// Register a generation of an arena: fresh addresses for all bytes of the slot at this index,
    /// and new bytes behind them. The bytes exist once.
    ///
    /// The slot must be free and itself a generation. It is not given out again, and its addresses
    /// go as soon as no graph holds them. `None` begins an arena.
    Extend {
        /// The slot to map again.
        slot: Option<usize>,
        /// Bytes in all, at least those requested and more than the slot's.
        capacity: usize,
    },
    /// Do not stage this request.
    Refuse,
}

/// How scratch grows.
///
/// The pool does everything else: leases, stream order, graph claims, agreement between ranks,
/// deferred frees, cap, limit and statistics. `decide` must return the same for the same arguments
/// on every rank: it may read nothing but them and the policy's own constants. A new policy is this
/// one function and a name in the [`Registry`](crate::registry::Registry).
///
/// ```
/// use collectives_alloc::policy::{Ask, Decision, Policy, SlotView};
///
/// /// One slot of a fixed size, and nothing beyond it.
/// #[derive(Debug)]
/// struct Fixed(usize);
///
/// impl Policy for Fixed {
///     fn name(&self) -> &str {
///         "fixed"
///     }
///     fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
///         match slots.iter().position(|slot| !slot.leased) {
///             _ if ask.bytes > self.0 => Decision::Refuse,
///             Some(index) => Decision::Hit(index),
///             None => Decision::Grow { capacity: self.0, retire: false },
///         }
///     }
///     fn digest(&self) -> u64 {
///         self.0 as u64
///     }
///     fn bound(&self, _largest: usize, _granule: usize) -> Option<usize> {
///         Some(self.0)
///     }
/// }
/// ```
pub trait Policy: Debug + Send + Sync {
    /// The name configuration uses.
    fn name(&self) -> &str;

    /// What to do about a request.
    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision;

    /// A number that differs when two ranks would decide differently.
    fn digest(&self) -> u64;

    /// What configures it, each key with its value in words, so that ranks which differ are told in which
    /// one. The keys are always the same ones, in the same order; by default there are none, and the
    /// digest alone is compared.
    fn parameters(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The sum of capacities that is never exceeded while the largest request so far is `largest`
    /// bytes, not counting what graphs and leases keep; `None` if there is no bound.
    fn bound(&self, largest: usize, granule: usize) -> Option<usize>;
}

/// The index of the smallest free slot that holds `bytes`; of equal ones, the oldest.
#[must_use]
pub fn best_fit(slots: &[SlotView], bytes: usize) -> Option<usize> {
    // A loop, because this is the hot path and the chain of iterators costs twice as much.
    let mut best = None;
    let mut least = usize::MAX;
    for (index, slot) in slots.iter().enumerate() {
        let fits = !slot.leased && slot.capacity >= bytes;
        if fits && (best.is_none() || slot.capacity < least) {
            (best, least) = (Some(index), slot.capacity);
        }
    }
    best
}
