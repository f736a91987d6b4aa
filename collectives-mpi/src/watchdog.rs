//! Operations that wait for ever: MPI cannot take them back, so they end the job, with a message.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::collective::Collective;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;
use collectives_host::engine::Health;

use crate::error::BACKEND;
use crate::exit;

/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(100);

/// How long an operation may go on after its communicator failed elsewhere: ranks that were in it
/// together may still end it well.
const GRACE: Duration = Duration::from_millis(500);

/// How much longer than the rank before it each rank waits with ending the job. Open MPI's mpirun may
/// hang when several ranks end it at once, and the first one ends the others.
const APART: Duration = Duration::from_millis(100);
/// Ranks that wait longer than one before them.
const QUEUE: u32 = 16;

/// What one communicator is doing at the moment.
#[derive(Debug)]
pub(crate) struct Flight {
    rank: Rank,
    health: Arc<Health>,
    /// When the operation in flight began, in nanoseconds of the process's clock; zero between.
    since: AtomicU64,
    deadline: AtomicU64,
    what: AtomicU64,
}

/// An operation in flight.
pub(crate) struct Airborne<'a>(&'a Flight);

impl Flight {
    /// Has it watched.
    pub(crate) fn watched(rank: Rank, health: Arc<Health>) -> Result<Arc<Self>> {
        let flight = Arc::new(Self {
            rank,
            health,
            since: AtomicU64::new(0),
            deadline: AtomicU64::new(u64::MAX),
            what: AtomicU64::new(0),
        });
        watch(Arc::downgrade(&flight))?;
        Ok(flight)
    }

    /// Begins an operation.
    #[inline]
    pub(crate) fn begin(&self, calls: &[Collective<'_>], deadline: Duration) -> Airborne<'_> {
        let what = match calls {
            [call] => 1 + call.kind() as u64,
            _ => 0,
        };
        let nanos = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.what.store(what, Ordering::Relaxed);
        self.deadline.store(nanos, Ordering::Relaxed);
        self.since.store(now().max(1), Ordering::Release);
        Airborne(self)
    }

    /// Why the job must end, if it must.
    fn verdict(&self, broken_since: &mut Option<Instant>) -> Option<String> {
        let since = self.since.load(Ordering::Acquire);
        if since == 0 {
            *broken_since = None;
            return None;
        }
        let turn = APART * (self.rank.0 % QUEUE);
        let waited = Duration::from_nanos(now().saturating_sub(since)).saturating_sub(turn);
        let what = name(self.what.load(Ordering::Relaxed));
        let rank = self.rank;
        if let Some(error) = self.health.failure() {
            let begun = broken_since.get_or_insert_with(Instant::now);
            if begun.elapsed() >= GRACE + turn && waited >= GRACE {
                return Some(format!("rank {rank} is inside {what}, and {error}"));
            }
        }
        let deadline = Duration::from_nanos(self.deadline.load(Ordering::Relaxed));
        (waited >= deadline).then(|| {
            format!(
                "rank {rank} has waited {deadline:?} inside {what} for ranks that do not come, and \
                 MPI cannot take the operation back"
            )
        })
    }
}

impl Drop for Airborne<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.since.store(0, Ordering::Release);
    }
}

fn name(what: u64) -> &'static str {
    const NAMES: [&str; 12] = [
        "a group",
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "reduce",
        "all_to_all",
        "gather",
        "scatter",
        "send",
        "recv",
        "barrier",
    ];
    let index = usize::try_from(what).unwrap_or(0);
    NAMES.get(index).copied().unwrap_or("an operation")
}

/// Nanoseconds since the process first asked.
fn now() -> u64 {
    static BASE: OnceLock<Instant> = OnceLock::new();
    let base = BASE.get_or_init(Instant::now);
    u64::try_from(base.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

type Watched = Mutex<Vec<(Weak<Flight>, Option<Instant>)>>;

fn watch(flight: Weak<Flight>) -> Result<()> {
    static FLIGHTS: Watched = Mutex::new(Vec::new());
    static STARTED: Mutex<bool> = Mutex::new(false);
    FLIGHTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push((flight, None));
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*started {
        let thread = thread::Builder::new().name("mpi-watchdog".to_owned());
        thread.spawn(|| look(&FLIGHTS)).map_err(|error| {
            let text = "no thread to watch operations from".to_owned();
            Error::new(ErrorKind::System(text))
                .on_backend(BACKEND)
                .caused_by(error)
        })?;
        *started = true;
    }
    Ok(())
}

fn look(flights: &Watched) {
    loop {
        thread::sleep(LOOK);
        let mut flights = flights.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|(flight, _)| flight.strong_count() > 0);
        for (flight, broken_since) in flights.iter_mut() {
            if let Some(flight) = flight.upgrade()
                && let Some(why) = flight.verdict(broken_since)
            {
                exit::abort_job(&why, exit::FAILED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collectives_core::collective::OpKind;

    #[test]
    fn operations_are_named_as_elsewhere() {
        for kind in [OpKind::AllReduce, OpKind::Send, OpKind::Barrier] {
            assert_eq!(name(1 + kind as u64), kind.name());
        }
        assert_eq!(name(0), "a group");
        assert_eq!(name(99), "an operation");
    }
}
