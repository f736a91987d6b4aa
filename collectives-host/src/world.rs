//! A world of ranks that are threads of this process.

use std::fmt;
use std::panic;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use collectives_core::bootstrap::{Bootstrap, DEFAULT_DEADLINE};
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::in_process::InProcess;
use collectives_core::rank::Rank;

use crate::communicator::HostCommunicator;
use crate::device::HostDevice;
use crate::model::DeviceModel;

/// Starts worlds of ranks: each a thread with a device and a communicator of its own.
///
/// ```
/// use collectives_core::communicator::Communicator;
/// use collectives_host::world::HostWorld;
///
/// let ranks = HostWorld::new(4).run(|comm| comm.info().rank.0);
/// assert_eq!(ranks, [0, 1, 2, 3]);
/// ```
pub struct HostWorld {
    world_size: usize,
    deadline: Duration,
    model: Box<dyn Fn(Rank) -> DeviceModel + Sync>,
}

impl HostWorld {
    /// A world of this many ranks, on friendly devices.
    #[must_use]
    pub fn new(world_size: usize) -> Self {
        Self {
            world_size,
            deadline: DEFAULT_DEADLINE,
            model: Box::new(|_| DeviceModel::new()),
        }
    }

    /// How each rank's device behaves. The model's rank is set to the rank.
    #[must_use]
    pub fn model(mut self, model: impl Fn(Rank) -> DeviceModel + Sync + 'static) -> Self {
        self.model = Box::new(model);
        self
    }

    /// How long ranks wait for absent ones, while they connect and later.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Runs `body` on every rank, each a thread, and gives the results in rank order.
    ///
    /// # Panics
    ///
    /// When a rank panics, after all ranks have ended, with the panic of the lowest one that did;
    /// the others get errors and not a hang. When the communicator cannot be made.
    pub fn run<R: Send>(&self, body: impl Fn(HostCommunicator) -> R + Sync) -> Vec<R> {
        let ends = InProcess::world(self.world_size);
        let rank = |end| match self.connect_one(end) {
            Ok(communicator) => body(communicator),
            Err(error) => panic!("a rank could not connect: {error}"),
        };
        let results: Vec<thread::Result<R>> = thread::scope(|scope| {
            let start = |end| start(scope, end, &rank);
            let started: Vec<_> = ends.into_iter().map(start).collect();
            let end = |started: Result<thread::ScopedJoinHandle<'_, R>>| match started {
                Ok(rank) => rank.join(),
                Err(error) => Err(Box::new(error.to_string()) as Box<_>),
            };
            started.into_iter().map(end).collect()
        });
        let unwrap =
            |result: thread::Result<R>| result.unwrap_or_else(|panic| panic::resume_unwind(panic));
        results.into_iter().map(unwrap).collect()
    }

    /// The communicators of all ranks, in rank order, for who starts threads differently. Each rank
    /// must be used from a thread of its own, because collectives wait for each other.
    ///
    /// # Errors
    ///
    /// When a device or the communicator cannot be made.
    pub fn connect(&self) -> Result<Vec<HostCommunicator>> {
        let ends = InProcess::world(self.world_size);
        let connect = |end| self.connect_one(end);
        thread::scope(|scope| {
            let start = |end| start(scope, end, &connect);
            let started: Vec<_> = ends.into_iter().map(start).collect();
            let join = |started: Result<thread::ScopedJoinHandle<'_, _>>| {
                let ended = started?.join();
                ended.unwrap_or_else(|panic| panic::resume_unwind(panic))
            };
            started.into_iter().map(join).collect()
        })
    }

    fn connect_one(&self, end: Arc<InProcess>) -> Result<HostCommunicator> {
        let rank = end.rank();
        // A rank that panics or fails here must not leave the others waiting.
        let device = HostDevice::new((self.model)(rank).with_rank(rank))
            .inspect_err(|error| end.publish_failure(&error.to_string()))?;
        HostCommunicator::connect_within(end, device, self.deadline)
    }
}

/// Starts a rank. One for which there is no thread has failed, so that those that run do not wait for
/// it.
fn start<'scope, R: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    end: InProcess,
    body: &'scope (impl Fn(Arc<InProcess>) -> R + Sync),
) -> Result<thread::ScopedJoinHandle<'scope, R>> {
    let end = Arc::new(end);
    let own = Arc::clone(&end);
    thread::Builder::new()
        .name(format!("rank-{}", end.rank()))
        .spawn_scoped(scope, move || body(own))
        .map_err(|error| {
            let text = format!("there is no thread for the rank: {error}");
            end.publish_failure(&text);
            let error = Error::new(ErrorKind::System(text)).caused_by(error);
            error.on_backend("host").on_rank(end.rank())
        })
}

impl fmt::Debug for HostWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostWorld")
            .field("world_size", &self.world_size)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
