//! A call of NCCL that goes on.

use std::sync::atomic::Ordering;

use collectives_core::error::Result;
use nccl_sys::Comm;

use super::State;

/// While it lives a call of NCCL may use the communicator, and an abort waits.
///
/// Who calls says so and then looks for a failure; who aborts does it the other way round. So one of
/// them sees the other.
pub(crate) struct Inside<'a> {
    state: &'a State,
    pub(crate) comm: Comm,
}

impl<'a> Inside<'a> {
    #[inline(always)]
    pub(super) fn of(state: &'a State) -> Self {
        let clock = state.clock.load(Ordering::Relaxed);
        state.entered.swap(clock.max(1), Ordering::SeqCst);
        let comm = Comm::NULL;
        Self { state, comm }
    }

    /// Ends the call; what failed meanwhile is its error.
    #[inline(always)]
    pub(crate) fn leave(self) -> Result<()> {
        let state = self.state;
        drop(self);
        state.health()
    }
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.state.entered.store(0, Ordering::Release);
    }
}
