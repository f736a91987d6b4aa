//! Streams as ordered queues, and whose turn it is on one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use collectives_core::error::{Error, ErrorKind, Misuse, Result};
use collectives_core::memory::Memory;
use collectives_core::rank::{CaptureId, DeviceId, StreamId};
use collectives_core::stream::{StreamHandle, StreamRef};

use crate::capture::{Node, Recorder, Step};
use crate::event::Event;
use crate::model::StreamMode;
use crate::progress::Progress;
use crate::replay::Replay;
use crate::worker;

const CAPTURING: u32 = 1;
const FAILED: u32 = 2;

/// Work that runs in stream order. When the stream has failed it is dropped and never runs.
pub(crate) type Work = Box<dyn FnOnce() -> Result<()> + Send>;

/// The handle behind a [`StreamRef`] of this backend.
#[derive(Debug)]
pub(crate) struct HostStream {
    queue: Arc<Queue>,
}

/// What a stream is, as far as events and its worker need it; it outlives the handle for them.
pub(crate) struct Queue {
    id: StreamId,
    device: DeviceId,
    mode: StreamMode,
    progress: Progress,
    flags: AtomicU32,
    failure: Mutex<Option<Error>>,
    capture: Mutex<Option<Arc<Recorder>>>,
    jobs: Mutex<Jobs>,
    pub(crate) arrived: Condvar,
}

/// What waits for the worker of an asynchronous stream.
#[derive(Default)]
pub(crate) struct Jobs {
    pub(crate) waiting: VecDeque<(u64, Job)>,
    /// Whether a worker was started.
    pub(crate) worker: bool,
    /// Whether the handle is gone, so that nothing more can come.
    pub(crate) closed: bool,
}

/// One unit of work of an asynchronous stream.
pub(crate) enum Job {
    Run(Work),
    Wait(Event),
    Replay(Replay),
}

/// Whose turn it is on a stream. Nobody else can enqueue on it while this value lives.
#[must_use]
pub(crate) enum Turn<'a> {
    /// Everything before has run: run on this thread, then drop the turn.
    Inline(InlineTurn<'a>),
    /// The stream's worker will run it.
    Queued(QueuedTurn<'a>),
    /// It is recorded and not run.
    Captured(CapturedTurn<'a>),
}

/// The right to run on an inline stream; dropping it completes the work.
#[must_use]
pub(crate) struct InlineTurn<'a> {
    queue: &'a Arc<Queue>,
}

/// The right to enqueue on an asynchronous stream; the holder must not wait for anything.
#[must_use]
pub(crate) struct QueuedTurn<'a> {
    queue: &'a Arc<Queue>,
    jobs: MutexGuard<'a, Jobs>,
}

/// The right to record on a capturing stream.
#[must_use]
pub(crate) struct CapturedTurn<'a> {
    recorder: Arc<Recorder>,
    _membership: MutexGuard<'a, Option<Arc<Recorder>>>,
}

/// The stream behind `stream`, if it is one of this backend and this device.
#[inline]
pub(crate) fn queue_of(device: DeviceId, stream: &StreamRef) -> Result<&Arc<Queue>> {
    match stream.downcast::<HostStream>() {
        Some(host) if host.queue.device == device => Ok(&host.queue),
        _ => Err(Misuse::WrongDevice { what: "the stream" }.into()),
    }
}

/// The stream behind `stream`, whatever device it belongs to.
pub(crate) fn any_queue(stream: &StreamRef) -> Option<&Arc<Queue>> {
    stream.downcast::<HostStream>().map(|host| &host.queue)
}

/// Takes the turn; waits while another thread has it.
#[inline]
pub(crate) fn take_turn(queue: &Arc<Queue>) -> Result<Turn<'_>> {
    loop {
        if queue.is_plain() {
            match queue.mode {
                StreamMode::Inline => {
                    queue.progress.begin();
                    let turn = InlineTurn { queue };
                    // A capture begins under the turn, so this answer stays right.
                    if queue.is_plain() {
                        return Ok(Turn::Inline(turn));
                    }
                }
                StreamMode::Asynchronous => {
                    let mut jobs = queue.lock_jobs();
                    worker::ensure(queue, &mut jobs)?;
                    if queue.is_plain() {
                        return Ok(Turn::Queued(QueuedTurn { queue, jobs }));
                    }
                }
            }
        }
        if let Some(turn) = queue.captured_turn()? {
            return Ok(Turn::Captured(turn));
        }
    }
}

impl HostStream {
    pub(crate) fn new(device: DeviceId, mode: StreamMode) -> Self {
        Self {
            queue: Arc::new(Queue {
                id: StreamId::fresh(),
                device,
                mode,
                progress: Progress::default(),
                flags: AtomicU32::new(0),
                failure: Mutex::new(None),
                capture: Mutex::new(None),
                jobs: Mutex::new(Jobs::default()),
                arrived: Condvar::new(),
            }),
        }
    }
}

impl Queue {
    pub(crate) fn id(&self) -> StreamId {
        self.id
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(crate) fn lock_jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `error` the stream's asynchronous error, unless it has one.
    pub(crate) fn fail(&self, error: Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
        self.flags.fetch_or(FAILED, Ordering::Release);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.flags.load(Ordering::Acquire) & FAILED != 0
    }

    /// The asynchronous error, which the stream keeps.
    pub(crate) fn health(&self) -> Result<()> {
        if !self.has_failed() {
            return Ok(());
        }
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// The capture that the stream is part of, whether or not it is still valid.
    pub(crate) fn recorder(&self) -> Option<Arc<Recorder>> {
        if self.flags.load(Ordering::Acquire) & CAPTURING == 0 {
            return None;
        }
        self.lock_capture().clone()
    }

    /// Whether the stream neither captures nor has failed.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.flags.load(Ordering::Acquire) == 0
    }

    /// The capture's identity, if the stream captures and nothing is wrong with it.
    pub(crate) fn capture_state(&self) -> Result<Option<CaptureId>> {
        if self.is_plain() {
            return Ok(None);
        }
        self.health()?;
        match self.recorder() {
            Some(recorder) => recorder.check().map(|()| Some(recorder.id())),
            None => Ok(None),
        }
    }

    /// Makes the stream part of a capture; gives the recorder back if it is part of one already.
    ///
    /// It happens between two pieces of work, never during one.
    pub(crate) fn enter_capture(&self, recorder: Arc<Recorder>) -> Result<(), Arc<Recorder>> {
        match self.mode {
            StreamMode::Inline => {
                self.progress.begin();
                let entered = self.set_capture(recorder);
                self.progress.finish();
                entered
            }
            StreamMode::Asynchronous => {
                let _jobs = self.lock_jobs();
                self.set_capture(recorder)
            }
        }
    }

    /// Ends the stream's part in a capture.
    pub(crate) fn leave_capture(&self, id: CaptureId) {
        let mut capture = self.lock_capture();
        if capture.as_ref().is_some_and(|own| own.id() == id) {
            *capture = None;
            self.flags.fetch_and(!CAPTURING, Ordering::Release);
        }
    }

    fn set_capture(&self, recorder: Arc<Recorder>) -> Result<(), Arc<Recorder>> {
        let mut capture = self.lock_capture();
        if capture.is_some() {
            return Err(recorder);
        }
        *capture = Some(recorder);
        self.flags.fetch_or(CAPTURING, Ordering::Release);
        Ok(())
    }

    fn lock_capture(&self) -> MutexGuard<'_, Option<Arc<Recorder>>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn captured_turn(&self) -> Result<Option<CapturedTurn<'_>>> {
        self.health()?;
        let membership = self.lock_capture();
        let Some(recorder) = membership.clone() else {
            return Ok(None);
        };
        recorder.check()?;
        Ok(Some(CapturedTurn {
            recorder,
            _membership: membership,
        }))
    }
}

impl InlineTurn<'_> {
    /// Gives out `count` more positions, which complete at the latest with the turn.
    pub(crate) fn reserve(&self, count: u64) -> u64 {
        self.queue.progress.reserve(count)
    }
}

impl Drop for InlineTurn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.queue.progress.finish();
    }
}

impl QueuedTurn<'_> {
    /// Enqueues work.
    pub(crate) fn push(self, work: Work) {
        self.push_job(Job::Run(work));
    }

    /// Enqueues a unit of work at the next position, which it returns.
    pub(crate) fn push_job(mut self, job: Job) -> u64 {
        let position = self.queue.progress.reserve(1);
        self.jobs.waiting.push_back((position, job));
        drop(self.jobs);
        self.queue.arrived.notify_one();
        position
    }

    /// Gives out `count` positions, which the job that is pushed next completes.
    pub(crate) fn reserve(&self, count: u64) -> u64 {
        self.queue.progress.reserve(count)
    }
}

impl CapturedTurn<'_> {
    /// Records an operation.
    pub(crate) fn push(self, node: Arc<dyn Node>) {
        self.push_step(Step::Run(node));
    }

    /// Makes the graph an owner of `memory`.
    pub(crate) fn retain(&self, memory: Memory) {
        self.recorder.retain(memory);
    }

    pub(crate) fn push_step(self, step: Step) {
        self.recorder.push(step);
    }
}

// SAFETY: Identities come from one counter and are never reused; the queue lives as long as the
// handle.
unsafe impl StreamHandle for HostStream {
    fn id(&self) -> StreamId {
        self.queue.id
    }

    fn device(&self) -> DeviceId {
        self.queue.device
    }

    fn raw(&self) -> usize {
        Arc::as_ptr(&self.queue).addr()
    }
}

impl Drop for HostStream {
    /// Never waits: the worker runs what is enqueued and then ends.
    fn drop(&mut self) {
        self.queue.lock_jobs().closed = true;
        self.queue.arrived.notify_one();
        let recorder = self.queue.lock_capture().take();
        if let Some(recorder) = recorder.filter(|recorder| recorder.origin() == self.queue.id) {
            drop(recorder.finish());
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("id", &self.id)
            .field("mode", &self.mode)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

/// The error of work that panicked.
pub(crate) fn panicked(payload: &(dyn std::any::Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    Error::new(ErrorKind::System(format!(
        "work on the stream panicked: {text}"
    )))
    .on_backend("host")
}

#[cfg(test)]
#[path = "queue/tests.rs"]
mod tests;
