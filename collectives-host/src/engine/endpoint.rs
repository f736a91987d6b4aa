//! One rank's engine: runs its operations in order, whichever stream they are on.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use collectives_core::addr::Addr;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::collective::Collective;
use collectives_core::communicator::Abort;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::memory::Memory;
use collectives_core::rank::{Process, Rank};

use super::direct::Direct;
use super::fold::FoldScratch;
use super::health::Health;
use super::neighbours::{self, Neighbours};
use super::transport::Transport;
use crate::course::{self, Course, Milestone};
use crate::device::HostDevice;
use crate::fabric::lock;
use crate::file;
use crate::presence::cause_of_drop;
use crate::seat::{Reach, Seat};
use crate::tickets::{Ticket, Tickets};
use crate::verdict::Outcome;
use crate::windows::Window;

/// One rank of one communicator, shared by its handle, by queued operations and by graphs.
pub(super) struct Endpoint<T> {
    pub(super) transport: T,
    pub(super) health: Arc<Health>,
    pub(super) bootstrap: Arc<dyn Bootstrap>,
    pub(super) neighbours: Arc<Neighbours>,
    pub(super) device: Arc<HostDevice>,
    rank: Rank,
    tickets: Arc<Tickets>,
    closed: AtomicBool,
    deadline: AtomicU64,
    scratch: Mutex<FoldScratch>,
    course: Course,
}

impl<T> AsRef<Tickets> for &Endpoint<T> {
    fn as_ref(&self) -> &Tickets {
        &self.tickets
    }
}

/// The order of all operations of the process, for transports that want one.
fn one_order() -> Arc<Tickets> {
    static ORDER: OnceLock<Arc<Tickets>> = OnceLock::new();
    Arc::clone(ORDER.get_or_init(|| Arc::new(Tickets::new())))
}

impl<T: Transport> Endpoint<T> {
    pub(super) fn new(
        transport: T,
        health: Arc<Health>,
        bootstrap: Arc<dyn Bootstrap>,
        neighbours: Arc<Neighbours>,
        device: Arc<HostDevice>,
    ) -> Self {
        let tickets = if transport.is_serial() {
            one_order()
        } else {
            Arc::new(Tickets::new())
        };
        Self {
            transport,
            health,
            rank: bootstrap.rank(),
            bootstrap,
            neighbours,
            device,
            tickets,
            closed: AtomicBool::new(false),
            deadline: AtomicU64::new(0),
            scratch: Mutex::new(FoldScratch::default()),
            course: Course::default(),
        }
    }

    /// Counts a call, or a launch of a recorded one.
    #[inline]
    pub(super) fn count(&self, calls: &[Collective<'_>]) {
        if course::meets(calls) {
            self.course.call();
        }
    }

    pub(super) fn tickets(&self) -> &Tickets {
        &self.tickets
    }

    /// Whether an operation needs a ticket. Only for the enqueueing call.
    pub(super) fn needs_tickets(&self) -> bool {
        self.transport.is_serial() || self.tickets.are_needed()
    }

    pub(super) fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Relaxed))
    }

    pub(super) fn set_deadline(&self, deadline: Duration) {
        let nanos = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.deadline.store(nanos, Ordering::Relaxed);
    }

    /// Whether this call closed it.
    pub(super) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Checks that the communicator is neither closed nor broken.
    #[inline]
    pub(super) fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            return Err(self.health.named(Error::new(ErrorKind::Closed)));
        }
        self.health.failure().map_or(Ok(()), Err)
    }

    /// Fails the communicator on all ranks.
    pub(super) fn fail(&self, cause: &str, aborted: bool) {
        self.health.fail(cause, aborted);
        self.transport.interrupt();
    }

    /// Runs operations when the ticket's turn comes.
    ///
    /// # Safety
    ///
    /// As for [`Transport::run`].
    pub(super) unsafe fn run<O: AsRef<Tickets>>(
        &self,
        ticket: &Ticket<O>,
        calls: &[Collective<'_>],
        windows: &[Arc<Window>],
    ) -> Result<()> {
        let _turn = ticket.turn(|| self.health.is_broken().then(|| self.broken()))?;
        // SAFETY: By the caller.
        unsafe { self.run_in_turn(calls, windows) }
    }

    /// Runs operations now.
    ///
    /// # Safety
    ///
    /// As for [`Transport::run`], and nothing else of this rank runs.
    pub(super) unsafe fn run_in_turn(
        &self,
        calls: &[Collective<'_>],
        windows: &[Arc<Window>],
    ) -> Result<()> {
        if self.health.is_broken() {
            return Err(self.broken());
        }
        // SAFETY: By the caller.
        let done = unsafe { self.run_now(calls, windows) };
        done.map_err(|error| self.failed(error, calls))
    }

    /// # Safety
    ///
    /// As for [`Transport::run`], and it is these calls' turn.
    unsafe fn run_now(&self, calls: &[Collective<'_>], windows: &[Arc<Window>]) -> Result<()> {
        let deadline = self.deadline();
        if windows.is_empty() {
            // SAFETY: By the caller.
            return unsafe { self.transport.run(calls, deadline) };
        }
        let window = |id| windows.iter().find(|window| window.id == id).map(|w| &**w);
        let ranks = self.bootstrap.world_size();
        let direct = |call| Direct::of(call, self.rank, ranks, window);
        if calls.iter().all(|call| direct(call).is_none()) {
            // SAFETY: By the caller.
            return unsafe { self.transport.run(calls, deadline) };
        }
        let mut scratch = lock(&self.scratch);
        for call in calls.iter().filter(|call| direct(call).is_some()) {
            let Some(direct) = direct(call) else { continue };
            // SAFETY: By the caller, it is these calls' turn.
            unsafe { self.transport.meet(call, deadline) }?;
            // SAFETY: All ranks have met over the same operation, and nobody leaves before the end.
            let moved = unsafe { direct.run(&mut scratch) };
            // SAFETY: By the caller, it is these calls' turn.
            unsafe { self.transport.meet(call, deadline) }?;
            moved?;
        }
        let others = calls.iter().filter(|call| direct(call).is_none());
        let others: Vec<_> = others.copied().collect();
        if others.is_empty() {
            return Ok(());
        }
        // SAFETY: By the caller.
        unsafe { self.transport.run(&others, deadline) }
    }

    /// Compares operations that are being captured.
    pub(super) fn compare_captured<O: AsRef<Tickets>>(
        &self,
        ticket: &Ticket<O>,
        calls: &[Collective<'_>],
    ) -> Result<()> {
        let broken = || self.health.is_broken().then(|| self.broken());
        let _turn = ticket.turn(broken)?;
        if let Some(error) = broken() {
            return Err(error);
        }
        // SAFETY: The turn is this operation's alone.
        unsafe { self.transport.compare(calls, self.deadline()) }
            .map_err(|error| self.failed(error, calls))
    }

    fn broken(&self) -> Error {
        let lost = || Error::new(ErrorKind::System("the first failure is lost".to_owned()));
        self.health
            .failure()
            .unwrap_or_else(|| self.health.named(lost()))
    }

    #[cold]
    fn failed(&self, error: Error, calls: &[Collective<'_>]) -> Error {
        let operation = match calls {
            [call] => call.kind().name(),
            _ => "group",
        };
        self.course.note(&error);
        let error = self.health.named(error.during(operation));
        if error.poisons() && !self.health.is_broken() {
            self.fail(&error.to_string(), false);
        }
        error
    }
}

impl<T: Transport> Seat for Endpoint<T> {
    fn check_open(&self) -> Result<()> {
        self.check_open()
    }

    fn deadline(&self) -> Duration {
        self.deadline()
    }

    fn named(&self, error: Error) -> Error {
        self.health.named(error)
    }

    fn bootstrap(&self) -> &dyn Bootstrap {
        &*self.bootstrap
    }

    fn milestone(&self) -> Milestone {
        self.course.at(self.course.operations())
    }

    fn settle(&self, there: Milestone) {
        self.course.settle(there);
    }

    fn enter_round(&self, rounds: u64, call: &str) -> Result<()> {
        self.transport
            .enter_round(rounds, self.tickets.is_idle(), call)
    }

    fn leave_round(&self, rounds: u64) {
        self.transport.leave_round(rounds);
    }

    fn round_failed(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Mismatch { .. } if error.poisons() => {
                self.health.publish(&error);
                self.transport.interrupt();
            }
            ErrorKind::PeerFailed { .. } => {}
            _ => return error,
        }
        self.health.failure().unwrap_or(error)
    }

    fn place_of(&self, memory: &Memory) -> Option<Vec<u8>> {
        let pieces = self.device.shared_pieces(memory);
        (!pieces.is_empty()).then(|| neighbours::encode(&pieces))
    }

    fn reach(&self, memory: &Memory, places: &[Vec<u8>]) -> Result<(Box<[Addr]>, Reach), Outcome> {
        match self
            .neighbours
            .map_all(memory.addr(), memory.bytes(), places)
        {
            Ok((peers, mappings)) => Ok((peers, Reach::new(mappings))),
            Err(error) => {
                tracing::warn!(%error, rank = self.rank.0, "the memory of a peer cannot be mapped");
                Err(match file::is_shortage(&error) {
                    true => Outcome::Shortage,
                    false => Outcome::Unreachable,
                })
            }
        }
    }

    fn may_not_reach(&self) -> bool {
        true
    }
}

impl<T: fmt::Debug> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("rank", &self.rank)
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

/// What an abort handle reaches.
#[derive(Debug)]
pub(super) struct EngineAbort<T>(pub(super) Arc<Endpoint<T>>);

impl<T: Transport> Abort for EngineAbort<T> {
    fn abort(&self, cause: &str) {
        self.0.fail(cause, true);
    }

    fn health(&self) -> Result<()> {
        self.0.check_open()
    }
}

/// Held by the communicator and by work that is enqueued or being launched, not by graphs; when the
/// last one goes without a shutdown, that is this rank's failure.
#[derive(Debug)]
pub(super) struct Presence<T: Transport>(pub(super) Arc<Endpoint<T>>, Process);

impl<T: Transport> Presence<T> {
    pub(super) fn new(endpoint: Arc<Endpoint<T>>) -> Self {
        Self(endpoint, Process::this())
    }
}

impl<T: Transport> AsRef<Tickets> for Arc<Presence<T>> {
    fn as_ref(&self) -> &Tickets {
        self.0.tickets()
    }
}

impl<T: Transport> Drop for Presence<T> {
    fn drop(&mut self) {
        if !self.1.is_this() {
            return;
        }
        if self.0.close() && self.0.bootstrap.world_size() > 1 {
            self.0.fail(cause_of_drop(), false);
        }
    }
}
