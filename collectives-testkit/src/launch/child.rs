//! A rank's life: it says who it is, runs its body, and never outlives parent or deadline.

use std::any::Any;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use collectives_core::env::World;
use collectives_core::error::with_causes;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::channel::{self, News};
use super::{Body, DEADLINE_PASSED, FAILED, NOT_STARTED, PANICKED, variables};

/// Runs this rank's body and ends the process, or returns at once where the process is no rank.
///
/// Call it first in `main`, with every body that a [`Launch`](super::Launch) may name.
pub fn dispatch(bodies: &[(&str, Body)]) {
    let Ok(name) = std::env::var(variables::BODY) else {
        return;
    };
    let begun = begin(&name, bodies);
    let (body, world, parent) = begun.unwrap_or_else(|why| {
        eprintln!("this rank cannot begin: {why}");
        process::exit(NOT_STARTED);
    });
    let code = match panic::catch_unwind(AssertUnwindSafe(|| body(&world))) {
        Ok(Ok(result)) => match tell(&parent, &News::Result(result)) {
            Ok(()) => 0,
            Err(error) => {
                let _ = tell(
                    &parent,
                    &News::Error(format!("the result is lost: {error}")),
                );
                FAILED
            }
        },
        Ok(Err(error)) => {
            let _ = tell(&parent, &News::Error(with_causes(&error)));
            FAILED
        }
        // The hook has told it.
        Err(_) => PANICKED,
    };
    process::exit(code);
}

type Parent = Arc<Mutex<UnixStream>>;

fn begin(name: &str, bodies: &[(&str, Body)]) -> Result<(Body, World, Parent), String> {
    die_with_parent()?;
    let socket = variable(variables::SOCKET)?;
    let connected = channel::connect(&socket);
    let mut stream = connected.map_err(|error| format!("no way to the parent: {error}"))?;
    let world = World::from_env().map_err(|error| with_causes(&error))?;
    let token = variable(variables::TOKEN)?.into_bytes();
    let hello = News::Rank(world.rank.0, token).send(&mut stream);
    hello.map_err(|error| format!("no way to the parent: {error}"))?;
    let parent = Arc::new(Mutex::new(stream));
    let refuse = |why: String| {
        let _ = tell(&parent, &News::Error(why.clone()));
        why
    };
    let deadline = variable(variables::DEADLINE).map_err(refuse)?;
    let deadline = deadline.parse().map(Duration::from_millis);
    let deadline = deadline.map_err(|error| refuse(format!("the deadline: {error}")))?;
    watch(&parent, deadline).map_err(|error| refuse(format!("no watchdog: {error}")))?;
    report_panics(&parent);
    let body = bodies.iter().find(|(known, _)| *known == name);
    let (_, body) = body.ok_or_else(|| refuse(format!("there is no body `{name}`")))?;
    Ok((*body, world, parent))
}

/// Has the system kill this process when the parent is gone, and sees whether it is already.
fn die_with_parent() -> Result<(), String> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("it would outlive its parent: {error}"))?;
    let Ok(expected) = variable(variables::PARENT) else {
        // Another launcher's child: whoever that is, it was there when it started this.
        return Ok(());
    };
    let parent = getppid().map(|pid| pid.as_raw_nonzero().to_string());
    match parent {
        Some(parent) if parent == expected => Ok(()),
        _ => Err("its parent is gone".to_owned()),
    }
}

/// Ends the process when its deadline passes, whatever its other threads do.
fn watch(parent: &Parent, deadline: Duration) -> std::io::Result<()> {
    let parent = Arc::clone(parent);
    let watchdog = thread::Builder::new().name("watchdog".to_owned());
    let watching = watchdog.spawn(move || {
        thread::sleep(deadline);
        // Whoever holds the lock may be what hangs.
        let mut stream = match parent.try_lock() {
            Ok(stream) => Some(stream),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(stream) = &mut stream {
            let text = format!("its deadline of {deadline:?} passed");
            let _ = News::Error(text).send(&mut **stream);
        }
        _exit(DEADLINE_PASSED);
    });
    watching.map(drop)
}

/// Tells the parent of every panic, then does what would have been done.
fn report_panics(parent: &Parent) {
    let parent = Arc::clone(parent);
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let at = info
            .location()
            .map_or(String::new(), |at| format!(" at {at}"));
        let text = format!("{}{at}", message(info.payload()));
        let _ = tell(&parent, &News::Panic(text));
        before(info);
    }));
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

fn tell(parent: &Parent, news: &News) -> std::io::Result<()> {
    let _ = std::io::stdout().flush();
    let mut stream = parent.lock().unwrap_or_else(PoisonError::into_inner);
    news.send(&mut *stream)
}

fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|error| format!("{name}: {error}"))
}

unsafe extern "C" {
    /// Unlike `exit` it runs no destructors, which could wait for the thread that hangs. It takes
    /// any number, touches no memory and never returns, and is so safe to call.
    safe fn _exit(code: std::ffi::c_int) -> !;
}
