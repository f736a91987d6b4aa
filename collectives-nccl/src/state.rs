//! What a communicator, its watchdog, its abort handles and the graphs that use it share.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use collectives_core::addr::WindowId;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::communicator::Abort;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::{Rank, StreamId};
use collectives_core::stream::StreamRef;
use nccl_sys::{Comm, Nccl};

use crate::device::garbage::ready;
use crate::device::shared::Shared;
use crate::device::stream::{CudaStream, StreamState};
use crate::error::BACKEND;
use crate::options::Options;
use crate::watchdog;
use crate::window::Window;

/// The shared part of one rank's end.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) nccl: &'static Nccl,
    pub(crate) device: Arc<Shared>,
    pub(crate) bootstrap: Arc<dyn Bootstrap>,
    pub(crate) options: Options,
    /// NCCL writes it at once when set-up begins, so that set-up can be aborted.
    handle: AtomicPtr<c_void>,
    /// Held while NCCL enqueues, so that an abort does not free the communicator under it.
    gate: Mutex<()>,
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    closed: AtomicBool,
    work: Work,
    /// Since when a call of NCCL enqueues, in milliseconds since `born`; zero when none does. The
    /// first call of a kind sets connections up, for which it waits for other ranks.
    entered: AtomicU64,
    /// The same clock as the watchdog read it last, which costs a call nothing.
    clock: AtomicU64,
    born: Instant,
    pub(crate) windows: Mutex<BTreeMap<WindowId, Window>>,
    control: Mutex<Control>,
    changed: Condvar,
}

/// What the watchdog is told and tells.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// A blocking call of NCCL, and until when it may take.
    pub(crate) blocked: Option<(Instant, &'static str)>,
    /// Nobody owns the communicator any more.
    pub(crate) unowned: bool,
    /// NCCL's communicator is destroyed or aborted, or was never made.
    pub(crate) ended: bool,
}

/// Work enqueued on this communicator.
#[derive(Debug, Default)]
struct Work {
    enqueued: AtomicU64,
    streams: Mutex<Vec<Used>>,
}

/// A stream with work that may not have finished.
#[derive(Clone, Debug)]
enum Used {
    /// One of ours, which can be asked as long as it is held.
    Owned(StreamRef),
    /// Somebody else's, which may be gone or begin to capture at any moment; its work was marked.
    Foreign(StreamId, Weak<StreamState>),
}

impl State {
    pub(crate) fn new(
        nccl: &'static Nccl,
        device: Arc<Shared>,
        bootstrap: Arc<dyn Bootstrap>,
        options: Options,
    ) -> Self {
        Self {
            nccl,
            device,
            bootstrap,
            options,
            handle: AtomicPtr::new(ptr::null_mut()),
            gate: Mutex::new(()),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            closed: AtomicBool::new(false),
            work: Work::default(),
            entered: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            born: Instant::now(),
            windows: Mutex::default(),
            control: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.bootstrap.rank()
    }

    /// Whether calls may be made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`], and the first failure.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(self.later_error());
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(self.named(Error::new(ErrorKind::Closed)));
        }
        Ok(())
    }

    /// The first failure.
    pub(crate) fn health(&self) -> Result<()> {
        match self.failed.load(Ordering::Acquire) {
            true => Err(self.later_error()),
            false => Ok(()),
        }
    }

    /// What calls after the first failure get: what happened to others, or that it happened here.
    fn later_error(&self) -> Error {
        let failure = lock(&self.failure);
        let error = match failure.as_ref().map(Error::kind) {
            Some(ErrorKind::Poisoned { cause }) => ErrorKind::Poisoned {
                cause: cause.clone(),
            },
            Some(kind @ (ErrorKind::Aborted { .. } | ErrorKind::PeerFailed { .. })) => kind.clone(),
            Some(kind) => ErrorKind::Poisoned {
                cause: kind.to_string(),
            },
            None => ErrorKind::Poisoned {
                cause: "an earlier failure".to_owned(),
            },
        };
        self.named(Error::new(error))
    }

    /// Notes a failure, tells the other ranks and has NCCL aborted; only the first counts.
    pub(crate) fn fail(&self, error: &Error) {
        let mut failure = lock(&self.failure);
        if failure.is_some() {
            return;
        }
        *failure = Some(error.clone());
        self.failed.store(true, Ordering::Release);
        drop(failure);
        tracing::warn!(%error, rank = self.rank().0, "the communicator has failed");
        self.fail_streams(error);
        if !matches!(error.kind(), ErrorKind::PeerFailed { .. }) {
            self.bootstrap.publish_failure(&error.kind().to_string());
        }
        self.wake();
    }

    /// Makes the streams whose work will be cut off return the failure from now on.
    fn fail_streams(&self, error: &Error) {
        let Ok(_current) = self.device.context.enter_relaxed() else {
            return;
        };
        let streams = lock(&self.work.streams).clone();
        for used in streams {
            if !self.is_finished(&used) {
                used.fail(error);
            }
        }
    }

    /// Whether the eager work on a stream has finished. The context is current, in relaxed mode.
    fn is_finished(&self, used: &Used) -> bool {
        let tail = match used {
            Used::Owned(stream) => {
                let cuda = stream.downcast::<CudaStream>();
                return cuda.is_none_or(CudaStream::is_idle);
            }
            Used::Foreign(_, stream) => stream.upgrade().and_then(|stream| stream.tail()),
        };
        tail.is_none_or(|tail| {
            // SAFETY: `cuEventQuery` (cuda.h, "Event Management"): the state keeps the event.
            ready(unsafe { self.device.driver().event_query(tail) }).unwrap_or(true)
        })
    }

    /// Fails the communicator if the error says that something had moved.
    pub(crate) fn note(&self, error: Error) -> Error {
        if error.poisons() {
            self.fail(&error);
        }
        self.named(error)
    }

    /// The error of a round; what this rank published itself is no failure of a peer.
    pub(crate) fn own_failure(&self, error: Error) -> Error {
        match (error.kind(), self.health()) {
            (ErrorKind::PeerFailed { rank, .. }, Err(own)) if *rank == self.rank() => own,
            _ => error,
        }
    }

    pub(crate) fn named(&self, error: Error) -> Error {
        error.on_backend(BACKEND).on_rank(self.rank())
    }

    /// Refuses calls from now on; `false` if that was so already.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Where NCCL publishes its communicator.
    pub(crate) fn slot(&self) -> *mut Comm {
        self.handle.as_ptr().cast()
    }

    /// Runs a call of NCCL that does not wait for other ranks.
    #[inline]
    pub(crate) fn with_comm<R>(&self, call: impl FnOnce(&Nccl, Comm) -> Result<R>) -> Result<R> {
        let _gate = lock(&self.gate);
        self.check_open()?;
        let comm = self.comm()?;
        let clock = self.clock.load(Ordering::Relaxed);
        self.entered.store(clock.max(1), Ordering::Relaxed);
        let result = call(self.nccl, comm);
        self.entered.store(0, Ordering::Relaxed);
        self.health()?;
        result
    }

    /// Milliseconds since the communicator was begun.
    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Reads the clock for those who enqueue; the watchdog does, every time it looks.
    pub(crate) fn tick(&self) {
        self.clock.store(self.now(), Ordering::Relaxed);
    }

    /// How long a call of NCCL has been enqueueing, to the watchdog's own interval.
    pub(crate) fn enqueueing_for(&self) -> Duration {
        match self.entered.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.now().saturating_sub(since)),
        }
    }

    /// Runs a call of NCCL that waits for other ranks, and that the watchdog ends.
    pub(crate) fn with_comm_blocking<R>(
        &self,
        what: &'static str,
        call: impl FnOnce(&Nccl, Comm) -> Result<R>,
    ) -> Result<R> {
        self.check_open()?;
        let comm = self.comm()?;
        lock(&self.control).blocked = Some((Instant::now() + self.options.deadline, what));
        let result = call(self.nccl, comm);
        lock(&self.control).blocked = None;
        self.health()?;
        result
    }

    /// NCCL's communicator, null before and after it exists.
    pub(crate) fn raw(&self) -> Comm {
        Comm(self.handle.load(Ordering::Acquire))
    }

    fn comm(&self) -> Result<Comm> {
        let comm = self.raw();
        match comm.is_null() {
            true => Err(self.named(Error::new(ErrorKind::Closed))),
            false => Ok(comm),
        }
    }

    /// Notes eager work on a stream, after marking its end if the stream is somebody else's.
    #[inline]
    pub(crate) fn note_work(&self, stream: &StreamRef, cuda: &CudaStream) {
        self.work.enqueued.fetch_add(1, Ordering::Release);
        let id = stream.id();
        let mut streams = lock(&self.work.streams);
        if streams.last().is_none_or(|last| last.id() != id) {
            streams.retain(|used| used.id() != id && !used.is_gone());
            streams.push(match cuda.is_foreign() {
                true => Used::Foreign(id, Arc::downgrade(&cuda.state)),
                false => Used::Owned(stream.clone()),
            });
        }
    }

    /// Whether all eager work enqueued so far has finished, and how much there was.
    pub(crate) fn progress(&self) -> (bool, u64) {
        let enqueued = self.work.enqueued.load(Ordering::Acquire);
        let streams = lock(&self.work.streams).clone();
        let finished = streams.iter().all(|used| self.is_finished(used));
        if finished && self.work.enqueued.load(Ordering::Acquire) == enqueued {
            // Nothing holds a stream of ours longer than its work takes.
            let mut noted = lock(&self.work.streams);
            let done = match self.work.enqueued.load(Ordering::Acquire) == enqueued {
                true => std::mem::take(&mut *noted),
                false => Vec::new(),
            };
            drop(noted);
            drop(done);
        }
        (finished, enqueued)
    }

    /// Waits for the eager work that this rank enqueued.
    pub(crate) fn settle(&self, deadline: Duration) -> bool {
        let begun = Instant::now();
        let Ok(_current) = self.device.context.enter_relaxed() else {
            return true;
        };
        let mut pause = Duration::from_micros(20);
        while !self.progress().0 {
            if begun.elapsed() >= deadline || self.failed.load(Ordering::Acquire) {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        true
    }

    /// Nobody owns the communicator any more; called by destructors, so it only tells.
    pub(crate) fn disown(&self) {
        lock(&self.control).unowned = true;
        watchdog::note_ending();
        self.wake();
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// Waits for a change of control, for at most this long.
    pub(crate) fn wait(&self, pause: Duration) {
        let control = lock(&self.control);
        let failing = self.failed.load(Ordering::Acquire) && !control.ended && self.has_comm();
        if !control.unowned && !failing {
            drop(
                self.changed
                    .wait_timeout(control, pause)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
    }

    /// Waits until NCCL's communicator has ended.
    pub(crate) fn wait_ended(&self, deadline: Duration) -> bool {
        let begun = Instant::now();
        let mut control = lock(&self.control);
        while !control.ended {
            let left = deadline.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            control = self
                .changed
                .wait_timeout(control, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    pub(crate) fn set_ended(&self) {
        lock(&self.control).ended = true;
        self.changed.notify_all();
    }

    fn wake(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn has_comm(&self) -> bool {
        !self.handle.load(Ordering::Acquire).is_null()
    }

    /// Takes NCCL's communicator, to end it.
    pub(crate) fn take_comm(&self) -> Option<Comm> {
        let comm = Comm(self.handle.swap(ptr::null_mut(), Ordering::AcqRel));
        (!comm.is_null()).then_some(comm)
    }

    /// Waits a little for a call of NCCL that enqueues to return.
    pub(crate) fn wait_for_gate(&self, patience: Duration) -> Option<MutexGuard<'_, ()>> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            match self.gate.try_lock() {
                Ok(gate) => return Some(gate),
                Err(std::sync::TryLockError::Poisoned(gate)) => return Some(gate.into_inner()),
                Err(std::sync::TryLockError::WouldBlock) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        None
    }
}

impl Used {
    fn id(&self) -> StreamId {
        match self {
            Self::Owned(stream) => stream.id(),
            Self::Foreign(id, _) => *id,
        }
    }

    fn is_gone(&self) -> bool {
        match self {
            Self::Owned(_) => false,
            Self::Foreign(_, stream) => stream.strong_count() == 0,
        }
    }

    /// Makes the stream return the failure from now on.
    fn fail(&self, error: &Error) {
        match self {
            Self::Owned(stream) => {
                if let Some(cuda) = stream.downcast::<CudaStream>() {
                    cuda.state.fail(error);
                }
            }
            Self::Foreign(_, stream) => {
                if let Some(stream) = stream.upgrade() {
                    stream.fail(error);
                }
            }
        }
    }
}

/// An abort handle's hold on a communicator.
#[derive(Debug)]
pub(crate) struct NcclAbort(pub(crate) Arc<State>);

impl Abort for NcclAbort {
    fn abort(&self, cause: &str) {
        self.0.fail(&Error::new(ErrorKind::Aborted {
            cause: cause.to_owned(),
        }));
    }

    fn health(&self) -> Result<()> {
        self.0.health()?;
        match self.0.bootstrap.failure() {
            Some((rank, _)) if rank == self.0.rank() && self.0.is_closed() => Ok(()),
            Some((rank, cause)) => {
                // Later calls are refused too, without waiting for the watchdog to look.
                let error = Error::new(ErrorKind::PeerFailed { rank, cause });
                self.0.fail(&error);
                Err(self.0.named(error))
            }
            None => Ok(()),
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
