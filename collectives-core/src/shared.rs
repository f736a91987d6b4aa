//! A handle for frameworks that keep their collectives behind `&self`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::collectives::Collectives;
use crate::communicator::{AbortHandle, Communicator, Deferred};
use crate::error::{Error, ErrorKind, Result};
use crate::scratch::ScratchAllocator;

/// Collectives behind a lock, shared by clones.
///
/// The lock is held while a call is enqueued, so one thread at a time uses the communicator. The
/// order of calls across ranks remains the caller's business. Aborting needs no lock.
#[derive(Debug)]
pub struct Shared<C, A> {
    inner: Arc<Mutex<Option<Collectives<C, A>>>>,
    abort: AbortHandle,
}

impl<C, A> Clone for Shared<C, A> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            abort: self.abort.clone(),
        }
    }
}

impl<C: Communicator, A: ScratchAllocator> Shared<C, A> {
    /// Puts the collectives behind a lock.
    pub fn new(collectives: Collectives<C, A>) -> Self {
        Self {
            abort: collectives.abort_handle(),
            inner: Arc::new(Mutex::new(Some(collectives))),
        }
    }

    /// Runs `body` with the collectives, while no other thread uses them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] after [`Shared::close`], and those of `body`.
    pub fn with<R>(&self, body: impl FnOnce(&mut Collectives<C, A>) -> Result<R>) -> Result<R> {
        match self.lock().as_mut() {
            Some(collectives) => body(collectives),
            None => Err(Error::new(ErrorKind::Closed)),
        }
    }

    /// A handle that aborts while another thread is blocked inside the lock.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Closes the collectives for all clones; see [`Collectives::close`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] the second time, and those of [`Collectives::close`].
    pub fn close(&self) -> Result<Deferred> {
        let collectives = self.lock().take();
        collectives.map_or_else(|| Err(Error::new(ErrorKind::Closed)), Collectives::close)
    }

    /// A thread that panicked while it held the lock has aborted the communicator if that was
    /// needed, so the lock itself stays usable.
    fn lock(&self) -> MutexGuard<'_, Option<Collectives<C, A>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
