//! Waiting: spin while that is likely to pay, then yield, then sleep.

use std::hint;
use std::num::NonZero;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

/// Polls without a pause, then with pauses, before the clock is read for the first time.
const TIGHT: u32 = 64;
const PAUSED: u32 = 64;

/// Pauses before yielding when there are more ranks than processors.
const PAUSED_IF_CROWDED: u32 = 4;

/// How long to spin while every rank has a processor: about twice what a sleep and a wake cost.
const SPIN: Duration = Duration::from_micros(30);

/// How long to yield before sleeping.
const YIELD: Duration = Duration::from_millis(1);

/// The longest sleep between two looks at the clock.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// Where threads wait for words that other threads write.
#[derive(Debug)]
pub(crate) struct Lobby {
    sleepers: CachePadded<AtomicU32>,
    door: Mutex<()>,
    bell: Condvar,
    crowded: bool,
}

impl Lobby {
    /// A lobby for this many threads, which may be more than there are processors.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            sleepers: CachePadded::new(AtomicU32::new(0)),
            door: Mutex::new(()),
            bell: Condvar::new(),
            crowded: threads > processors(),
        }
    }

    /// Wakes sleepers, if there are any.
    ///
    /// To be called after the write they wait for. Unless that write was sequentially consistent
    /// a sleeper may miss it, and then sees it at the end of its nap.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // A sleeper polls while it holds the door, so it cannot miss a bell rung after that.
        drop(self.door.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.notify_all();
    }

    /// Waits until `poll` gives something; after a while, `tick` is asked as well now and then,
    /// with the time waited so far.
    #[inline]
    pub(crate) fn wait<R>(
        &self,
        mut poll: impl FnMut() -> Option<R>,
        tick: impl FnMut(Duration) -> Option<R>,
    ) -> R {
        if !self.crowded {
            for _ in 0..TIGHT {
                if let Some(ready) = poll() {
                    return ready;
                }
            }
        } else if let Some(ready) = poll() {
            return ready;
        }
        self.wait_longer(poll, tick)
    }

    /// Apart, so that who does not wait long keeps a small frame.
    #[cold]
    #[inline(never)]
    fn wait_longer<R>(
        &self,
        mut poll: impl FnMut() -> Option<R>,
        mut tick: impl FnMut(Duration) -> Option<R>,
    ) -> R {
        let begun = Instant::now();
        let pauses = if self.crowded {
            PAUSED_IF_CROWDED
        } else {
            PAUSED
        };
        loop {
            for _ in 0..pauses {
                if let Some(ready) = poll() {
                    return ready;
                }
                hint::spin_loop();
            }
            let waited = begun.elapsed();
            if let Some(ready) = tick(waited) {
                return ready;
            }
            if self.crowded || waited >= SPIN {
                break;
            }
        }
        loop {
            if let Some(ready) = poll() {
                return ready;
            }
            let waited = begun.elapsed();
            if let Some(ready) = tick(waited) {
                return ready;
            }
            if waited < YIELD {
                thread::yield_now();
            } else if let Some(ready) = self.sleep(waited, &mut poll) {
                return ready;
            }
        }
    }

    fn sleep<R>(&self, waited: Duration, poll: &mut impl FnMut() -> Option<R>) -> Option<R> {
        let nap = (waited / 16).clamp(YIELD / 2, LONGEST_SLEEP);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = poll();
        if ready.is_none() {
            drop(self.bell.wait_timeout(door, nap));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        ready
    }
}

fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}
