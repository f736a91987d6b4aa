//! Who is doing what, and what happens to a rank that does nothing for too long.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use collectives_core::communicator::AbortHandle;

use crate::patience::{Patience, Pulse};

/// What one rank did last, and how to abort it.
#[derive(Debug, Default)]
pub struct Progress {
    state: Mutex<State>,
    /// How often a rank of this process's world did something.
    beats: Arc<AtomicU64>,
    notes: OnceLock<Notes>,
}

/// Where a rank that is a process writes what it does, so that it is known when the rank is gone.
#[derive(Debug)]
pub(crate) struct Notes {
    pub(crate) file: Arc<File>,
    pub(crate) rank: u64,
}

impl Notes {
    /// Bytes of one rank's note: a text, and how often the rank did something.
    const LENGTH: usize = 64;
    const TEXT: usize = Self::LENGTH - size_of::<u64>();

    fn place(&self) -> u64 {
        self.rank * Self::LENGTH as u64
    }

    fn write(&self, text: &str) {
        let mut note = [b' '; Self::TEXT];
        let length = text.len().min(Self::TEXT);
        note[..length].copy_from_slice(&text.as_bytes()[..length]);
        // What cannot be noted is not known, and that is all.
        let _lost = self.file.write_all_at(&note, self.place());
    }

    fn beat(&self, beats: u64) {
        let place = self.place() + Self::TEXT as u64;
        let _lost = self.file.write_all_at(&beats.to_ne_bytes(), place);
    }

    /// What the rank wrote last.
    pub(crate) fn read(&self) -> Option<String> {
        let mut note = [0; Self::TEXT];
        self.file.read_exact_at(&mut note, self.place()).ok()?;
        Some(String::from_utf8_lossy(&note).trim_end().to_owned())
    }
}

#[derive(Debug)]
struct State {
    last: &'static str,
    number: u64,
    handles: Vec<AbortHandle>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            last: "nothing yet",
            number: 0,
            handles: Vec::new(),
        }
    }
}

impl Progress {
    /// Of a rank in a world of threads that count what they do together.
    pub(crate) fn counting(beats: Arc<AtomicU64>) -> Self {
        Self {
            beats,
            ..Self::default()
        }
    }

    /// Where it is seen that the world does something.
    pub(crate) fn pulse(&self) -> Pulse {
        match self.notes.get() {
            Some(notes) => Pulse::Processes(Arc::clone(&notes.file)),
            None => Pulse::Threads(Arc::clone(&self.beats)),
        }
    }

    /// The rank did something.
    pub(crate) fn beat(&self) {
        let beats = self.beats.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(notes) = self.notes.get() {
            notes.beat(beats);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes every note to a file too, from now on.
    pub(crate) fn write_to(&self, notes: Notes) {
        let _twice = self.notes.set(notes);
        self.write();
    }

    fn write(&self) {
        if let Some(notes) = self.notes.get() {
            notes.write(&self.last());
        }
        self.beat();
    }

    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        (state.last, state.number) = ("nothing yet", 0);
        state.handles.clear();
        drop(state);
        self.write();
    }

    pub(crate) fn note(&self, operation: &'static str) {
        let mut state = self.lock();
        state.last = operation;
        state.number += 1;
        drop(state);
        self.write();
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

/// The watchdog inside a rank: aborts the rank's communicators if nothing happens in a case for too long.
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
            let mut patience = Patience::new(progress.pulse(), limit);
            while end.recv_timeout(patience.tick()) == Err(RecvTimeoutError::Timeout) {
                let Some(over) = patience.look() else {
                    continue;
                };
                let cause = format!(
                    "the watchdog ended the case: {over}, which COLLECTIVES_CASE_SECONDS can raise; \
                     last: {}",
                    progress.last()
                );
                return progress.abort(&cause);
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
