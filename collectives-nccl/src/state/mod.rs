//! What a communicator, its watchdog, its abort handles and the graphs that use it share.

mod inside;
mod work;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use collectives_core::addr::WindowId;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::communicator::Abort;
use collectives_core::disorder;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;
use nccl_sys::{Comm, Nccl};

use crate::device::shared::Shared;
use crate::device::stream::StreamState;
use crate::error::BACKEND;
use crate::options::Options;
use crate::watchdog;
use crate::window::Window;
use inside::Inside;
use work::Used;

/// The shared part of one rank's end.
///
/// In the order of declaration: what a call touches comes first, on a cache line of its own, because
/// between two calls the library fills the caches with what is its.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct State {
    pub(crate) nccl: &'static Nccl,
    pub(crate) device: Arc<Shared>,
    /// NCCL writes it at once when set-up begins, so that set-up can be aborted.
    handle: AtomicPtr<c_void>,
    /// Since when a call of NCCL enqueues, in milliseconds since `born`; zero when none does. The
    /// first call of a kind sets connections up, for which it waits for other ranks.
    entered: AtomicU64,
    /// The same clock as the watchdog read it last, which costs a call nothing.
    clock: AtomicU64,
    /// Pieces of eager work enqueued on this communicator.
    enqueued: AtomicU64,
    /// The stream that the last of `streams` is, or null.
    noted: AtomicPtr<StreamState>,
    failed: AtomicBool,
    closed: AtomicBool,
    /// Those pieces of eager work among `enqueued` in which not all ranks meet.
    messages: AtomicU64,
    failure: Mutex<Option<Error>>,
    /// Streams with work that may not have finished.
    streams: Mutex<Vec<Used>>,
    pub(crate) bootstrap: Arc<dyn Bootstrap>,
    pub(crate) options: Options,
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
            handle: AtomicPtr::new(ptr::null_mut()),
            entered: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            enqueued: AtomicU64::new(0),
            noted: AtomicPtr::new(ptr::null_mut()),
            failed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            messages: AtomicU64::new(0),
            failure: Mutex::new(None),
            streams: Mutex::default(),
            bootstrap,
            options,
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
    #[inline(always)]
    pub(crate) fn check_open(&self) -> Result<()> {
        let failed = self.failed.load(Ordering::SeqCst);
        match failed || self.closed.load(Ordering::Acquire) {
            true => Err(self.refusal()),
            false => Ok(()),
        }
    }

    #[cold]
    fn refusal(&self) -> Error {
        match self.health() {
            Err(error) => error,
            Ok(()) => self.named(Error::new(ErrorKind::Closed)),
        }
    }

    /// The first failure.
    #[inline(always)]
    pub(crate) fn health(&self) -> Result<()> {
        match self.failed.load(Ordering::Acquire) {
            true => Err(self.later_error()),
            false => Ok(()),
        }
    }

    /// What calls after the first failure get: what happened to others, or that it happened here.
    #[cold]
    fn later_error(&self) -> Error {
        let failure = lock(&self.failure);
        let error = match failure.as_ref().map(Error::kind) {
            Some(kind @ ErrorKind::Mismatch { .. }) => {
                return self.named(Error::new(kind.clone()).poisoning());
            }
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
        self.failed.store(true, Ordering::SeqCst);
        drop(failure);
        tracing::warn!(%error, rank = self.rank().0, "the communicator has failed");
        self.fail_streams(error);
        if !matches!(error.kind(), ErrorKind::PeerFailed { .. }) {
            self.bootstrap.publish_failure(&error.kind().to_string());
        }
        self.wake();
    }

    /// Fails the communicator if the error says that something had moved.
    #[cold]
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

    /// Runs a call of NCCL that does not wait for other ranks. Only the thread that has the
    /// communicator comes here.
    pub(crate) fn with_comm<R>(&self, call: impl FnOnce(&Nccl, Comm) -> Result<R>) -> Result<R> {
        let inside = self.inside()?;
        let result = call(self.nccl, inside.comm);
        inside.leave()?;
        result
    }

    /// Begins such a call.
    #[inline(always)]
    pub(crate) fn inside(&self) -> Result<Inside<'_>> {
        let mut inside = Inside::of(self);
        self.check_open()?;
        inside.comm = self.comm()?;
        Ok(inside)
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
    #[inline]
    pub(crate) fn raw(&self) -> Comm {
        Comm(self.handle.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn comm(&self) -> Result<Comm> {
        let comm = self.raw();
        match comm.is_null() {
            true => Err(self.refusal()),
            false => Ok(comm),
        }
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

    /// Waits a little for a call of NCCL that enqueues to return. The communicator has failed, so no
    /// other begins.
    pub(crate) fn wait_for_calls(&self, patience: Duration) {
        let begun = Instant::now();
        while self.entered.load(Ordering::SeqCst) != 0 && begun.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(1));
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
                let error = disorder::heard(rank, &cause);
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
