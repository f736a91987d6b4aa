//! What every rank does, whatever it runs on.

use std::fs::File;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use collectives_alloc::config::ScratchConfig;
use collectives_alloc::recorded::Recorded;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error as CollectiveError, ErrorKind, Misuse, Result};
use collectives_core::graph::{Capture, Executable};
use collectives_core::path::{Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;
use collectives_examples::backend::{Gauge, Joined};
use collectives_examples::exit;
use half::bf16;

use crate::oracle::Oracle;
use crate::outcome::{Digest, Kept, Outcome};
use crate::progress::Progress;
use crate::trace::Trace;

/// All-reduces a step makes, one a layer.
const LAYERS: usize = 2;

/// How long destructors of graphs, which run on another thread, may take.
const DESTRUCTORS: Duration = Duration::from_secs(30);

/// One policy's run, as every rank sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) config: &'a ScratchConfig,
    /// Where rank 0 writes down what scratch is asked for.
    pub(crate) record: Option<&'a std::path::Path>,
    /// How often the trace is served.
    pub(crate) passes: NonZero<usize>,
    pub(crate) progress: &'a Progress,
}

/// Serves the trace on this rank, with the scratch that the job's configuration describes.
pub(crate) fn serve(joined: Joined, job: &Job<'_>) -> Result<Outcome> {
    Server::new(joined.comm, job)?.serve(&*joined.gauge, job)
}

type Handle = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

/// One rank of the server.
#[derive(Debug)]
struct Server {
    collectives: Handle,
    oracle: Oracle,
    /// Prefills run here, and half of the replays.
    eager: Stream,
    /// The other half of the replays.
    other: Stream,
    hidden: usize,
    step: usize,
    replays: usize,
    wrong_elements: u64,
    digest: Digest,
    kept_after: Vec<usize>,
}

/// One captured decode batch with the tensors it works on.
#[derive(Debug)]
struct Decode {
    layers: Vec<Buffer<bf16>>,
    graph: Executable,
}

impl Server {
    fn new(comm: Box<dyn Communicator>, job: &Job<'_>) -> Result<Self> {
        let comm = job.config.decorate(comm);
        let mut scratch = job.config.build()?;
        if let Some(path) = job.record
            && comm.info().rank.index() == 0
        {
            let file = File::create(path).map_err(|error| {
                let text = exit::about(path, error).to_string();
                CollectiveError::new(ErrorKind::System(text)).during("record")
            })?;
            scratch = Box::new(Recorded::new(scratch, file));
        }
        let mut collectives = Collectives::new(comm, scratch);
        collectives.set_staging(Staging::Forced);
        Ok(Self {
            oracle: Oracle::new(collectives.world_size()),
            eager: collectives.device().create_stream()?,
            other: collectives.device().create_stream()?,
            collectives,
            hidden: job.trace.hidden,
            step: 0,
            replays: 0,
            wrong_elements: 0,
            digest: Digest::default(),
            kept_after: Vec::new(),
        })
    }

    fn serve(mut self, gauge: &dyn Gauge, job: &Job<'_>) -> Result<Outcome> {
        let tensors = gauge.ordinary_bytes();
        if job.record.is_none() {
            self.rehearse(job.trace)?;
            self.give_back(gauge, tensors)?;
        }
        let mut outcome = self.pass(gauge, job, tensors)?;
        for _ in 1..job.passes.get() {
            outcome = self.pass(gauge, job, tensors)?;
        }
        self.close()?;
        Ok(outcome)
    }

    /// Serves the whole trace once, and gives back what that took.
    fn pass(&mut self, gauge: &dyn Gauge, job: &Job<'_>, tensors: usize) -> Result<Outcome> {
        let trace = job.trace;
        let before = self.collectives.stats();
        let free = self.free_bytes(gauge)?;
        let begun = Instant::now();
        let mut decodes = Vec::new();
        for &tokens in &trace.decodes {
            decodes.push(self.capture_decode(tokens)?);
            self.step_made(job.progress);
        }
        for &tokens in &trace.prefills {
            let mut layers = self.tensors(tokens)?;
            self.forward(&mut layers)?;
            for decode in &mut decodes {
                self.replay(decode, false)?;
                self.replay(decode, true)?;
            }
            self.step_made(job.progress);
        }
        let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let kept = Kept::new(&self.collectives.stats().since(&before));
        // Graphs and tensors go; scratch stays until the trim, what graphs claimed included.
        drop(decodes);
        self.settle(gauge, tensors)?;
        let with_scratch = self.free_bytes(gauge)?;
        self.give_back(gauge, tensors)?;
        let without = self.free_bytes(gauge)?;
        let lost = |now: Option<usize>| {
            let (before, now) = free.zip(now)?;
            Some(before.saturating_sub(now) / gauge.sharers())
        };
        let info = self.collectives.communicator().info();
        Ok(Outcome {
            kept,
            largest_mapped: info.mapped(trace.largest_request()),
            granule: info.granule,
            replays: self.replays,
            wrong_elements: self.wrong_elements,
            digest: self.digest.get(),
            device_lost: lost(with_scratch),
            device_lost_after_trim: lost(without),
            nanoseconds,
            kept_after: std::mem::take(&mut self.kept_after),
        })
    }

    fn step_made(&mut self, progress: &Progress) {
        let stats = self.collectives.stats();
        self.kept_after.push(stats.mapped_bytes());
        progress.step(self.collectives.rank().index());
    }

    /// Serves the largest prompt, then captures and replays every batch, so that the backend and its
    /// driver have made what they make once and keep: for the first window, for the first operation
    /// of a kind, for as many graphs of this shape as there will be.
    fn rehearse(&mut self, trace: &Trace) -> Result<()> {
        let tokens = trace.largest_request() / (2 * self.hidden);
        let mut layers = self.tensors(tokens)?;
        self.forward(&mut layers)?;
        let captured = trace.decodes.iter();
        let captured = captured.map(|&tokens| self.capture_decode(tokens));
        let mut decodes = captured.collect::<Result<Vec<_>>>()?;
        for decode in &mut decodes {
            self.replay(decode, false)?;
            self.replay(decode, true)?;
        }
        self.step = 0;
        self.replays = 0;
        self.digest = Digest::default();
        Ok(())
    }

    /// Waits until of this rank's tensors no more than `ordinary` bytes are left. Graphs own their
    /// tensors, and the destructors of graphs run on another thread, some time after the graphs.
    fn settle(&mut self, gauge: &dyn Gauge, ordinary: usize) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.synchronize()?;
            self.collectives.device().collect();
            let left = gauge.ordinary_bytes();
            if left <= ordinary {
                return Ok(());
            }
            if begun.elapsed() >= DESTRUCTORS {
                let why = format!("{left} bytes of tensors are left, {ordinary} should be");
                return Err(Misuse::Other(why).into());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Gives all tensors and all scratch back. Ranks' graphs end at different times, and the bytes of
    /// slots come back at the first trim after the last of them.
    fn give_back(&mut self, gauge: &dyn Gauge, ordinary: usize) -> Result<()> {
        let begun = Instant::now();
        // What is held is the same on all ranks.
        while self.collectives.trim()?.held_bytes > 0 && begun.elapsed() < DESTRUCTORS {
            thread::yield_now();
        }
        let kept = self.collectives.stats().mapped_bytes();
        if kept > 0 {
            let why = format!("{kept} bytes of scratch cannot be given back");
            return Err(Misuse::Other(why).into());
        }
        self.settle(gauge, ordinary)
    }

    /// Free bytes of the device, while no rank does anything.
    fn free_bytes(&mut self, gauge: &dyn Gauge) -> Result<Option<usize>> {
        self.meet()?;
        let free = gauge.free_bytes();
        self.meet()?;
        Ok(free)
    }

    /// Waits for this rank's work, and for all ranks.
    fn meet(&mut self) -> Result<()> {
        self.synchronize()?;
        self.collectives.barrier(&self.eager)?;
        self.collectives.device().synchronize(&self.eager)
    }

    fn synchronize(&self) -> Result<()> {
        let device = self.collectives.device();
        [&self.eager, &self.other]
            .into_iter()
            .try_for_each(|stream| device.synchronize(stream))
    }

    fn close(self) -> Result<()> {
        let deferred = self.collectives.close()?;
        // The communicator itself may still belong to a graph whose destructor has not run.
        if deferred.windows > 0 || deferred.mapped_bytes > 0 {
            return Err(Misuse::Other(format!("left behind: {deferred:?}")).into());
        }
        Ok(())
    }

    /// The tensors of one batch, one a layer, in ordinary memory.
    fn tensors(&self, tokens: usize) -> Result<Vec<Buffer<bf16>>> {
        let device = self.collectives.device();
        let count = tokens * self.hidden;
        (0..LAYERS)
            .map(|_| Buffer::zeroed(device, count, &self.eager))
            .collect()
    }

    /// One eager step: refills the tensors, reduces them and compares.
    fn forward(&mut self, layers: &mut [Buffer<bf16>]) -> Result<()> {
        self.refill(layers, false)?;
        for layer in &mut *layers {
            all_reduce(&mut self.collectives, layer, &self.eager)?;
        }
        self.compare(layers, false)
    }

    /// Warms a batch up eagerly, which registers what it needs, then captures it.
    fn capture_decode(&mut self, tokens: usize) -> Result<Decode> {
        let mut layers = self.tensors(tokens)?;
        self.forward(&mut layers)?;
        let device = Arc::clone(self.collectives.device());
        let capture = Capture::begin(&*device, &mut self.eager)?;
        for layer in &mut layers {
            all_reduce(&mut self.collectives, layer, capture.stream())?;
        }
        let graph = capture.end()?.instantiate()?;
        Ok(Decode { layers, graph })
    }

    /// Refills the inputs of a captured batch, replays it and compares.
    fn replay(&mut self, decode: &mut Decode, on_other: bool) -> Result<()> {
        self.refill(&mut decode.layers, on_other)?;
        let stream = if on_other { &self.other } else { &self.eager };
        let device = self.collectives.device();
        decode.graph.launch(&**device, stream)?;
        self.replays += 1;
        self.compare(&decode.layers, on_other)
    }

    fn refill(&mut self, layers: &mut [Buffer<bf16>], on_other: bool) -> Result<()> {
        let stream = if on_other { &self.other } else { &self.eager };
        let rank = self.collectives.rank().index();
        self.step += 1;
        let mut input = Vec::new();
        for (layer, tensor) in layers.iter_mut().enumerate() {
            input.resize(tensor.len(), bf16::ZERO);
            self.oracle
                .fill(&mut input, rank, self.step * LAYERS + layer);
            tensor.write(&input, stream)?;
        }
        Ok(())
    }

    fn compare(&mut self, layers: &[Buffer<bf16>], on_other: bool) -> Result<()> {
        let stream = if on_other { &self.other } else { &self.eager };
        for (layer, tensor) in layers.iter().enumerate() {
            let result = tensor.read(stream)?;
            let step = self.step * LAYERS + layer;
            self.wrong_elements += self.oracle.count_wrong(&result, step);
            self.digest.add(&result);
        }
        Ok(())
    }
}

/// Reduces one tensor in place and makes sure that it went through scratch.
fn all_reduce(collectives: &mut Handle, tensor: &mut Buffer<bf16>, stream: &Stream) -> Result<()> {
    let report = collectives.all_reduce(tensor, ReduceOp::Sum, stream)?;
    if report.path != Path::Staged && collectives.world_size() > 1 {
        let why = format!("took the {} path: {}", report.path, report.reason);
        return Err(CollectiveError::from(Misuse::Other(why)).during("all_reduce"));
    }
    Ok(())
}
