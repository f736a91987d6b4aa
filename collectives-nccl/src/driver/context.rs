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
    /// Held for its drop, which restores the mode.
    relaxed: Option<Relaxed>,
    _thread: PhantomData<*mut ()>,
}

impl Context {
    /// Makes the context current.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Current> {
        let mut current = RawContext::NULL;
        // SAFETY: `cuCtxGetCurrent` (cuda.h, "Context Management") writes one handle.
        unsafe { self.driver.context_get_current(&raw mut current) }?;
        let popped_by = match current == self.raw {
            true => None,
            false => {
                // SAFETY: The primary context is retained for ever.
                unsafe { self.driver.context_push(self.raw) }?;
                Some(self.driver)
            }
        };
        Ok(Current {
            popped_by,
            relaxed: None,
            _thread: PhantomData,
        })
    }

    /// Makes the context current, in relaxed capture mode.
    #[inline]
    pub(crate) fn enter_relaxed(&self) -> Result<Current> {
        let relaxed = Relaxed::enter(self.driver)?;
        let mut current = self.enter()?;
        current.relaxed = Some(relaxed);
        Ok(current)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(driver) = self.popped_by {
            let mut popped = RawContext::NULL;
            // SAFETY: `cuCtxPopCurrent` (cuda.h, "Context Management") undoes the push of `enter`
            // on the same thread, as this value cannot leave it.
            if let Err(error) = unsafe { driver.context_pop(&raw mut popped) } {
                tracing::error!(%error, "the caller's CUDA context could not be restored");
            }
        }
    }
}
