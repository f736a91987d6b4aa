//! What a rank does from the beginning to the end of a communicator.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator as _;
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::graph::Capture;
use collectives_core::in_process::InProcess;
use collectives_core::path::Staging;
use collectives_core::rank::Rank;
use collectives_core::reduce::{ReduceOp, Scalar};
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_nccl::options::Options;

use crate::control;

pub(crate) type Handle = Collectives<NcclCommunicator, Box<dyn ScratchAllocator>>;

/// How long ranks wait for each other, and a test for what happens elsewhere.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// One rank with its communicator, stream and buffers.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) handle: Handle,
    pub(crate) stream: Stream,
    pub(crate) window: Buffer<f32>,
    pub(crate) plain: Buffer<f32>,
}

/// Elements of the buffers.
pub(crate) const COUNT: usize = 64;

impl Actor {
    pub(crate) fn join(end: InProcess, cuda: &Arc<CudaDevice>) -> Result<Self> {
        let mut options = Options::default();
        options.deadline = PATIENCE;
        options.work_deadline = PATIENCE;
        Self::join_with(end, cuda, options)
    }

    pub(crate) fn join_with(
        end: InProcess,
        cuda: &Arc<CudaDevice>,
        options: Options,
    ) -> Result<Self> {
        let comm = NcclCommunicator::connect(Arc::new(end), Arc::clone(cuda), options)?;
        let scratch = ScratchConfig::from_toml("[scratch]\npolicy = \"geometric\"\n")?.build()?;
        let mut handle = Collectives::new(comm, scratch);
        handle.set_deadline(PATIENCE);
        let device: Arc<dyn Device> = Arc::clone(cuda) as Arc<dyn Device>;
        let stream = device.create_stream()?;
        Ok(Self {
            window: handle.symmetric_buffer(COUNT)?,
            plain: Buffer::zeroed(&device, COUNT, &stream)?,
            device,
            handle,
            stream,
        })
    }

    /// Every operation once, on ordinary memory and in a window, with scratch and without.
    pub(crate) fn operate(&mut self) -> Result<()> {
        let Self {
            handle,
            stream,
            window,
            plain,
            device,
            ..
        } = self;
        let part = COUNT / handle.world_size();
        let mut half = Buffer::<f32>::zeroed(device, part, stream)?;
        let (peer, root) = (Rank(1 - handle.rank().0), Rank(0));
        handle.all_reduce(window, ReduceOp::Sum, stream)?;
        for staging in [Staging::Never, Staging::Forced] {
            handle.set_staging(staging);
            handle.all_reduce(plain, ReduceOp::Sum, stream)?;
            handle.all_reduce(plain, ReduceOp::Average, stream)?;
            let twice = ReduceOp::PreMulSum(Scalar::new(2.0_f32));
            handle.all_reduce(plain, twice, stream)?;
            handle.reduce_scatter(plain, &mut half, ReduceOp::Sum, stream)?;
            handle.all_gather(&half, plain, stream)?;
        }
        handle.broadcast(plain, root, stream)?;
        handle.reduce(plain, ReduceOp::Max, root, stream)?;
        handle.all_to_all(plain, window, stream)?;
        handle.barrier(stream)?;
        handle.group(stream, |group| {
            group.send(plain, peer)?.recv(window, peer)?;
            Ok(())
        })?;
        plain.read(stream).map(drop)
    }

    /// A captured call that is launched twice, once after its template is gone.
    pub(crate) fn replay(&mut self) -> Result<()> {
        let capture = Capture::begin(&*self.device, &mut self.stream)?;
        self.handle
            .all_reduce(&mut self.plain, ReduceOp::Sum, capture.stream())?;
        let graph = capture.end()?;
        let mut executable = graph.instantiate()?;
        executable.launch(&*self.device, &self.stream)?;
        drop(graph);
        executable.launch(&*self.device, &self.stream)?;
        self.device.synchronize(&self.stream)
    }

    /// Ends everything; the device stays.
    pub(crate) fn leave(self) -> Result<()> {
        let Self { handle, .. } = self;
        handle.close().map(drop)
    }
}

/// One rank's whole life. A rank on which a call fails has the others told, who may wait for it.
fn live_through(end: InProcess, patience: Duration) -> Result<()> {
    let cuda = CudaDevice::open(0)?;
    let lived = Actor::join(end, &cuda).and_then(|mut actor| {
        let worked = actor.operate().and_then(|()| actor.replay());
        if let Err(error) = &worked {
            let abort = actor.handle.communicator().abort_handle();
            abort.abort(&format!("a call failed: {error}"));
        }
        let left = actor.leave();
        worked.and(left)
    });
    settle(&cuda, patience);
    lived
}

/// What was left when the ranks began, because giving it back failed, and will never be given back.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// What was used and is not given back.
fn left(cuda: &CudaDevice) -> usize {
    let destroys = control::destroying();
    destroys + cuda.pending_count() + NcclCommunicator::ending_count()
}

/// Gives back what these ranks left, some of which other threads let go of.
pub(crate) fn settle(cuda: &CudaDevice, patience: Duration) {
    let begun = Instant::now();
    loop {
        cuda.collect();
        if left(cuda) <= LEFT.load(Ordering::Relaxed) || begun.elapsed() > patience {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `rank` on two threads that are named after their ranks, and says what became of each.
pub(crate) fn on_ranks<R: Send>(rank: impl Fn(InProcess) -> R + Sync) -> Vec<R> {
    let before = CudaDevice::open(0).map_or(0, |cuda| left(&cuda));
    LEFT.store(before, Ordering::Relaxed);
    let rank = &rank;
    thread::scope(|scope| {
        let ranks = InProcess::world(2).into_iter().enumerate();
        let threads = ranks.map(|(index, end)| {
            let named = thread::Builder::new().name(format!("rank-{index}"));
            let body = move || rank(end);
            named.spawn_scoped(scope, body).expect("a thread")
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no rank panics"))
            .collect()
    })
}

/// What became of one rank.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) result: Result<()>,
    /// Contexts that its thread had pushed afterwards, and its capture mode.
    pub(crate) thread: (usize, c_int),
}

/// Both ranks' whole lives. What they leave is waited for so long.
pub(crate) fn lives(patience: Duration) -> Vec<Life> {
    on_ranks(|end| Life {
        result: live_through(end, patience),
        thread: control::thread(),
    })
}
