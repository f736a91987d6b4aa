//! What every rank does.

use std::error::Error;
use std::time::{Duration, Instant};

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error as CollectiveError, Misuse, Result};
use collectives_core::graph::{Capture, Executable};
use collectives_core::path::{Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stats::Stats;
use collectives_core::stream::Stream;
use collectives_host::communicator::HostCommunicator;
use collectives_host::model::DeviceModel;
use collectives_host::world::HostWorld;
use half::bf16;

use crate::oracle::Oracle;
use crate::trace::Trace;

/// All-reduces a step makes, one a layer.
const LAYERS: usize = 2;

/// What one policy came to.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    /// Of one rank; all ranks have the same.
    pub(crate) stats: Stats,
    pub(crate) largest_request: usize,
    pub(crate) largest_mapped: usize,
    pub(crate) graphs: usize,
    /// Of one rank.
    pub(crate) replays: usize,
    /// Of all ranks.
    pub(crate) wrong_elements: u64,
    pub(crate) elapsed: Duration,
}

/// Runs the trace on `ranks` threads with the scratch that `config` describes.
pub(crate) fn run(
    trace: &Trace,
    config: &ScratchConfig,
    ranks: usize,
    granule: usize,
) -> std::result::Result<Totals, Box<dyn Error>> {
    let begun = Instant::now();
    let world = HostWorld::new(ranks).model(move |_| DeviceModel::default().with_granule(granule));
    let outcomes = world.run(|comm| Server::new(comm, trace, config)?.serve(trace));
    let outcomes: Vec<_> = outcomes.into_iter().collect::<Result<_>>()?;
    let first = outcomes.first().ok_or("there are no ranks")?;
    for other in &outcomes {
        if other.stats.slots != first.stats.slots {
            return Err("ranks keep different slots".into());
        }
    }
    Ok(Totals {
        stats: first.stats.clone(),
        largest_request: trace.largest_request(),
        largest_mapped: first.largest_mapped,
        graphs: trace.decodes.len(),
        replays: first.replays,
        wrong_elements: outcomes.iter().map(|rank| rank.wrong_elements).sum(),
        elapsed: begun.elapsed(),
    })
}

/// What one rank saw.
#[derive(Debug)]
struct Outcome {
    stats: Stats,
    largest_mapped: usize,
    replays: usize,
    wrong_elements: u64,
}

/// One rank of the server.
#[derive(Debug)]
struct Server {
    collectives: Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>,
    oracle: Oracle,
    /// Prefills run here, and half of the replays.
    eager: Stream,
    /// The other half of the replays.
    other: Stream,
    hidden: usize,
    step: usize,
    replays: usize,
    wrong_elements: u64,
}

/// One captured decode batch with the tensors it works on.
#[derive(Debug)]
struct Decode {
    layers: Vec<Buffer<bf16>>,
    graph: Executable,
}

impl Server {
    fn new(comm: HostCommunicator, trace: &Trace, config: &ScratchConfig) -> Result<Self> {
        let comm = config.decorate(Box::new(comm));
        let mut collectives = Collectives::new(comm, config.build()?);
        collectives.set_staging(Staging::Forced);
        Ok(Self {
            oracle: Oracle::new(collectives.world_size()),
            eager: collectives.device().create_stream()?,
            other: collectives.device().create_stream()?,
            collectives,
            hidden: trace.hidden,
            step: 0,
            replays: 0,
            wrong_elements: 0,
        })
    }

    fn serve(mut self, trace: &Trace) -> Result<Outcome> {
        let mut decodes = Vec::new();
        for &tokens in &trace.decodes {
            decodes.push(self.capture_decode(tokens)?);
        }
        for &tokens in &trace.prefills {
            let mut layers = self.tensors(tokens)?;
            self.forward(&mut layers)?;
            for decode in &mut decodes {
                self.replay(decode, false)?;
                self.replay(decode, true)?;
            }
        }
        let stats = self.collectives.stats();
        let info = self.collectives.communicator().info();
        let outcome = Outcome {
            largest_mapped: info.mapped(trace.largest_request()),
            stats,
            replays: self.replays,
            wrong_elements: self.wrong_elements,
        };
        // Destructors of graphs run on another thread, at other times on every rank; the bytes come
        // back at the first trim after the last of them.
        drop(decodes);
        while self.collectives.trim()?.held_bytes > 0 {
            std::thread::yield_now();
        }
        let deferred = self.collectives.close()?;
        // The communicator itself may still belong to a graph whose destructor has not run.
        if deferred.windows > 0 || deferred.mapped_bytes > 0 {
            return Err(Misuse::Other(format!("left behind: {deferred:?}")).into());
        }
        Ok(outcome)
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
        let device = std::sync::Arc::clone(self.collectives.device());
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
        }
        Ok(())
    }
}

/// Reduces one tensor in place and makes sure that it went through scratch.
fn all_reduce<C: Communicator, A: ScratchAllocator>(
    collectives: &mut Collectives<C, A>,
    tensor: &mut Buffer<bf16>,
    stream: &Stream,
) -> Result<()> {
    let report = collectives.all_reduce(tensor, ReduceOp::Sum, stream)?;
    if report.path != Path::Staged && collectives.world_size() > 1 {
        let why = format!("took the {} path: {}", report.path, report.reason);
        return Err(CollectiveError::from(Misuse::Other(why)).during("all_reduce"));
    }
    Ok(())
}
