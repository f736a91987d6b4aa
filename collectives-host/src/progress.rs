//! How far a stream has come, as one word that is also the lock of an inline stream.
//!
//! Every unit of work has a position in its stream, counted from one. The word holds the last
//! position that is complete, and a bit that says whether a thread runs inline work at the moment.
//! One compare-and-swap begins inline work and one store ends it, which is all the hot path pays.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

const BUSY: u64 = 1;
/// Looks at the word before a thread parks.
const SPINS: u32 = 100;
/// The longest a parked thread sleeps between two looks: the end of inline work is a plain store,
/// after which the look for waiters may come too early to see one.
const NAP: Duration = Duration::from_micros(200);

#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Complete positions, shifted by one; the lowest bit is [`BUSY`].
    word: AtomicU64,
    /// The last position given out; at least as far as what is complete.
    enqueued: AtomicU64,
    waiters: AtomicU32,
    park: Mutex<()>,
    changed: Condvar,
}

impl Progress {
    /// The last position that was given out.
    pub(crate) fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Acquire)
    }

    pub(crate) fn is_complete(&self, position: u64) -> bool {
        self.word.load(Ordering::Acquire) >> 1 >= position
    }

    /// Whether a thread has gone to sleep until some position is complete.
    #[cfg(test)]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) > 0
    }

    /// Whether nothing that was enqueued is unfinished.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_complete(self.enqueued())
    }

    /// Gives out `count` more positions and returns the first. Only for who holds the stream's
    /// turn: between [`Progress::begin`] and [`Progress::finish`], or under the queue's lock.
    pub(crate) fn reserve(&self, count: u64) -> u64 {
        let last = self.enqueued.load(Ordering::Relaxed);
        self.enqueued.store(last + count, Ordering::Release);
        last + 1
    }

    /// Takes the turn of an inline stream, for one position; waits while another thread has it.
    #[inline]
    pub(crate) fn begin(&self) {
        let word = self.word.load(Ordering::Relaxed) & !BUSY;
        if self.try_begin(word) {
            self.reserve(1);
            return;
        }
        self.begin_contended();
        self.reserve(1);
    }

    /// Gives the turn back; everything given out is complete.
    #[inline]
    pub(crate) fn finish(&self) {
        let word = self.enqueued.load(Ordering::Relaxed) << 1;
        self.word.store(word, Ordering::Release);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    /// Marks everything up to `position` as complete, and keeps the turn if it is taken. Only for
    /// who runs the stream's work.
    pub(crate) fn advance(&self, position: u64) {
        let busy = self.word.load(Ordering::Relaxed) & BUSY;
        self.publish(position << 1 | busy);
    }

    /// Waits until `position` is complete.
    pub(crate) fn wait(&self, position: u64) {
        if !self.is_complete(position) {
            self.wait_until(|| self.word.load(Ordering::SeqCst) >> 1 >= position);
        }
    }

    fn try_begin(&self, idle: u64) -> bool {
        self.word
            .compare_exchange(idle, idle | BUSY, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[cold]
    fn begin_contended(&self) {
        self.wait_until(|| {
            let word = self.word.load(Ordering::SeqCst);
            word & BUSY == 0 && self.try_begin(word)
        });
    }

    /// Either a waiter sees the new word, or this sees the waiter: both sides are sequentially
    /// consistent.
    fn publish(&self, word: u64) {
        self.word.swap(word, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        drop(self.park.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    #[cold]
    fn wait_until(&self, done: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut parked = self.park.lock().unwrap_or_else(PoisonError::into_inner);
        while !done() {
            let napped = self.changed.wait_timeout(parked, NAP);
            parked = napped.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(parked);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn positions_complete_in_order_while_the_turn_is_kept() {
        let progress = Progress::default();
        progress.begin();
        let first = progress.reserve(2);
        assert_eq!(first, 2);
        progress.advance(2);
        assert!(progress.is_complete(2) && !progress.is_complete(3));
        assert!(!progress.is_idle());
        progress.finish();
        assert!(progress.is_idle() && progress.is_complete(3));
    }

    #[test]
    fn turns_exclude_each_other_and_nobody_sleeps_for_ever() {
        let progress = Progress::default();
        let shared = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        progress.begin();
                        let seen = shared.load(Ordering::Relaxed);
                        shared.store(seen + 1, Ordering::Relaxed);
                        progress.finish();
                    }
                });
            }
            scope.spawn(|| progress.wait(6000));
        });
        assert_eq!(shared.into_inner(), 6000);
        assert_eq!(progress.enqueued(), 6000);
    }
}
