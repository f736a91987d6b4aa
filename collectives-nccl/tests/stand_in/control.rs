//! The stand-in from the side of a test: finding it, and asking what was called.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, io};

use libloading::os::unix::Library;

use crate::folder::Folder;

/// Tells a process that its libraries are the stand-in's.
const READY: &str = "COLLECTIVES_STAND_IN";

/// Runs this program again where the stand-in is found, which the loader only learns when a process
/// begins; `None` where that is so already.
pub(crate) fn run_again() -> Option<c_int> {
    if env::var_os(READY).is_some() {
        return None;
    }
    let run = || -> io::Result<c_int> {
        let folder = Folder::prepare()?;
        let mut again = Command::new(env::current_exe()?);
        again.args(env::args_os().skip(1)).env(READY, "1");
        let ran = folder.serve(&mut again).status()?;
        Ok(ran.code().unwrap_or(1))
    };
    Some(run().unwrap_or_else(|error| {
        eprintln!("the stand-in cannot be used: {error}");
        1
    }))
}

/// A function of the stand-in's.
fn symbol<F: Copy>(name: &str) -> F {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        // SAFETY: It has no initialisers.
        unsafe { Library::new("libcuda.so.1") }.expect("the stand-in was prepared")
    });
    // SAFETY: Each caller names the type of the function, as the stand-in or cuda.h has it.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    *found.expect("the stand-in has the function")
}

fn text(said: *const c_char) -> Vec<String> {
    // SAFETY: The stand-in says texts that stay until this thread asks again.
    let said = unsafe { CStr::from_ptr(said) }.to_string_lossy();
    said.lines().map(ToOwned::to_owned).collect()
}

fn ask(name: &str) -> Vec<String> {
    let function = symbol::<extern "C" fn() -> *const c_char>(name);
    text(function())
}

/// Kinds of live handles, and how many of each.
pub(crate) fn live() -> BTreeMap<String, usize> {
    let mut live = BTreeMap::new();
    for kind in ask("standin_live") {
        *live.entry(kind).or_default() += 1;
    }
    live
}

/// What was done wrong since the last time.
pub(crate) fn wrong() -> Vec<String> {
    ask("standin_wrong")
}

/// Logs the calls of this thread from now on.
pub(crate) fn begin_log() {
    let function = symbol::<extern "C" fn(bool) -> *const c_char>("standin_log");
    function(true);
}

/// The calls since [`begin_log`]: functions and their arguments.
pub(crate) fn end_log() -> Vec<(String, String)> {
    let function = symbol::<extern "C" fn(bool) -> *const c_char>("standin_log");
    let calls = text(function(false)).into_iter().filter_map(|line| {
        let (name, arguments) = line.split_once('\t')?;
        Some((name.to_owned(), arguments.to_owned()))
    });
    calls.collect()
}

/// How often each function was called since [`reset`].
pub(crate) fn counts() -> Vec<(String, usize)> {
    let counts = ask("standin_counts").into_iter().filter_map(|line| {
        let (name, count) = line.split_once('\t')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    counts.collect()
}

pub(crate) fn reset() {
    symbol::<extern "C" fn()>("standin_reset")();
}

/// Has one call fail: the one after `left` others of the same name.
pub(crate) fn fail(name: &str, left: usize, code: c_int) {
    let function = symbol::<extern "C" fn(*const c_char, usize, c_int)>("standin_fail");
    let name = CString::new(name).unwrap_or_default();
    function(name.as_ptr(), left, code);
}

/// Whether the call that was to fail was made.
pub(crate) fn has_failed() -> bool {
    symbol::<extern "C" fn() -> bool>("standin_has_failed")()
}

/// Destructors of what graphs owned that have not finished.
pub(crate) fn destroying() -> usize {
    symbol::<extern "C" fn() -> usize>("standin_destroying")()
}

/// Contexts this thread has pushed, and its capture mode.
pub(crate) fn thread() -> (usize, c_int) {
    let contexts = symbol::<extern "C" fn() -> usize>("standin_contexts");
    let mode = symbol::<extern "C" fn() -> c_int>("standin_mode");
    (contexts(), mode())
}

/// Has work run no earlier than somebody waits for it, or as soon as it can.
pub(crate) fn set_lazy(on: bool) {
    symbol::<extern "C" fn(bool)>("standin_lazy")(on);
}

/// Has destructors of what graphs own wait before they run.
pub(crate) fn set_delay(delay: Duration) {
    let microseconds = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
    symbol::<extern "C" fn(u64)>("standin_delay")(microseconds);
}

/// Has the next window that this thread registers be refused.
pub(crate) fn refuse_window() {
    symbol::<extern "C" fn()>("standin_refuse_window")();
}

/// Has this thread not come where the others wait for it next, as if its process had been stopped.
pub(crate) fn stay_away() {
    symbol::<extern "C" fn()>("standin_stay_away")();
}

/// Begins a capture as a framework would, in the thread's own mode.
pub(crate) fn begin_foreign_capture(stream: usize) {
    let begin = symbol::<extern "C" fn(usize, c_int) -> c_int>("cuStreamBeginCapture_v2");
    assert_eq!(begin(stream, 1), 0);
}

/// A graph that somebody else captured, with an executable.
pub(crate) struct Foreign {
    graph: *mut c_void,
    executable: *mut c_void,
}

/// Ends it.
pub(crate) fn end_foreign_capture(stream: usize) -> Foreign {
    let end = symbol::<extern "C" fn(usize, *mut *mut c_void) -> c_int>("cuStreamEndCapture");
    let mut graph = std::ptr::null_mut();
    assert_eq!(end(stream, &raw mut graph), 0);
    let instantiate = symbol::<extern "C" fn(*mut *mut c_void, *mut c_void, u64) -> c_int>(
        "cuGraphInstantiateWithFlags",
    );
    let mut executable = std::ptr::null_mut();
    in_context(|| assert_eq!(instantiate(&raw mut executable, graph, 0), 0));
    Foreign { graph, executable }
}

impl Foreign {
    /// Launches it and waits.
    pub(crate) fn launch(&self, stream: usize) {
        let launch = symbol::<extern "C" fn(*mut c_void, usize) -> c_int>("cuGraphLaunch");
        let wait = symbol::<extern "C" fn(usize) -> c_int>("cuStreamSynchronize");
        in_context(|| assert_eq!(launch(self.executable, stream), 0));
        assert_eq!(wait(stream), 0);
    }

    /// Destroys graph and executable.
    pub(crate) fn destroy(self) {
        let executable = symbol::<extern "C" fn(*mut c_void) -> c_int>("cuGraphExecDestroy");
        let graph = symbol::<extern "C" fn(*mut c_void) -> c_int>("cuGraphDestroy");
        assert_eq!(executable(self.executable), 0);
        assert_eq!(graph(self.graph), 0);
    }
}

/// Runs a body with the context of the first device current.
fn in_context(body: impl FnOnce()) {
    let retain =
        symbol::<extern "C" fn(*mut *mut c_void, c_int) -> c_int>("cuDevicePrimaryCtxRetain");
    let push = symbol::<extern "C" fn(*mut c_void) -> c_int>("cuCtxPushCurrent_v2");
    let pop = symbol::<extern "C" fn(*mut *mut c_void) -> c_int>("cuCtxPopCurrent_v2");
    let mut context = std::ptr::null_mut();
    assert_eq!(retain(&raw mut context, 0), 0);
    assert_eq!(push(context), 0);
    body();
    assert_eq!(pop(&raw mut context), 0);
}
