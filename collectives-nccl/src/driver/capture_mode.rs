//! Keeps our driver calls from disturbing captures of other threads.

use std::marker::PhantomData;

use collectives_core::error::Result;

use super::load::Driver;
use super::sys::MODE_RELAXED;

/// While it lives, calls of this thread neither fail because of a global capture elsewhere nor
/// invalidate it.
#[derive(Debug)]
pub(crate) struct Relaxed {
    driver: &'static Driver,
    previous: i32,
    /// The mode belongs to the thread.
    _thread: PhantomData<*mut ()>,
}

impl Relaxed {
    pub(crate) fn enter(driver: &'static Driver) -> Result<Self> {
        let mut previous = MODE_RELAXED;
        // SAFETY: `cuThreadExchangeStreamCaptureMode` (cuda.h, "Stream Management") swaps a mode
        // with the thread's.
        unsafe { driver.exchange_capture_mode(&raw mut previous) }?;
        Ok(Self {
            driver,
            previous,
            _thread: PhantomData,
        })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        let mut mode = self.previous;
        // SAFETY: As in `enter`; the mode is one that the driver gave.
        if let Err(error) = unsafe { self.driver.exchange_capture_mode(&raw mut mode) } {
            tracing::error!(%error, "the capture mode of this thread could not be restored");
        }
    }
}
