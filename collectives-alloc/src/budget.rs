//! Mapped bytes that the communicators of one device share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of mapped bytes that all pools with a clone of it may keep together.
///
/// It is a fact of one rank, so it enters a miss the way an allocation that fails does: if it is
/// spent on one rank, every rank is out of memory for that request, and the next smaller one works.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    total: usize,
    spent: AtomicUsize,
}

impl Budget {
    /// A budget of `bytes` mapped bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Inner {
            total: bytes,
            spent: AtomicUsize::new(0),
        }))
    }

    /// Mapped bytes that are kept out of it now.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.0.spent.load(Ordering::Relaxed)
    }

    /// Mapped bytes that it has left now.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.total.saturating_sub(self.spent())
    }

    /// Takes `bytes`, or nothing if there are fewer left.
    pub(crate) fn charge(&self, bytes: usize) -> Option<Charge> {
        let total = self.0.total;
        let take = |spent: usize| spent.checked_add(bytes).filter(|&sum| sum <= total);
        self.0
            .spent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .ok()?;
        Some(Charge {
            budget: Arc::clone(&self.0),
            bytes,
        })
    }
}

/// Bytes taken out of a budget, which come back when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Inner>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.spent.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_overdrawn_and_gets_its_bytes_back() {
        let budget = Budget::new(10);
        let first = budget.charge(6).unwrap();
        assert!(budget.clone().charge(5).is_none() && budget.charge(usize::MAX).is_none());
        let second = budget.charge(4).unwrap();
        assert_eq!((budget.spent(), budget.left()), (10, 0));
        drop(first);
        assert_eq!((budget.spent(), budget.left()), (4, 6));
        drop(second);
        assert_eq!((budget.spent(), budget.left()), (0, 10));
    }
}
