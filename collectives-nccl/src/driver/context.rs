//! The context of a device, and making it current for a while.

use std::marker::PhantomData;

use collectives_core::error::Result;

use super::capture_mode::Relaxed;
use super::load::Driver;
use super::sys::RawContext;

/// A device's primary context. It is never released: other libraries use it too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    pub(crate) raw: RawContext,
}

/// While it lives, the context is current on this thread; the caller's is restored afterwards.
#[derive(Debug)]
pub(crate) struct Current {
    popped_by: Option<&'static Driver>,
    _thread: PhantomData<*mut ()>,
}

/// The same in relaxed capture mode. The caller's context is restored first, then its mode.
#[derive(Debug)]
pub(crate) struct CurrentRelaxed {
    _current: Current,
    _relaxed: Relaxed,
}

impl Context {
    /// Makes the context current.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Result<Current> {
        let mut current = RawContext::NULL;
        // SAFETY: `cuCtxGetCurrent` (cuda.h, "Context Management") writes one handle.
        unsafe { self.driver.context_get_current(&raw mut current) }?;
        if current != self.raw {
            self.push()?;
        }
        Ok(Current {
            popped_by: (current != self.raw).then_some(self.driver),
            _thread: PhantomData,
        })
    }

    #[cold]
    fn push(&self) -> Result<()> {
        // SAFETY: The primary context is retained for ever.
        unsafe { self.driver.context_push(self.raw) }
    }

    /// Makes the context current, in relaxed capture mode.
    #[inline]
    pub(crate) fn enter_relaxed(&self) -> Result<CurrentRelaxed> {
        let relaxed = Relaxed::enter(self.driver)?;
        Ok(CurrentRelaxed {
            _current: self.enter()?,
            _relaxed: relaxed,
        })
    }
}

impl Drop for Current {
    #[inline]
    fn drop(&mut self) {
        if let Some(driver) = self.popped_by {
            pop(driver);
        }
    }
}

/// Undoes the push of [`Context::enter`].
#[cold]
fn pop(driver: &Driver) {
    let mut popped = RawContext::NULL;
    // SAFETY: `cuCtxPopCurrent` (cuda.h, "Context Management") takes back what was pushed on the same
    // thread, which a `Current` cannot leave.
    if let Err(error) = unsafe { driver.context_pop(&raw mut popped) } {
        tracing::error!(%error, "the caller's CUDA context could not be restored");
    }
}
