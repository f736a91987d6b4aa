//! The thread that ends what hangs.
//!
//! NCCL itself reports nothing when a peer is killed: its kernel spins. So this thread looks at
//! elapsed time: of a blocking call, of enqueued work that makes no progress. It also hears what
//! other ranks published, aborts NCCL's communicator after a failure, and destroys it after the
//! last claim of a graph is gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::disorder;
use collectives_core::error::{Error, ErrorKind, Result};

use crate::driver::CurrentRelaxed;
use crate::error::nccl_error;
use crate::exit;
use crate::state::{State, lock};

/// How often it looks.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an abort waits for a call that is enqueueing.
const PATIENCE: Duration = Duration::from_secs(2);

/// Held by watchdogs while they call the driver or NCCL.
static CALLS: RwLock<()> = RwLock::new(());

static LIVE: AtomicUsize = AtomicUsize::new(0);
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// NCCL communicators of this process that have not ended.
pub(crate) fn live() -> usize {
    LIVE.load(Ordering::Acquire)
}

/// Those among them that nobody owns any more.
pub(crate) fn ending() -> usize {
    ENDING.load(Ordering::Acquire)
}

/// One more that nobody owns.
pub(crate) fn note_ending() {
    ENDING.fetch_add(1, Ordering::AcqRel);
}

/// Keeps watchdogs from calling anything from now on, once those that end a communicator have; for the
/// end of the process, in which the driver goes away under them.
pub(crate) fn silence(patience: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < patience {
        if ending() == 0 {
            match CALLS.try_write() {
                Ok(all) => return std::mem::forget(all),
                Err(TryLockError::Poisoned(all)) => return std::mem::forget(all),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Starts the thread; it ends with the communicator.
pub(crate) fn start(state: &Arc<State>) -> Result<()> {
    LIVE.fetch_add(1, Ordering::AcqRel);
    exit::prepare();
    let watched = Arc::clone(state);
    let spawned = thread::Builder::new()
        .name("nccl-watchdog".to_owned())
        .spawn(move || {
            watch(&watched);
            // It ends when nobody owns the communicator, and not otherwise.
            LIVE.fetch_sub(1, Ordering::AcqRel);
            ENDING.fetch_sub(1, Ordering::AcqRel);
        });
    match spawned {
        Ok(_) => Ok(()),
        Err(error) => {
            LIVE.fetch_sub(1, Ordering::AcqRel);
            let text = format!("no thread for the watchdog: {error}");
            Err(Error::new(ErrorKind::System(text)))
        }
    }
}

/// Since when no work was enqueued and none finished.
struct Stall {
    seen: u64,
    since: Instant,
}

fn watch(state: &State) {
    let current = match state.device.context.enter_relaxed() {
        Ok(current) => Some(current),
        Err(error) => {
            tracing::error!(%error, "the watchdog has no CUDA context");
            None
        }
    };
    let mut stall = Stall {
        seen: 0,
        since: Instant::now(),
    };
    loop {
        state.wait(PAUSE);
        let _calls = CALLS.read().unwrap_or_else(PoisonError::into_inner);
        state.tick();
        if state.has_failed() && !state.control().ended {
            abort(state);
        }
        if state.control().unowned {
            end(state, current.as_ref());
            return;
        }
        if !state.has_failed() {
            look(state, &mut stall);
        }
    }
}

fn look(state: &State, stall: &mut Stall) {
    if let Some((rank, cause)) = state.bootstrap.failure()
        && rank != state.rank()
        && !state.is_closed()
    {
        state.fail(&disorder::heard(rank, &cause));
        return;
    }
    let blocked = state.control().blocked;
    if let Some((until, what)) = blocked
        && Instant::now() >= until
    {
        let cause = format!("{what} did not return within {:?}", state.options.deadline);
        state.fail(&Error::new(ErrorKind::Aborted { cause }));
        return;
    }
    let deadline = state.options.work_deadline;
    if state.enqueueing_for() >= deadline {
        let cause = format!("a call did not return within {deadline:?}; a peer may be gone");
        state.fail(&Error::new(ErrorKind::Aborted { cause }));
        return;
    }
    let (finished, enqueued) = state.progress();
    if finished || enqueued != stall.seen {
        *stall = Stall {
            seen: enqueued,
            since: Instant::now(),
        };
    } else if stall.since.elapsed() >= deadline {
        let cause = format!("enqueued work made no progress for {deadline:?}; a peer may be gone");
        state.fail(&Error::new(ErrorKind::Aborted { cause }));
    }
}

/// Aborts NCCL's communicator, once it is published.
fn abort(state: &State) {
    state.wait_for_calls(PATIENCE);
    let Some(comm) = state.take_comm() else {
        return;
    };
    // SAFETY: `ncclCommAbort` (nccl.h) may be called while another thread uses the communicator,
    // and the handle was taken, so that it is called once and nothing begins afterwards.
    let aborted = unsafe { state.nccl.comm_abort(comm) };
    if let Err(error) = aborted {
        tracing::debug!(%error, "the abort itself failed");
    }
    state.set_ended();
}

/// Ends NCCL's communicator after its last owner is gone.
fn end(state: &State, current: Option<&CurrentRelaxed>) {
    let windows = std::mem::take(&mut *lock(&state.windows));
    if let Some(comm) = state.take_comm() {
        let clean = state.is_closed() && current.is_some();
        if clean {
            for window in windows.values() {
                // SAFETY: `ncclCommWindowDeregister` (nccl.h): registered with this communicator,
                // and all ranks have agreed that no work uses it.
                let gone = unsafe { state.nccl.comm_window_deregister(comm, window.native) };
                if let Err(error) = gone.map_err(nccl_error) {
                    tracing::debug!(%error, "a window was not deregistered");
                }
            }
        }
        let ended = if clean {
            // SAFETY: `ncclCommDestroy` (nccl.h): the handle was taken, so nothing else ends it
            // and nothing uses it any more.
            unsafe { state.nccl.comm_destroy(comm) }
        } else {
            // SAFETY: `ncclCommAbort` (nccl.h): as above.
            unsafe { state.nccl.comm_abort(comm) }
        };
        if let Err(error) = ended.map_err(nccl_error) {
            tracing::debug!(%error, "the communicator did not end cleanly");
        }
    }
    // The bytes go after their windows.
    drop(windows);
    state.set_ended();
    state.device.collect();
}
