//! What a case works with on one rank.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::Options;
use collectives_alloc::policy::Policy;
use collectives_alloc::pool::Pool;
use collectives_alloc::registry;
use collectives_core::addr::Operand;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::graph::{Capture, Executable, Graph, GraphExecutable};
use collectives_core::layered::Layered;
use collectives_core::memory::Memory;
use collectives_core::path::Staging;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Lease, Request, ScratchAllocator, Site};
use collectives_core::stream::Stream;

use crate::case::{Failure, Outcome};
use crate::harness::{Harness, Joined, Probe, Setup};
use crate::interpose::{Interposed, OnDevice};
use crate::planted::Planted;
use crate::planted::communicator::Bugged;
use crate::planted::device::BuggedDevice;
use crate::values::{self, Exact};
use crate::watchdog::Progress;
use crate::witness::{Witness, WitnessLayer};
use crate::{ensure, planted};

/// The handle of users, over whatever communicator and allocator the case asked for.
pub type Handle = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

/// One rank in one case.
///
/// Communicators are children of the world's own, so that every case has fresh ones. All of them are
/// on one device, whose calls the [`Witness`] sees.
pub struct Rig<'w> {
    pub(crate) harness: &'w Arc<dyn Harness>,
    pub(crate) setup: Setup,
    pub(crate) parent: &'w mut dyn Communicator,
    pub(crate) probe: &'w dyn Probe,
    pub(crate) bootstrap: &'w Arc<dyn Bootstrap>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) witness: Arc<Witness>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) stream: Stream,
    pub(crate) bug: Option<Planted>,
    pub(crate) rounds: &'w mut u64,
}

impl std::fmt::Debug for Rig<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rig")
            .field("setup", &self.setup)
            .field("bug", &self.bug)
            .finish_non_exhaustive()
    }
}

impl<'w> Rig<'w> {
    pub(crate) fn new(
        harness: &'w Arc<dyn Harness>,
        setup: Setup,
        joined: &'w mut Joined,
        bootstrap: &'w Arc<dyn Bootstrap>,
        progress: &Arc<Progress>,
        bug: Option<Planted>,
        rounds: &'w mut u64,
    ) -> Result<Self> {
        let witness = Witness::new(Arc::clone(progress));
        let inner = Arc::clone(joined.comm.device());
        let seen: Arc<dyn Device> =
            Arc::new(Interposed::new(inner, Arc::new(Arc::clone(&witness))));
        let device: Arc<dyn Device> = match bug {
            Some(bug) => Arc::new(Interposed::new(seen, Arc::new(BuggedDevice::new(bug)))),
            None => seen,
        };
        let stream = device.create_stream()?;
        Ok(Self {
            harness,
            setup,
            parent: &mut *joined.comm,
            probe: &*joined.probe,
            bootstrap,
            progress: Arc::clone(progress),
            witness,
            device,
            stream,
            bug,
            rounds,
        })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.bootstrap.rank().index()
    }

    /// Ranks in the world.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.bootstrap.world_size()
    }

    /// Bytes that symmetric memory is mapped in multiples of.
    #[must_use]
    pub fn granule(&self) -> usize {
        self.parent.info().granule
    }

    /// How long ranks wait for each other in this world.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.setup.deadline
    }

    /// The device all communicators of the case are on.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device)
    }

    /// The case's first stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// What reached the backend.
    #[must_use]
    pub fn witness(&self) -> &Witness {
        &self.witness
    }

    /// What only the backend can tell.
    #[must_use]
    pub fn probe(&self) -> &dyn Probe {
        self.probe
    }

    /// Whether this bug is planted.
    #[must_use]
    pub fn has(&self, bug: Planted) -> bool {
        self.bug == Some(bug)
    }

    /// A fresh communicator of all ranks; collective.
    ///
    /// # Errors
    ///
    /// As [`Communicator::split`].
    pub fn communicator(&mut self) -> Result<Box<dyn Communicator>> {
        let child = self.parent.split(Some(0), self.parent.info().rank.0)?;
        let Some(child) = child else {
            return Err(collectives_core::error::Misuse::Other(
                "a split with a color gave no communicator".to_owned(),
            )
            .into());
        };
        Ok(self.around(child))
    }

    /// A communicator of the backend as cases see it.
    pub(crate) fn around(&self, comm: Box<dyn Communicator>) -> Box<dyn Communicator> {
        self.progress.watch(comm.abort_handle());
        let layer = WitnessLayer(Arc::clone(&self.witness));
        Box::new(OnDevice {
            inner: Box::new(Layered::new(layer, comm)),
            device: Arc::clone(&self.device),
            bugged: Bugged::new(self.bug),
        })
    }

    /// The policy of this name, or what a planted bug makes of it.
    ///
    /// # Errors
    ///
    /// For a name that is not registered.
    pub fn policy(&self, config: &ScratchConfig) -> Result<Box<dyn Policy>> {
        let policy = registry::snapshot().build_policy(config)?;
        Ok(planted::policy::bugged(self.bug, self.rank(), policy))
    }

    /// The configuration in a TOML text.
    ///
    /// # Errors
    ///
    /// As [`ScratchConfig::from_toml`].
    pub fn config(&self, text: &str) -> Result<ScratchConfig> {
        planted::allocator::config(self.bug, text)
    }

    /// The options every case starts from: the world's deadline.
    #[must_use]
    pub fn options(&self) -> Options {
        let mut options = Options::default();
        options.agree_deadline = self.setup.deadline;
        options
    }

    /// A pool of a policy, or what a planted bug makes of it.
    ///
    /// # Errors
    ///
    /// For a name that is not registered.
    pub fn pool(&self, policy: &str, options: Options) -> Result<Box<dyn ScratchAllocator>> {
        self.pool_of(&ScratchConfig::with_policy(policy), options)
    }

    /// As [`Rig::pool`], from a whole configuration.
    ///
    /// # Errors
    ///
    /// As [`ScratchConfig::build`].
    pub fn pool_of(
        &self,
        config: &ScratchConfig,
        options: Options,
    ) -> Result<Box<dyn ScratchAllocator>> {
        let policy = self.policy(config)?;
        let options = planted::allocator::options(self.bug, options);
        let pool = Box::new(Pool::new(policy, options));
        Ok(planted::allocator::bugged(self.bug, self.rank(), pool))
    }

    /// A handle over a fresh communicator and a pool that always stages; collective.
    ///
    /// # Errors
    ///
    /// As [`Communicator::split`].
    pub fn collectives(&mut self, policy: &str) -> Result<Handle> {
        let options = self.options();
        self.collectives_with(policy, options)
    }

    /// As [`Rig::collectives`], with options.
    ///
    /// # Errors
    ///
    /// As [`Communicator::split`].
    pub fn collectives_with(&mut self, policy: &str, options: Options) -> Result<Handle> {
        let comm = self.communicator()?;
        let scratch = self.pool(policy, options)?;
        Ok(self.handle(comm, scratch))
    }

    /// A handle that stages whenever it can.
    #[must_use]
    pub fn handle(
        &self,
        comm: Box<dyn Communicator>,
        scratch: Box<dyn ScratchAllocator>,
    ) -> Handle {
        let mut collectives = Collectives::new(comm, scratch);
        collectives.set_staging(Staging::Forced);
        collectives.set_deadline(self.setup.deadline);
        collectives
    }

    /// A buffer with this rank's input of a round.
    ///
    /// # Errors
    ///
    /// As [`Buffer::from_slice`].
    pub fn tensor<T: Exact>(&self, count: usize, round: usize) -> Result<Buffer<T>> {
        let values = values::input(self.rank(), self.ranks(), count, round);
        Buffer::from_slice(&self.device, &values, &self.stream)
    }

    /// This rank's input of a round.
    #[must_use]
    pub fn input<T: Exact>(&self, count: usize, round: usize) -> Vec<T> {
        values::input(self.rank(), self.ranks(), count, round)
    }

    /// Fails unless every element is the sum of all ranks' inputs of a round.
    ///
    /// # Errors
    ///
    /// Naming the first element that is not.
    pub fn expect_sum<T: Exact>(
        &self,
        what: &str,
        tensor: &Buffer<T>,
        round: usize,
        stream: &Stream,
    ) -> Outcome {
        let expected = values::sum::<T>(self.ranks(), tensor.len(), round);
        self.expect_all(what, tensor, &expected, stream)
    }

    /// Fails unless every element is as expected.
    ///
    /// # Errors
    ///
    /// Naming the first element that is not.
    pub fn expect_all<T: Exact>(
        &self,
        what: &str,
        tensor: &Buffer<T>,
        expected: &[T],
        stream: &Stream,
    ) -> Outcome {
        let found = tensor.read(stream)?;
        let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
        ensure!(found.len() == expected.len(), "{what}: lengths differ");
        match wrong {
            None => Ok(()),
            Some(index) => Err(Failure(format!(
                "{what}: element {index} of {} is {:?} and should be {:?}",
                found.len(),
                found[index],
                expected[index]
            ))),
        }
    }

    /// One eager all-reduce of this many bytes, checked.
    ///
    /// # Errors
    ///
    /// Those of the call, and a wrong element.
    pub fn eager(&self, handle: &mut Handle, bytes: usize, stream: &Stream) -> Outcome {
        let count = bytes / 4;
        let mut tensor = self.tensor::<u32>(count, 7)?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
        self.expect_sum("an eager call", &tensor, 7, stream)
    }

    /// Captures on the case's first stream.
    ///
    /// # Errors
    ///
    /// Those of `body` and of the capture.
    pub fn capture<R>(
        &mut self,
        body: impl FnOnce(&Capture<'_>) -> Result<R>,
    ) -> Result<(Graph, R)> {
        let device = Arc::clone(&self.device);
        let capture = Capture::begin(&*device, &mut self.stream)?;
        let result = body(&capture)?;
        Ok((capture.end()?, result))
    }

    /// A graph of one staged all-reduce in place, its slot reserved before.
    ///
    /// # Errors
    ///
    /// Those of the calls.
    pub fn replay_of(&mut self, handle: &mut Handle, bytes: usize) -> Outcome<Replay> {
        let _plan = handle.reserve(&[Request::new(bytes)])?;
        let mut tensor = self.tensor::<u32>(bytes / 4, 0)?;
        let (graph, _) = self
            .capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
        Ok(Replay {
            tensor,
            executable: graph.instantiate()?,
        })
    }

    /// A capture that must fail, because a stream that joined it is not joined back; gives its error.
    ///
    /// # Errors
    ///
    /// Those of `body` and of the fork, and a capture that succeeds.
    pub fn failing_capture(&mut self, body: impl FnOnce(&Stream) -> Result<()>) -> Outcome<Error> {
        let device = Arc::clone(&self.device);
        let Some(graphs) = device.graphs() else {
            return Err(Failure("the device offers no graphs".to_owned()));
        };
        let lost = device.create_stream()?;
        let stream = &mut self.stream;
        // SAFETY: The stream is borrowed mutably, so nobody else is using it.
        unsafe { graphs.begin(stream) }?;
        // SAFETY: Nobody else knows the other stream.
        let forked = unsafe { graphs.fork(stream, &lost) };
        let done = body(stream);
        // SAFETY: As above.
        let ended = unsafe { graphs.end(stream) };
        forked?;
        done?;
        crate::case::refused("a capture with a lost branch", ended)
    }

    /// A graph of one staged all-reduce as a framework captures and launches it: through the
    /// device's own graphs, without this crate's order of launches.
    ///
    /// # Errors
    ///
    /// Those of the calls.
    pub fn framework_graph(&mut self, handle: &mut Handle, count: usize) -> Outcome<Framework> {
        let _plan = handle.reserve(&[Request::new(count * 4)])?;
        let mut tensor = self.tensor::<u32>(count, 0)?;
        let device = Arc::clone(&self.device);
        let Some(graphs) = device.graphs() else {
            return Err(Failure("the device offers no graphs".to_owned()));
        };
        let stream = &mut self.stream;
        // SAFETY: The stream is borrowed mutably, so nobody else is using it.
        unsafe { graphs.begin(stream) }?;
        let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, stream);
        // SAFETY: As above.
        let graph = unsafe { graphs.end(stream) }?;
        reduced?;
        Ok(Framework {
            tensor,
            executable: graph.instantiate()?,
        })
    }

    /// New inputs, one launch, every element compared.
    ///
    /// # Errors
    ///
    /// Those of the calls, and a wrong element.
    pub fn replay(&self, replay: &mut Replay, round: usize, stream: &Stream) -> Outcome {
        let input = self.input(replay.tensor.len(), round);
        replay.tensor.write(&input, stream)?;
        replay.executable.launch(&*self.device, stream)?;
        let what = format!("replay of {} elements, round {round}", replay.tensor.len());
        self.expect_sum(&what, &replay.tensor, round, stream)
    }

    /// Starts this rank once more, among these members, within a deadline.
    ///
    /// # Errors
    ///
    /// As [`Harness::join`].
    pub fn join(&self, name: &str, members: &[Rank], deadline: Duration) -> Result<Joined> {
        let bootstrap = self.bootstrap.subgroup(name, members)?;
        let setup = Setup {
            deadline,
            ..self.setup
        };
        let joined = self.harness.join(bootstrap, &setup);
        if self.has(Planted::JoinErrorUntyped) {
            let text = |error: Error| Error::new(ErrorKind::System(error.to_string()));
            return joined.map_err(text);
        }
        joined
    }

    /// A lease on the case's first stream.
    ///
    /// # Errors
    ///
    /// As [`ScratchAllocator::acquire`].
    pub fn lease(
        &self,
        comm: &mut dyn Communicator,
        scratch: &mut dyn ScratchAllocator,
        bytes: usize,
    ) -> Result<Lease> {
        let site = Site {
            stream: &self.stream,
            capture: None,
        };
        scratch.acquire(comm, Request::new(bytes), site)
    }

    /// A part of some memory, as memory of its own.
    ///
    /// # Errors
    ///
    /// When it leaves the memory.
    pub fn part(&self, memory: &Memory, offset: usize, bytes: usize) -> Result<Memory> {
        let within = Operand::new(memory.addr(), memory.bytes()).slice(offset, bytes)?;
        let whole = memory.clone();
        // SAFETY: The range lies in `whole`, which the hook keeps until it runs.
        Ok(unsafe { Memory::new(memory.device(), within.addr, bytes, move |_| drop(whole)) })
    }

    /// Ends an allocator and its communicator.
    ///
    /// # Errors
    ///
    /// Those of `close` and `shutdown`.
    pub fn close(
        &self,
        mut comm: Box<dyn Communicator>,
        mut scratch: Box<dyn ScratchAllocator>,
    ) -> Outcome {
        let _deferred = scratch.close(&mut *comm)?;
        let _deferred = comm.shutdown()?;
        Ok(())
    }

    /// Gives every rank the bytes of every rank, beside the backend.
    ///
    /// # Errors
    ///
    /// When a rank does not come.
    pub fn exchange(&mut self, mine: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        let round = format!("kit/{}", self.rounds);
        *self.rounds += 1;
        let deadline = self.setup.deadline * 3;
        Ok(self.bootstrap.all_gather(&round, mine, deadline)?)
    }

    /// Waits until every rank is here, beside the backend.
    ///
    /// # Errors
    ///
    /// When a rank does not come.
    pub fn meet(&mut self) -> Outcome {
        self.exchange(&[]).map(drop)
    }

    /// Fails unless every rank says the same.
    ///
    /// # Errors
    ///
    /// Naming a rank that does not.
    pub fn expect_alike(&mut self, what: &str, mine: &str) -> Outcome {
        let all = self.exchange(mine.as_bytes())?;
        let mine = mine.as_bytes();
        match all.iter().position(|theirs| theirs != mine) {
            None => Ok(()),
            Some(rank) => Err(Failure(format!(
                "{what} differs: here {:?}, on rank {rank} {:?}",
                String::from_utf8_lossy(mine),
                String::from_utf8_lossy(&all[rank])
            ))),
        }
    }

    /// Lets destructors finish and returns freed memory.
    pub fn settle(&self) {
        self.probe.settle();
        self.device.collect();
    }
}

/// A graph of one all-reduce in place.
#[derive(Debug)]
pub struct Replay {
    /// What it reduces.
    pub tensor: Buffer<u32>,
    /// The graph.
    pub executable: Executable,
}

/// A graph of one all-reduce in place, launched as a framework does.
#[derive(Debug)]
pub struct Framework {
    /// What it reduces.
    pub tensor: Buffer<u32>,
    executable: Box<dyn GraphExecutable>,
}

impl Framework {
    /// Writes the tensor on the stream that the graph is launched on.
    ///
    /// # Errors
    ///
    /// As [`Buffer::write`].
    pub fn write(&mut self, values: &[u32], stream: &Stream) -> Result<()> {
        self.tensor.write(values, stream)
    }

    /// Launches the graph, on the stream that its tensor is written and read on.
    ///
    /// # Errors
    ///
    /// As [`GraphExecutable::launch`].
    pub fn launch(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: A graph's tensor is used on one stream only, which cases keep to; its slot is
        // ordered by nodes of the graph, which is what they find out.
        unsafe { self.executable.launch(stream) }
    }
}

/// A short number for a value, to compare it across ranks.
pub(crate) fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
