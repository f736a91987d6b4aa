//! Waiting for words that other processes write: spin, yield, then sleep on a futex they share.

use std::hint;
use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::thread::futex;

use super::segment::Head;

/// Polls without a pause, then with pauses, before the clock is read for the first time.
const TIGHT: u32 = 64;
const PAUSED: u32 = 200;
/// The same where there are more ranks than processors.
const PAUSED_IF_CROWDED: u32 = 20;
/// How long to spin while every rank has a processor.
const SPIN: Duration = Duration::from_micros(30);
/// How long to yield before sleeping.
const YIELD: Duration = Duration::from_millis(1);
/// The longest sleep between two looks at the clock.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

impl Head {
    /// Wakes who sleeps; to be called after the write they wait for.
    #[inline]
    pub(super) fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.bell.fetch_add(1, Ordering::SeqCst);
            // Without the flag for threads of one process, it reaches all that map the word.
            let _woken = futex::wake(&self.bell, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    /// Waits until `poll` gives something; after a while, `tick` is asked as well now and then, with
    /// the time waited so far.
    #[inline]
    pub(super) fn wait<R>(
        &self,
        ranks: usize,
        mut poll: impl FnMut() -> Option<R>,
        tick: impl FnMut(Duration) -> Option<R>,
    ) -> R {
        let crowded = ranks > processors();
        let tight = if crowded { 1 } else { TIGHT };
        for _ in 0..tight {
            if let Some(ready) = poll() {
                return ready;
            }
        }
        self.wait_longer(crowded, poll, tick)
    }

    /// Apart, so that who does not wait long keeps a small frame.
    #[cold]
    #[inline(never)]
    fn wait_longer<R>(
        &self,
        crowded: bool,
        mut poll: impl FnMut() -> Option<R>,
        mut tick: impl FnMut(Duration) -> Option<R>,
    ) -> R {
        let pauses = if crowded { PAUSED_IF_CROWDED } else { PAUSED };
        let mut begun = None;
        loop {
            for _ in 0..pauses {
                if let Some(ready) = poll() {
                    return ready;
                }
                hint::spin_loop();
            }
            let begun: &mut Instant = begun.get_or_insert_with(Instant::now);
            let waited = begun.elapsed();
            if let Some(ready) = tick(waited) {
                return ready;
            }
            if !crowded && waited < SPIN {
                continue;
            }
            if waited < YIELD {
                thread::yield_now();
            } else if let Some(ready) = self.sleep(waited, &mut poll) {
                return ready;
            }
        }
    }

    /// Sleeps unless there is something. A bell that is rung after `seen` was read ends the sleep.
    fn sleep<R>(&self, waited: Duration, poll: &mut impl FnMut() -> Option<R>) -> Option<R> {
        let nap = (waited / 16).clamp(YIELD / 2, LONGEST_SLEEP);
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(nap.subsec_nanos()),
        };
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.bell.load(Ordering::SeqCst);
        let ready = poll();
        if ready.is_none() {
            let _woken = futex::wait(&self.bell, futex::Flags::empty(), seen, Some(&timeout));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        ready
    }
}

fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}
