//! What the driver and the library share: handles, counts, faults and what was done wrong.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::fmt::{self, Write as _};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::communicators::Library;
use crate::graphs::Graphs;
use crate::groups::note_failure;
use crate::memory::Ranges;
use crate::streams::{Event, StreamData};

/// `CUDA_SUCCESS` and `ncclSuccess`.
pub(crate) const SUCCESS: c_int = 0;
/// `CUDA_ERROR_INVALID_VALUE`; also an NCCL code, of a peer that failed.
pub(crate) const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub(crate) const INVALID_CONTEXT: c_int = 201;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub(crate) const INVALID_HANDLE: c_int = 400;

/// A handle of the driver's or the library's: a number that is never used again.
pub(crate) type Handle = usize;

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Stream,
    Event,
    Graph,
    Executable,
    UserObject,
    Module,
    Memory,
    Physical,
    Range,
    Communicator,
    Window,
    Operator,
}

/// A call that fails.
struct Fault {
    name: String,
    /// Calls of this name that still work.
    left: usize,
    code: c_int,
}

#[derive(Default)]
pub(crate) struct World {
    next: Handle,
    pub(crate) live: BTreeMap<Handle, Kind>,
    pub(crate) streams: BTreeMap<Handle, StreamData>,
    /// Streams that have work.
    pub(crate) busy: BTreeSet<Handle>,
    /// Whether work runs no earlier than somebody waits for it.
    pub(crate) lazy: bool,
    pub(crate) events: BTreeMap<Handle, Event>,
    pub(crate) graphs: Graphs,
    pub(crate) ranges: Ranges,
    pub(crate) nccl: Library,
    calls: BTreeMap<&'static str, usize>,
    pub(crate) modules: BTreeMap<Handle, String>,
    log: Option<Vec<String>>,
    fault: Option<Fault>,
    pub(crate) wrong: Vec<String>,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);
/// Whenever something changed that somebody may be waiting for.
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// Whether this thread runs the destructor of something a graph owned.
    pub(crate) static DESTROYS: Cell<bool> = const { Cell::new(false) };
    /// Whether the calls of this thread are logged.
    static LOGS: Cell<bool> = const { Cell::new(false) };
}

/// The locked world.
pub(crate) struct Locked(MutexGuard<'static, Option<World>>);

pub(crate) fn lock() -> Locked {
    let mut guard = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_with(World::default);
    Locked(guard)
}

impl Locked {
    pub(crate) fn get(&mut self) -> &mut World {
        self.0.get_or_insert_with(World::default)
    }

    /// Lets others in until one of them changed something.
    pub(crate) fn wait(self) -> Self {
        Self(CHANGED.wait(self.0).unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) fn changed() {
    CHANGED.notify_all();
}

/// A place that a caller gave to be written, as the header demands.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) fn put(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: The header has the caller pass null or a place for one value.
            unsafe { self.0.write(value) };
        }
    }

    pub(crate) fn get(self) -> T {
        // SAFETY: The header has the caller pass a place that holds a value.
        unsafe { self.0.read() }
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }
}

impl<T> fmt::Debug for Out<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out")
    }
}

/// Counts, logs and perhaps fails one call, and makes it otherwise.
pub(crate) fn call(
    name: &'static str,
    arguments: fmt::Arguments<'_>,
    body: impl FnOnce(&mut World) -> Result<(), c_int>,
) -> c_int {
    let mut locked = lock();
    let world = locked.get();
    let answer = world.admit(name, arguments).and_then(|()| body(world));
    answer.err().unwrap_or(SUCCESS)
}

/// As [`call`], for what waits: `body` is tried until it has an answer.
pub(crate) fn wait(
    name: &'static str,
    arguments: fmt::Arguments<'_>,
    mut body: impl FnMut(&mut World) -> Result<Option<()>, c_int>,
) -> c_int {
    let mut locked = lock();
    if let Err(code) = locked.get().admit(name, arguments) {
        return code;
    }
    loop {
        match body(locked.get()) {
            Ok(Some(())) => return SUCCESS,
            Ok(None) => locked = locked.wait(),
            Err(code) => return code,
        }
    }
}

/// Functions of a header; those behind `waits` say `None` for as long as the caller has to wait.
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$world:ident| $body:block)+) => {
        $crate::world::functions! { @call $(fn $name($($arg: $ty),*) |$world| $body)+ }
    };
    (waits $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$world:ident| $body:block)+) => {
        $crate::world::functions! { @wait $(fn $name($($arg: $ty),*) |$world| $body)+ }
    };
    (@$how:ident $(fn $name:ident($($arg:ident: $ty:ty),*) |$world:ident| $body:block)+) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> std::ffi::c_int {
            $crate::world::$how(
                stringify!($name),
                format_args!(concat!($(stringify!($arg), "={:?} "),*), $($arg),*),
                |$world| $body,
            )
        }
    )+};
}
pub(crate) use functions;

impl World {
    /// Counts and logs a call; an error where it was told to fail.
    pub(crate) fn admit(
        &mut self,
        name: &'static str,
        arguments: fmt::Arguments<'_>,
    ) -> Result<(), c_int> {
        *self.calls.entry(name).or_default() += 1;
        if DESTROYS.get() {
            self.wrong.push(format!(
                "{name} in the destructor of something a graph owned"
            ));
        }
        if LOGS.get()
            && let Some(log) = &mut self.log
        {
            log.push(format!("{name}\t{arguments}"));
        }
        let fault = self.fault.as_mut().filter(|fault| fault.name == name);
        match fault {
            Some(fault) if fault.left == 0 => {
                let code = fault.code;
                self.fault = None;
                note_failure(code);
                Err(code)
            }
            Some(fault) => {
                fault.left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Adds something to what is logged of the call that is being made.
    pub(crate) fn note(&mut self, what: fmt::Arguments<'_>) {
        if LOGS.get()
            && let Some(line) = self.log.as_mut().and_then(|log| log.last_mut())
        {
            // Writing to a string cannot fail.
            let _ = write!(line, "{what} ");
        }
    }

    pub(crate) fn make(&mut self, kind: Kind) -> Handle {
        self.next += 1;
        // Recognised in a debugger, and at nobody's address.
        let handle = 0x5a00_0000_0000 + self.next * 64;
        self.live.insert(handle, kind);
        handle
    }

    /// Notes a handle that is not one, or no longer.
    pub(crate) fn check(&mut self, handle: Handle, kind: Kind) -> Result<(), c_int> {
        if self.live.get(&handle) == Some(&kind) {
            return Ok(());
        }
        self.wrong.push(format!("{handle:#x} is no live {kind:?}"));
        Err(INVALID_HANDLE)
    }

    pub(crate) fn end(&mut self, handle: Handle, kind: Kind) -> Result<(), c_int> {
        self.check(handle, kind)?;
        self.live.remove(&handle);
        Ok(())
    }

    /// Has the call after `left` others of this name return `code`, once.
    pub(crate) fn fail(&mut self, name: String, left: usize, code: c_int) {
        self.fault = Some(Fault { name, left, code });
    }

    /// Whether the fault has happened.
    pub(crate) fn has_failed(&self) -> bool {
        self.fault.is_none()
    }

    /// Logs the calls of this thread from now on, or no calls; gives those that were.
    pub(crate) fn record(&mut self, on: bool) -> Vec<String> {
        LOGS.set(on);
        let before = self.log.take();
        self.log = on.then(Vec::new);
        before.unwrap_or_default()
    }

    /// Every function that was called, and how often.
    pub(crate) fn calls(&self) -> &BTreeMap<&'static str, usize> {
        &self.calls
    }

    pub(crate) fn forget_counts(&mut self) {
        self.calls.clear();
        self.fault = None;
    }
}
