//! Writes down everything asked of an allocator, for a later replay.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use collectives_core::communicator::{Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, MissedWhen, Misuse, Result};
use collectives_core::path::Reason;
use collectives_core::rank::{CaptureId, StreamId};
use collectives_core::scratch::{
    Lease, Plan, Request, ScratchAllocator, SlotId, Splitting, Trimmed,
};
use collectives_core::stats::Stats;
use collectives_core::stream::StreamRef;

use crate::trace::{Call, Event, Outcome};

use self::sink::{RecordedHold, Sink, lock};

mod sink;

/// An allocator that writes a [trace](crate::trace) of every request, of the end of every lease, and
/// of `reserve`, `seal`, `trim` and `close`.
///
/// It changes no outcome: when the output fails, which is one rank's own affair, it warns, stops
/// writing, and [`Recorded::flush`] returns the error. Each line is one `write_all`, so a reader of
/// a live file sees whole lines; put a `BufWriter` around a file where that does not matter.
///
/// Requests of zero bytes are not written, because no allocator serves or counts them. Requests
/// and releases are in the order they happened in as long as leases end in program order, which
/// ranks owe each other anyway.
#[derive(Debug)]
pub struct Recorded<A> {
    inner: A,
    sink: Arc<Mutex<Sink>>,
    calls: u64,
    streams: Ordinals<StreamId>,
    captures: Ordinals<CaptureId>,
    known: BTreeSet<SlotId>,
}

impl<A: ScratchAllocator> Recorded<A> {
    /// Records what `inner` is asked into `output`, beginning with the header.
    pub fn new(inner: A, output: impl Write + Send + 'static) -> Self {
        let mut recorded = Self {
            inner,
            sink: Arc::new(Mutex::new(Sink::new(Box::new(output)))),
            calls: 0,
            streams: Ordinals::default(),
            captures: Ordinals::default(),
            known: BTreeSet::new(),
        };
        recorded.learn();
        recorded
    }

    /// The allocator inside.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// The allocator inside, without recording. Leases that are out still record their end.
    pub fn into_inner(self) -> A {
        self.inner
    }

    /// Flushes the output.
    ///
    /// # Errors
    ///
    /// The first failure of the output, after which nothing more was written; else that of
    /// flushing it.
    pub fn flush(&self) -> io::Result<()> {
        lock(&self.sink).flush()
    }

    fn next(&mut self) -> u64 {
        let sequence = self.calls;
        self.calls += 1;
        sequence
    }

    fn write(&self, sequence: u64, call: Call) {
        lock(&self.sink).event(Event::new(sequence, call));
    }

    /// Notes the slots there are, so that a later use of one of them is a hit.
    fn learn(&mut self) {
        let slots = self.inner.stats().slots;
        self.known
            .extend(slots.iter().map(|slot| SlotId(slot.generation)));
    }

    fn outcome(&mut self, leased: Result<&Lease, &Error>, capture: Option<CaptureId>) -> Outcome {
        let error = match leased {
            // A generation is never used again, so one that is not known was just registered.
            Ok(lease) if self.known.insert(lease.slot()) => return Outcome::Grow,
            Ok(_) => return Outcome::Hit,
            Err(error) => error,
        };
        let falls_back = self.inner.fallback_reason(error).is_some();
        match (by_rule(error, capture.is_some()), falls_back) {
            (true, true) => Outcome::Fallback,
            (true, false) => Outcome::Refused,
            (false, true) => Outcome::FailedFallback,
            (false, false) => Outcome::Failed,
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<A: ScratchAllocator> ScratchAllocator for Recorded<A> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn acquire(
        &mut self,
        comm: &mut dyn Communicator,
        request: Request,
        stream: &StreamRef,
        capture: Option<CaptureId>,
    ) -> Result<Lease> {
        let leased = self.inner.acquire(comm, request, stream, capture);
        if request.bytes == 0 {
            return leased;
        }
        let sequence = self.next();
        let call = Call::Acquire {
            bytes: request.bytes,
            stream: self.streams.of(stream.id()),
            capture: capture.map(|capture| self.captures.of(capture)),
            outcome: self.outcome(leased.as_ref(), capture),
            generation: leased.as_ref().ok().map(|lease| lease.slot().0),
        };
        self.write(sequence, call);
        leased.map(|lease| RecordedHold::around(lease, Arc::clone(&self.sink), sequence))
    }

    fn fallback_reason(&self, error: &Error) -> Option<Reason> {
        self.inner.fallback_reason(error)
    }

    fn plan(&mut self, comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan> {
        self.inner.plan(comm, requests)
    }

    fn reserve(&mut self, comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan> {
        let plan = self.inner.reserve(comm, requests);
        let (sequence, outcome) = (self.next(), of_call(&plan));
        if requests.is_empty() {
            // It may seal all the same.
            self.write(sequence, Call::Reserve { bytes: 0, outcome });
        }
        for &Request { bytes } in requests {
            self.write(sequence, Call::Reserve { bytes, outcome });
        }
        self.learn();
        plan
    }

    fn seal(&mut self) {
        self.inner.seal();
        let sequence = self.next();
        self.write(sequence, Call::Seal);
    }

    fn trim(&mut self, comm: &mut dyn Communicator) -> Result<Trimmed> {
        let trimmed = self.inner.trim(comm);
        let sequence = self.next();
        self.write(sequence, Call::Trim(of_call(&trimmed)));
        trimmed
    }

    fn close(&mut self, comm: &mut dyn Communicator) -> Result<Deferred> {
        let closed = self.inner.close(comm);
        let sequence = self.next();
        self.write(sequence, Call::Close(of_call(&closed)));
        closed
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn release(&mut self, lease: Lease) -> Result<()> {
        // It is the recorder's, whose end is noted and ends the one below.
        lease.complete()
    }

    fn max_windows(&mut self, comm: &mut dyn Communicator) -> Result<Option<usize>> {
        self.inner.max_windows(comm)
    }

    fn note_capture(&mut self, device: &dyn Device, capture: CaptureId, stream: &StreamRef) {
        self.inner.note_capture(device, capture, stream);
    }

    fn splitting(&self) -> Option<Splitting> {
        self.inner.splitting()
    }

    fn note_pieces(&mut self, pieces: u64) {
        self.inner.note_pieces(pieces);
    }
}

/// Whether bytes, slots and rules alone led to the error, so that a replay comes to it too.
fn by_rule(error: &Error, captured: bool) -> bool {
    match error.kind() {
        ErrorKind::Refused { .. } => true,
        // An eager miss can fail because another stream captures, which a trace does not show.
        ErrorKind::NeedsReserve { when, .. } => captured || *when == MissedWhen::Sealed,
        _ => false,
    }
}

fn of_call<T>(result: &Result<T>) -> Outcome {
    match result {
        Ok(_) => Outcome::Done,
        Err(error) => match error.kind() {
            ErrorKind::Refused { .. } | ErrorKind::Misuse(Misuse::Sealed) => Outcome::Refused,
            _ => Outcome::Failed,
        },
    }
}

/// Numbers identities in the order they are first seen.
#[derive(Debug)]
struct Ordinals<T>(HashMap<T, u32>);

impl<T> Default for Ordinals<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Eq + Hash> Ordinals<T> {
    fn of(&mut self, id: T) -> u32 {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        *self.0.entry(id).or_insert(next)
    }
}
