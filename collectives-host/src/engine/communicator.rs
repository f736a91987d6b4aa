//! The communicator over a transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use collectives_core::addr::{Addr, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::bootstrap::{Bootstrap, DEFAULT_DEADLINE};
use collectives_core::collective::Collective;
use collectives_core::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, Misuse, Result};
use collectives_core::memory::Memory;
use collectives_core::path::PathTable;
use collectives_core::rank::CommId;
use collectives_core::split;
use collectives_core::submission::Submission;
use collectives_core::symmetric::SymmetricMemory;

use super::direct;
use super::endpoint::{Endpoint, EngineAbort, Presence};
use super::health::Health;
use super::neighbours::Neighbours;
use super::node::EngineNode;
use super::transport::{Ranks, Transport};
use crate::device::HostDevice;
use crate::messages::check_self_messages;
use crate::node::Calls;
use crate::queue::{Queue, Turn, take_turn};
use crate::tickets::Ticket;
use crate::windows::Windows;

/// One rank's end of a communicator over a [`Transport`].
///
/// # Windows
///
/// All-reduce, reduce-scatter and all-gather whose sides lie in windows, as the path table says, need
/// no copy between processes: every rank folds or copies its share from and to its peers' memory, and
/// the transport only lets them meet before and after.
///
/// # Dropping it
///
/// A drop without [`Communicator::shutdown`], by a panic for example, makes no collective call, but
/// counts as this rank's failure, because the others may be waiting for it.
#[derive(Debug)]
pub struct Engine<T: Transport> {
    info: CommInfo,
    capabilities: Capabilities,
    device: Arc<dyn Device>,
    host: Arc<HostDevice>,
    presence: Arc<Presence<T>>,
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

impl<T: Transport> Engine<T> {
    /// Joins the ranks of `bootstrap`; collective.
    ///
    /// # Errors
    ///
    /// [`Timeout`](collectives_core::error::ErrorKind::Timeout) and
    /// [`PeerFailed`](collectives_core::error::ErrorKind::PeerFailed), as for every exchange, and
    /// those of [`Transport::join`].
    pub fn connect(bootstrap: Arc<dyn Bootstrap>, device: Arc<HostDevice>) -> Result<Self> {
        Self::connect_within(bootstrap, device, DEFAULT_DEADLINE)
    }

    /// As [`Engine::connect`], with a deadline for joining and for all later calls.
    ///
    /// # Errors
    ///
    /// As for [`Engine::connect`].
    pub fn connect_within(
        bootstrap: Arc<dyn Bootstrap>,
        device: Arc<HostDevice>,
        deadline: Duration,
    ) -> Result<Self> {
        let health = Arc::new(Health::new(Arc::clone(&bootstrap), T::BACKEND));
        let share = device.model().shared_memory();
        let joined = Neighbours::meet(&*bootstrap, share, deadline).and_then(|neighbours| {
            let ranks = Ranks {
                bootstrap: Arc::clone(&bootstrap),
                health: Arc::clone(&health),
                neighbours: Arc::new(neighbours),
            };
            let transport = T::join(&ranks, deadline)?;
            Ok((ranks.neighbours, transport))
        });
        let (neighbours, transport) =
            joined.map_err(|error| health.named(error.during("connect")))?;
        let endpoint = Endpoint::new(
            transport,
            health,
            Arc::clone(&bootstrap),
            neighbours,
            Arc::clone(&device),
        );
        endpoint.set_deadline(deadline);
        let endpoint = Arc::new(endpoint);
        let liveness = Liveness(Arc::new(AtomicBool::new(true)));
        let alive = Arc::clone(&liveness.0);
        let token = Memory::token(device.id(), move || alive.store(false, Ordering::Release));
        let info = CommInfo {
            id: CommId::fresh(),
            rank: bootstrap.rank(),
            world_size: bootstrap.world_size(),
            backend: T::BACKEND,
            granule: device.model().granule(),
            overhead: device.model().overhead(),
            token,
        };
        let seat = Arc::<Endpoint<T>>::clone(&endpoint);
        Ok(Self {
            capabilities: capabilities(&endpoint),
            windows: Windows::new(info.id, seat, Arc::clone(&device)),
            presence: Arc::new(Presence::new(endpoint)),
            device: Arc::clone(&device) as Arc<dyn Device>,
            host: device,
            info,
            splits: 0,
            liveness,
        })
    }

    /// How long an operation, or an exchange without a deadline of its own, waits for absent ranks;
    /// 300 seconds unless set.
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

    /// How bytes travel.
    #[must_use]
    pub fn transport(&self) -> &T {
        &self.endpoint().transport
    }

    fn endpoint(&self) -> &Arc<Endpoint<T>> {
        &self.presence.0
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
        let windows = self.windows.of(calls)?;
        match take_turn(queue)? {
            Turn::Inline(_turn) => {
                let endpoint: &Endpoint<T> = self.endpoint();
                if endpoint.needs_tickets() {
                    // SAFETY: By the caller.
                    unsafe { endpoint.run(&Ticket::take(endpoint), calls, &windows) }
                } else {
                    // SAFETY: By the caller; all operations so far ran inside a call like this.
                    unsafe { endpoint.run_in_turn(calls, &windows) }
                }
            }
            Turn::Queued(turn) => {
                self.endpoint().tickets().need();
                let calls = Calls::new(calls);
                let ticket = Ticket::take(Arc::clone(&self.presence));
                turn.push(Box::new(move || {
                    calls.with(|calls| {
                        let endpoint = &ticket.owner().0;
                        // SAFETY: By the caller.
                        unsafe { endpoint.run(&ticket, calls, &windows) }
                    })
                }));
                Ok(())
            }
            Turn::Captured(turn) => {
                self.endpoint().tickets().need();
                turn.retain(self.info.token.clone());
                turn.push(Arc::new(EngineNode {
                    presence: Arc::downgrade(&self.presence),
                    calls: Calls::new(calls),
                    windows,
                }));
                Ok(())
            }
        }
    }
}

/// What the transport says, and windows where the ranks can have them.
fn capabilities<T: Transport>(endpoint: &Endpoint<T>) -> Capabilities {
    let symmetric = endpoint.neighbours.check();
    Capabilities {
        paths: match symmetric {
            Ok(()) => direct::paths(),
            Err(_) => PathTable::default(),
        },
        symmetric,
        ..endpoint.transport.capabilities()
    }
}

impl<T: Transport> Communicator for Engine<T> {
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
        let endpoint: &Endpoint<T> = self.endpoint();
        endpoint.check_open()?;
        let calls = submission.calls;
        self.check(calls)
            .map_err(|error| endpoint.health.named(error))?;
        let queue = self.host.queue(submission.stream)?;
        endpoint.count(calls);
        if submission.capture.is_some() && !calls.is_empty() {
            // Before the first copy, and without the turn, so that nobody who looks at the stream waits
            // for a peer.
            endpoint.tickets().need();
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
            .map_err(|error| self.endpoint().health.named(error.during("agree")))
    }

    fn window_of(&self, addr: Addr, bytes: usize) -> Option<WindowSlice> {
        self.windows.containing(addr, bytes)
    }

    fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory> {
        self.capabilities
            .symmetric
            .is_ok()
            .then_some(&mut self.windows as _)
    }

    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Communicator>>> {
        let deadline = self.endpoint().deadline();
        let records = self
            .windows
            .exchange("split", &split::record(color, key), deadline)
            .map_err(|error| self.endpoint().health.named(error.during("split")))?;
        self.splits += 1;
        let Some(color) = color else { return Ok(None) };
        let members = split::members(&records, color);
        let name = format!("{}/split/{}/{color}", T::BACKEND, self.splits);
        let bootstrap = self.endpoint().bootstrap.subgroup(&name, &members)?;
        let child = Self::connect_within(bootstrap, Arc::clone(&self.host), deadline)?;
        Ok(Some(Box::new(child)))
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(Arc::new(EngineAbort(Arc::clone(self.endpoint()))))
    }

    /// It waits for operations that this rank enqueued, within the deadline, and for no peer.
    fn shutdown(&mut self) -> Result<Deferred> {
        let endpoint = Arc::clone(self.endpoint());
        let begun = Instant::now();
        let deadline = endpoint.deadline();
        let give_up = || endpoint.health.is_broken() || begun.elapsed() >= deadline;
        let finished = endpoint.is_closed() || endpoint.tickets().finish(give_up);
        if !endpoint.close() {
            return Ok(Deferred::default());
        }
        endpoint.transport.close();
        let held = self.windows.clear();
        let deferred = Deferred {
            windows: held.len(),
            mapped_bytes: held.iter().map(|&bytes| self.info.mapped(bytes)).sum(),
            communicator: !self.info.token.is_sole_owner(),
        };
        if finished || endpoint.health.is_broken() {
            Ok(deferred)
        } else {
            let what = "operations were still enqueued when the deadline of the shutdown passed";
            Err(endpoint.health.named(Misuse::Other(what.to_owned()).into()))
        }
    }
}
