//! The end of the process: threads are silenced, and what is leaked is said.
//!
//! The driver and NCCL are torn down by handlers of their own, which run after ours, and crash a
//! thread that is inside them then. So watchdogs finish what they end, a bounded time, and call
//! nothing afterwards.
//!
//! NCCL's communicator cannot be destroyed while a graph of the driver uses it, and a process may end
//! while one does, or without closing what it made. The system then takes everything back; but who
//! looks for what a program forgot should not have to guess.

use std::ffi::c_int;
use std::sync::Once;
use std::time::Duration;

use crate::watchdog;

/// How long the process waits for communicators that are being ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// Has watchdogs silenced when the process ends, and the number of communicators that are left logged.
pub(crate) fn prepare() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: `atexit` (exit(3)) keeps a function, which never unwinds: it waits and logs, and
        // logging works without the thread's own storage.
        if unsafe { atexit(leave) } != 0 {
            tracing::debug!("nothing is done when the process ends");
        }
    });
}

extern "C" fn leave() {
    watchdog::silence(PATIENCE);
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
