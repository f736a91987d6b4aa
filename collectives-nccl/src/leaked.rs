//! What is left when the process ends: it is leaked, and said.
//!
//! NCCL's communicator cannot be destroyed while a graph of the driver uses it, and a process may end
//! while one does, or without closing what it made. The system then takes everything back; but who
//! looks for what a program forgot should not have to guess.

use std::ffi::c_int;
use std::sync::Once;

use crate::watchdog;

/// Has the number of communicators that are left logged when the process ends.
pub(crate) fn report_at_exit() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: `atexit` (exit(3)) keeps a function, which never unwinds: it logs, and logging
        // works without the thread's own storage.
        if unsafe { atexit(report) } != 0 {
            tracing::debug!("what is leaked at exit will not be reported");
        }
    });
}

extern "C" fn report() {
    let leaked = watchdog::live();
    if leaked > 0 {
        tracing::warn!(
            communicators = leaked,
            "the process ends with NCCL communicators that were not closed, or that graphs still own"
        );
    }
}

unsafe extern "C" {
    fn atexit(hook: extern "C" fn()) -> c_int;
}
