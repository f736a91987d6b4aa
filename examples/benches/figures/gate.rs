//! Lets threads start at the same moment.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use collectives_core::error::{Misuse, Result};

/// Looks at a word before a thread yields its core, although there are cores enough.
const PATIENCE: u32 = 20_000;

/// A barrier of its own, so that what is measured is not also what starts the measurement.
#[derive(Debug)]
pub(crate) struct Gate {
    threads: usize,
    spins: u32,
    arrived: AtomicUsize,
    passed: AtomicUsize,
    broken: AtomicBool,
}

impl Gate {
    pub(crate) fn new(threads: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            threads,
            spins: if threads <= cores { PATIENCE } else { 20 },
            arrived: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Waits for all threads; fails when one of them gave up.
    pub(crate) fn pass(&self) -> Result<()> {
        let round = self.passed.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.passed.store(round + 1, Ordering::Release);
            return Ok(());
        }
        let mut looks = 0;
        while self.passed.load(Ordering::Acquire) == round {
            if self.broken.load(Ordering::Relaxed) {
                return Err(Misuse::Other("another rank gave up".to_owned()).into());
            }
            looks += 1;
            if looks < self.spins {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        Ok(())
    }

    /// Runs a thread's part; if that fails or panics, the others do not wait for it.
    pub(crate) fn guard<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        let guard = BreakOnDrop(self);
        let result = body()?;
        std::mem::forget(guard);
        Ok(result)
    }
}

struct BreakOnDrop<'a>(&'a Gate);

impl Drop for BreakOnDrop<'_> {
    fn drop(&mut self) {
        self.0.broken.store(true, Ordering::Relaxed);
    }
}
