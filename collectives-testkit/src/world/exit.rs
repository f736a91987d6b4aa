//! A process that ends in the middle of a case, although nobody asked it to.
//!
//! A rank that is a thread may call `exit(0)`, and to every runner the process has then done well. So the
//! end of the process looks whether a case was going on, names it, and is a failure.

use std::ffi::c_int;
use std::process;
use std::sync::{Mutex, Once, PoisonError};

/// Cases that go on now.
static INSIDE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A case that goes on as long as this lives.
#[derive(Debug)]
pub(super) struct Inside(String);

impl Inside {
    pub(super) fn of(case: String) -> Self {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: The hook is a function of this program, which is not unloaded.
            let refused = unsafe { atexit(ended) };
            if refused != 0 {
                tracing::debug!("the end of the process is not watched");
            }
        });
        let mut inside = INSIDE.lock().unwrap_or_else(PoisonError::into_inner);
        inside.push(case.clone());
        Self(case)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut inside = INSIDE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = inside.iter().position(|case| *case == self.0) {
            inside.swap_remove(index);
        }
    }
}

unsafe extern "C" {
    /// Has the end of the process call a function.
    fn atexit(hook: extern "C" fn()) -> c_int;
}

extern "C" fn ended() {
    // Whoever holds the lock may be what ended the process.
    let Ok(inside) = INSIDE.try_lock() else {
        return;
    };
    if !inside.is_empty() {
        eprintln!("a rank ended the whole process in {}", inside.join(", "));
        process::abort();
    }
}
