//! The communicator whose ranks are threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use collectives_core::addr::{Addr, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::bootstrap::{Bootstrap, DEFAULT_DEADLINE};
use collectives_core::collective::Collective;
use collectives_core::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, Misuse, Result};
use collectives_core::memory::Memory;
use collectives_core::rank::CommId;
use collectives_core::split;
use collectives_core::submission::Submission;
use collectives_core::symmetric::SymmetricMemory;

use crate::capabilities;
use crate::device::HostDevice;
use crate::endpoint::{BACKEND, Endpoint};
use crate::messages::check_self_messages;
use crate::node::{Calls, CollectiveNode};
use crate::presence::{HostAbort, Presence};
use crate::queue::{Queue, Turn, take_turn};
use crate::registry;
use crate::tickets::Ticket;
use crate::windows::Windows;

/// One rank's end of a communicator of this backend.
///
/// Every operation is one meeting of all ranks, on the host, that compares what each rank asked for:
/// ranks that disagree, that come late or never get the same typed error. One that is captured is
/// a meeting too, in which nothing moves. See [`Communicator`].
///
/// # Dropping it
///
/// A drop without [`Communicator::shutdown`], by a panic for example, makes no collective call, but
/// counts as this rank's failure, because the others may be waiting for it: their blocked and later
/// calls fail with [`PeerFailed`](collectives_core::error::ErrorKind::PeerFailed). Operations that
/// this rank enqueued before run first.
#[derive(Debug)]
pub struct HostCommunicator {
    info: CommInfo,
    capabilities: Capabilities,
    device: Arc<dyn Device>,
    host: Arc<HostDevice>,
    presence: Arc<Presence>,
    windows: Windows,
    splits: u64,
    liveness: Liveness,
}

/// Tells whether a rank's end of a communicator still exists, which graphs that captured a
/// collective prolong.
#[derive(Clone, Debug)]
pub struct Liveness(Arc<AtomicBool>);

impl Liveness {
    /// Whether anybody still owns the communicator.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

static LIVE: AtomicUsize = AtomicUsize::new(0);

impl HostCommunicator {
    /// Joins the ranks of `bootstrap`, all of them threads of this process; collective.
    ///
    /// # Errors
    ///
    /// [`Timeout`](collectives_core::error::ErrorKind::Timeout) and
    /// [`PeerFailed`](collectives_core::error::ErrorKind::PeerFailed), as for every exchange, and
    /// [`Unsupported`](collectives_core::error::ErrorKind::Unsupported) when ranks are in different
    /// processes; the same on all ranks.
    pub fn connect(bootstrap: Arc<dyn Bootstrap>, device: Arc<HostDevice>) -> Result<Self> {
        Self::connect_within(bootstrap, device, DEFAULT_DEADLINE)
    }

    /// As [`HostCommunicator::connect`], with a deadline for joining and for all later calls.
    ///
    /// # Errors
    ///
    /// As for [`HostCommunicator::connect`].
    pub fn connect_within(
        bootstrap: Arc<dyn Bootstrap>,
        device: Arc<HostDevice>,
        deadline: Duration,
    ) -> Result<Self> {
        let fabric = registry::meet(&*bootstrap, deadline).map_err(|error| {
            error
                .during("connect")
                .on_backend(BACKEND)
                .on_rank(bootstrap.rank())
        })?;
        let (rank, world_size) = (bootstrap.rank(), bootstrap.world_size());
        let endpoint = Arc::new(Endpoint::new(fabric, bootstrap, device.model().clone()));
        endpoint.set_deadline(deadline);
        let liveness = Liveness(Arc::new(AtomicBool::new(true)));
        let alive = Arc::clone(&liveness.0);
        LIVE.fetch_add(1, Ordering::AcqRel);
        let token = Memory::token(device.id(), move || {
            alive.store(false, Ordering::Release);
            LIVE.fetch_sub(1, Ordering::AcqRel);
        });
        let info = CommInfo {
            id: CommId::fresh(),
            rank,
            world_size,
            backend: BACKEND,
            granule: device.model().granule(),
            overhead: device.model().overhead(),
            token,
        };
        Ok(Self {
            capabilities: capabilities::of_host(),
            windows: Windows::new(
                info.id,
                Arc::<Endpoint>::clone(&endpoint),
                Arc::clone(&device),
            ),
            presence: Arc::new(Presence::new(endpoint)),
            device: Arc::clone(&device) as Arc<dyn Device>,
            host: device,
            info,
            splits: 0,
            liveness,
        })
    }

    /// How long an operation, or an exchange without a deadline of its own, waits for absent ranks;
    /// 300 seconds unless set. Operations that wait already keep theirs.
    pub fn set_deadline(&self, deadline: Duration) {
        self.endpoint().set_deadline(deadline);
    }

    /// The device, as what it is.
    #[must_use]
    pub fn host_device(&self) -> &Arc<HostDevice> {
        &self.host
    }

    /// Tells later whether this communicator still exists.
    #[must_use]
    pub fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }

    /// Ends of communicators of this backend that exist in this process.
    #[must_use]
    pub fn live_count() -> usize {
        LIVE.load(Ordering::Acquire)
    }

    /// Windows registered now.
    #[must_use]
    pub fn window_count(&self) -> usize {
        self.windows.count()
    }

    fn endpoint(&self) -> &Arc<Endpoint> {
        self.presence.endpoint()
    }

    /// Everything that this rank alone can find before anything is enqueued.
    #[inline]
    fn check(&self, calls: &[Collective<'_>]) -> Result<()> {
        let mut messages = false;
        for call in calls {
            self.windows.check("send", call.send)?;
            self.windows.check("recv", call.recv)?;
            messages |= call.kind().is_point_to_point();
        }
        if messages {
            check_self_messages(calls, self.info.rank)?;
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`Communicator::enqueue`]; the calls were checked, and there is at least one. What is
    /// captured was compared.
    unsafe fn enqueue_calls(&self, calls: &[Collective<'_>], queue: &Arc<Queue>) -> Result<()> {
        let endpoint: &Endpoint = self.endpoint();
        let is_plain = !endpoint.tickets().are_needed();
        let post = is_plain.then(|| endpoint.prepare(calls)).flatten();
        match take_turn(queue)? {
            Turn::Inline(_turn) => {
                if is_plain {
                    // SAFETY: By the caller; all operations so far ran inside a call like this.
                    unsafe { endpoint.run_in_turn(calls, post.as_ref()) }
                } else {
                    endpoint.count(calls);
                    // SAFETY: By the caller.
                    unsafe { endpoint.run(&Ticket::take(endpoint), calls) }
                }
            }
            Turn::Queued(turn) => {
                self.endpoint().need_tickets();
                self.endpoint().count(calls);
                let calls = Calls::new(calls);
                let ticket = Ticket::take(Arc::clone(&self.presence));
                // SAFETY: By the caller.
                turn.push(Box::new(move || unsafe { calls.run(&ticket) }));
                Ok(())
            }
            Turn::Captured(turn) => {
                self.endpoint().need_tickets();
                turn.retain(self.info.token.clone());
                turn.push(Arc::new(CollectiveNode {
                    presence: Arc::downgrade(&self.presence),
                    calls: Calls::new(calls),
                    windows: self.windows.of(calls)?,
                }));
                Ok(())
            }
        }
    }
}

impl Communicator for HostCommunicator {
    fn info(&self) -> &CommInfo {
        &self.info
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    unsafe fn enqueue(&mut self, submission: &Submission<'_>) -> Result<()> {
        let endpoint: &Endpoint = self.endpoint();
        endpoint.check_open()?;
        let calls = submission.calls;
        self.check(calls).map_err(|error| endpoint.named(error))?;
        let queue = self.host.queue(submission.stream)?;
        if submission.capture.is_some() && !calls.is_empty() {
            // Before the first copy, and without the turn, so that nobody who looks at the stream waits
            // for a peer.
            endpoint.need_tickets();
            endpoint.count(calls);
            endpoint.compare_captured(&Ticket::take(endpoint), calls)?;
        }
        // Calls without elements meet too: a rank that has none where others have some must not be the
        // only one to succeed.
        let enqueue = || {
            // SAFETY: By the caller ("The operands"); the calls were checked above.
            unsafe { self.enqueue_calls(calls, queue) }
        };
        // SAFETY: By the caller ("The copies").
        unsafe { submission.copy_around(&*self.device, enqueue) }
    }

    fn refused(&mut self, _calls: &[Collective<'_>], error: Error) -> Error {
        error
    }

    fn agree(&mut self, mine: &Record, deadline: Duration) -> Result<Vec<Record>> {
        self.windows
            .exchange("agree", mine, deadline)
            .map_err(|error| self.endpoint().named(error.during("agree")))
    }

    fn window_of(&self, addr: Addr, bytes: usize) -> Option<WindowSlice> {
        self.windows.containing(addr, bytes)
    }

    fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory> {
        Some(&mut self.windows)
    }

    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Communicator>>> {
        let deadline = self.endpoint().deadline();
        let records = self
            .windows
            .exchange("split", &split::record(color, key), deadline)
            .map_err(|error| self.endpoint().named(error.during("split")))?;
        self.splits += 1;
        let Some(color) = color else { return Ok(None) };
        let members = split::members(&records, color);
        let name = format!("host/split/{}/{color}", self.splits);
        let bootstrap = self.endpoint().bootstrap.subgroup(&name, &members)?;
        let child = Self::connect_within(bootstrap, Arc::clone(&self.host), deadline)?;
        Ok(Some(Box::new(child)))
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(Arc::new(HostAbort(Arc::clone(self.endpoint()))))
    }

    /// It waits for operations that this rank enqueued, within the deadline, and for no peer: one
    /// that still waits for this rank in an operation gets
    /// [`PeerFailed`](collectives_core::error::ErrorKind::PeerFailed).
    fn shutdown(&mut self) -> Result<Deferred> {
        let endpoint = Arc::clone(self.endpoint());
        let begun = Instant::now();
        let give_up = || endpoint.fabric.is_broken() || begun.elapsed() >= endpoint.deadline();
        let finished = endpoint.tickets().finish(give_up);
        if !endpoint.close() {
            return Ok(Deferred::default());
        }
        endpoint.leave_for_good();
        let held = self.windows.clear();
        let deferred = Deferred {
            windows: held.len(),
            mapped_bytes: held.iter().map(|&bytes| self.info.mapped(bytes)).sum(),
            communicator: !self.info.token.is_sole_owner(),
        };
        if finished || endpoint.fabric.is_broken() {
            Ok(deferred)
        } else {
            let what = "operations were still enqueued when the deadline of the shutdown passed";
            Err(endpoint.named(Misuse::Other(what.to_owned()).into()))
        }
    }
}
