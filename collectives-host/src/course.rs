//! How far a rank has come with its operations, as the rounds of its control plane tell the others.

use std::sync::atomic::{AtomicU64, Ordering};

use collectives_core::collective::Collective;
use collectives_core::error::{Error, ErrorKind};
use collectives_core::round::Call;

/// What one rank has called, and what timed out of it.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// Calls of operations in which all ranks meet, launches of recorded ones among them.
    operations: AtomicU64,
    timeouts: AtomicU64,
    /// Timeouts before the last round that all ranks completed.
    settled: AtomicU64,
}

/// How far it was when a round began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Milestone {
    pub(crate) operations: u64,
    timeouts: u64,
    in_doubt: bool,
}

/// Whether all ranks meet in a call: where there is nothing but messages, some need not call at all.
#[inline]
pub(crate) fn meets(calls: &[Collective<'_>]) -> bool {
    calls.iter().any(|call| !call.kind().is_point_to_point())
}

impl Course {
    /// So many operations have been called.
    pub(crate) fn set(&self, operations: u64) {
        self.operations.store(operations, Ordering::Relaxed);
    }

    /// One more operation is called.
    #[inline]
    pub(crate) fn call(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Notes how an operation ended.
    #[cold]
    pub(crate) fn note(&self, error: &Error) {
        if matches!(error.kind(), ErrorKind::Timeout { .. }) {
            self.timeouts.fetch_add(1, Ordering::Release);
        }
    }

    /// How far the rank is, after so many operations.
    pub(crate) fn at(&self, operations: u64) -> Milestone {
        let timeouts = self.timeouts.load(Ordering::Acquire);
        Milestone {
            operations,
            timeouts,
            in_doubt: timeouts > self.settled.load(Ordering::Relaxed),
        }
    }

    /// All ranks have completed a round that began there.
    pub(crate) fn settle(&self, there: Milestone) {
        self.settled.store(there.timeouts, Ordering::Relaxed);
    }
}

impl Milestone {
    /// The call of a round, as this rank makes it.
    pub(crate) fn call<'a>(self, name: &'a str, words: &'a str) -> Call<'a> {
        Call::named(name)
            .in_words(words)
            .after(self.operations, self.in_doubt)
    }
}
