//! Who is doing what, and what happens to a rank that does it for too long.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use collectives_core::communicator::AbortHandle;

/// What one rank did last, and how to abort it.
#[derive(Debug, Default)]
pub struct Progress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: &'static str,
    number: u64,
    handles: Vec<AbortHandle>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        (state.last, state.number) = ("nothing yet", 0);
        state.handles.clear();
    }

    pub(crate) fn note(&self, operation: &'static str) {
        let mut state = self.lock();
        state.last = operation;
        state.number += 1;
    }

    pub(crate) fn watch(&self, handle: AbortHandle) {
        self.lock().handles.push(handle);
    }

    /// The last operation that reached the backend, with its number in the case.
    #[must_use]
    pub fn last(&self) -> String {
        let state = self.lock();
        format!("{} (number {})", state.last, state.number)
    }

    /// Aborts every communicator of the rank's case.
    pub(crate) fn abort(&self, cause: &str) {
        // The lock is free meanwhile: an abort may run anything of the backend.
        let handles = self.lock().handles.clone();
        for handle in handles {
            handle.abort(cause);
        }
    }
}

/// The watchdog inside a rank: aborts the rank's communicators if a case takes too long.
///
/// The parent has another one, for ranks that do not even notice that.
#[derive(Debug)]
pub(crate) struct Watchdog {
    ended: Option<Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn start(progress: &Arc<Progress>, limit: Duration) -> Self {
        let (ended, end) = mpsc::channel();
        let progress = Arc::clone(progress);
        let watch = move || {
            if end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let cause = format!("the watchdog ended {} after {limit:?}", progress.last());
                progress.abort(&cause);
            }
        };
        let thread = thread::Builder::new().name("kit-watchdog".to_owned());
        Self {
            ended: Some(ended),
            thread: thread.spawn(watch).ok(),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.ended.take());
        if let Some(thread) = self.thread.take() {
            // It only waits for the end, or is inside an abort, which never blocks for long.
            let _joined = thread.join();
        }
    }
}
