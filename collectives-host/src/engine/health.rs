//! What is known of a communicator's failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::Error;
use collectives_core::rank::Rank;

use crate::fabric::{Failure, lock};

/// The first failure of a communicator, this rank's or one that the control plane tells of.
#[derive(Debug)]
pub struct Health {
    bootstrap: Arc<dyn Bootstrap>,
    backend: &'static str,
    broken: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl Health {
    pub(super) fn new(bootstrap: Arc<dyn Bootstrap>, backend: &'static str) -> Self {
        Self {
            bootstrap,
            backend,
            broken: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Whether a failure was noticed; asks nobody.
    #[inline]
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// The failure, also one that only the control plane knows yet, as this rank reports it.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        if !self.is_broken() {
            let (rank, cause) = self.bootstrap.failure()?;
            self.note(rank, &cause, false);
        }
        let failure = lock(&self.failure).clone()?;
        Some(self.named(failure.seen_from(self.bootstrap.rank())))
    }

    /// Notes that a rank failed, without telling anybody; the first failure stays.
    pub fn note(&self, rank: Rank, cause: &str, aborted: bool) {
        lock(&self.failure).get_or_insert_with(|| Failure {
            rank,
            cause: cause.to_owned(),
            aborted,
        });
        self.broken.store(true, Ordering::Release);
    }

    /// Ends the communicator on all ranks with an error that is the same on all of them; if another
    /// failure was published before, with that.
    #[cold]
    pub fn publish(&self, error: &Error) {
        self.bootstrap.publish_failure(&error.kind().to_string());
        let _first = self.failure();
    }

    /// Tells the others, and those alone, that this rank comes to no round any more.
    pub(crate) fn tell(&self, cause: &str) {
        self.bootstrap.publish_failure(cause);
    }

    /// Fails the communicator on all ranks.
    pub fn fail(&self, cause: &str, aborted: bool) {
        self.note(self.bootstrap.rank(), cause, aborted);
        self.bootstrap.publish_failure(cause);
    }

    /// The error with this rank and backend.
    #[must_use]
    pub fn named(&self, error: Error) -> Error {
        error
            .on_backend(self.backend)
            .on_rank(self.bootstrap.rank())
    }
}
