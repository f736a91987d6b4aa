//! What tests ask of the stand-in.
//!
//! The functions are called through pointers to them, as the driver's are, because a test shares no
//! statics with the library that it loads. What they say is text, owned by the library and valid until
//! the same thread asks again.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::atomic::Ordering;

use crate::communicators::AWAY;
use crate::devices;
use crate::owned::{DELAY, RUNNING};
use crate::windows::REFUSES;
use crate::world::lock;

thread_local! {
    static SAID: RefCell<CString> = RefCell::default();
}

fn say(lines: impl IntoIterator<Item = String>) -> *const c_char {
    let text = lines.into_iter().collect::<Vec<_>>().join("\n");
    SAID.with_borrow_mut(|said| {
        *said = CString::new(text).unwrap_or_default();
        said.as_ptr()
    })
}

/// Kinds and numbers of live handles, a line each.
#[unsafe(no_mangle)]
extern "C" fn standin_live() -> *const c_char {
    let mut locked = lock();
    let live = locked.get().live.values();
    say(live.map(|kind| format!("{kind:?}")))
}

/// What was done wrong, a line each.
#[unsafe(no_mangle)]
extern "C" fn standin_wrong() -> *const c_char {
    let mut locked = lock();
    say(std::mem::take(&mut locked.get().wrong))
}

/// The calls that were logged since the last time: function and arguments, by a tab. Whether those of
/// this thread are logged from now on is `on`.
#[unsafe(no_mangle)]
extern "C" fn standin_log(on: bool) -> *const c_char {
    let mut locked = lock();
    say(locked.get().record(on))
}

/// Every function that was called since counts were forgotten, and how often, by tabs.
#[unsafe(no_mangle)]
extern "C" fn standin_counts() -> *const c_char {
    let mut locked = lock();
    let counts = locked.get().calls().iter();
    say(counts.map(|(name, count)| format!("{name}\t{count}")))
}

/// Begins to count anew, without faults.
#[unsafe(no_mangle)]
extern "C" fn standin_reset() {
    lock().get().forget_counts();
}

/// Has the call after `left` others of this name fail once.
#[unsafe(no_mangle)]
extern "C" fn standin_fail(name: *const c_char, left: usize, code: c_int) {
    // SAFETY: The test passes a text.
    let name = unsafe { CStr::from_ptr(name) };
    let name = name.to_string_lossy().into_owned();
    lock().get().fail(name, left, code);
}

/// Whether the call that was told to fail was made.
#[unsafe(no_mangle)]
extern "C" fn standin_has_failed() -> bool {
    lock().get().has_failed()
}

/// Destructors of what graphs owned that have not finished.
#[unsafe(no_mangle)]
extern "C" fn standin_destroying() -> usize {
    RUNNING.load(Ordering::Acquire)
}

/// Contexts that this thread pushed and did not pop.
#[unsafe(no_mangle)]
extern "C" fn standin_contexts() -> usize {
    devices::thread().0
}

/// The capture mode of this thread.
#[unsafe(no_mangle)]
extern "C" fn standin_mode() -> c_int {
    devices::thread().1
}

/// Has work run no earlier than somebody waits for it, or as soon as it can.
#[unsafe(no_mangle)]
extern "C" fn standin_lazy(on: bool) {
    let mut locked = lock();
    let world = locked.get();
    world.lazy = on;
    world.enqueued();
}

/// Has destructors of what graphs own wait this many microseconds before they run.
#[unsafe(no_mangle)]
extern "C" fn standin_delay(microseconds: u64) {
    DELAY.store(microseconds, Ordering::Relaxed);
}

/// Has the next window that this thread registers be refused.
#[unsafe(no_mangle)]
extern "C" fn standin_refuse_window() {
    REFUSES.set(true);
}

/// Has this thread stay away from the next meeting that it comes to.
#[unsafe(no_mangle)]
extern "C" fn standin_stay_away() {
    AWAY.set(true);
}
