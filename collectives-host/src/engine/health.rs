//! What is known of a communicator's failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::{Error, ErrorKind};
use collectives_core::rank::Rank;

use crate::fabric::lock;

/// The first failure of a communicator, this rank's or one that the control plane tells of.
#[derive(Debug)]
pub struct Health {
    bootstrap: Arc<dyn Bootstrap>,
    backend: &'static str,
    broken: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

#[derive(Clone, Debug)]
struct Failure {
    rank: Rank,
    cause: String,
    aborted: bool,
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
        let Failure {
            rank,
            cause,
            aborted,
        } = lock(&self.failure).clone()?;
        let kind = match (rank == self.bootstrap.rank(), aborted) {
            (true, true) => ErrorKind::Aborted { cause },
            (true, false) => ErrorKind::Poisoned { cause },
            (false, _) => ErrorKind::PeerFailed { rank, cause },
        };
        Some(self.named(Error::new(kind)))
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
