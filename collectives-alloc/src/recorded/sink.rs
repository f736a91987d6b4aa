//! Where the lines of a trace go, and the leases whose end is one of them.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use collectives_core::error::Result;
use collectives_core::scratch::{Lease, LeaseHold};

use crate::trace::{Call, Event, HEADER};

/// Where lines go, until one fails.
pub(super) struct Sink {
    output: Box<dyn Write + Send>,
    failure: Option<io::Error>,
}

impl Sink {
    /// A new trace, which begins with the header.
    pub(super) fn new(output: Box<dyn Write + Send>) -> Self {
        let mut sink = Self {
            output,
            failure: None,
        };
        sink.line(HEADER);
        sink
    }

    pub(super) fn event(&mut self, event: Event) {
        self.line(&event.to_string());
    }

    fn line(&mut self, line: &str) {
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = self.output.write_all(format!("{line}\n").as_bytes()) {
            tracing::warn!(%error, "the scratch trace ends here, because it cannot be written");
            self.failure = Some(error);
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &self.failure {
            // The failure itself stays, so that nothing is written after a gap.
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => self.output.flush(),
        }
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink")
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

/// A lease around the allocator's own, whose end is written down.
#[derive(Debug)]
pub(super) struct RecordedHold {
    lease: Mutex<Option<Lease>>,
    sink: Arc<Mutex<Sink>>,
    sequence: u64,
}

impl RecordedHold {
    /// The lease that the call with this number returned, with its end written down.
    pub(super) fn around(lease: Lease, sink: Arc<Mutex<Sink>>, sequence: u64) -> Lease {
        let hold = Arc::new(Self {
            lease: Mutex::new(None),
            sink,
            sequence,
        });
        let outer = lease.seen_through(Arc::<Self>::clone(&hold));
        *lock(&hold.lease) = Some(lease);
        outer
    }

    /// Ends the lease inside while no other line can be written.
    fn end<R>(&self, end: impl FnOnce(Option<Lease>) -> R) -> R {
        let mut sink = lock(&self.sink);
        let lease = lock(&self.lease).take();
        let ended = end(lease);
        sink.event(Event::new(self.sequence, Call::Release));
        ended
    }
}

impl LeaseHold for RecordedHold {
    fn complete(&self) -> Result<()> {
        self.end(|lease| lease.map_or(Ok(()), Lease::complete))
    }

    fn abandon(&self) {
        self.end(drop);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
