//! The policy `arena` on the host backend: bytes that exist once, whoever maps them.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod aliases;
mod lifecycle;
mod limits;
mod pages;
mod seed;

use std::sync::Arc;
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::graph::{Capture, Executable};
use collectives_core::path::{OpReport, Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stats::SlotStats;
use collectives_core::stream::Stream;
use collectives_host::communicator::HostCommunicator;
use collectives_host::device::HostDevice;

const GRANULE: usize = 64 << 10;
/// How long ranks wait for each other.
const DEADLINE: Duration = Duration::from_secs(20);

/// One rank.
struct Rig {
    collectives: Collectives<HostCommunicator, Box<dyn ScratchAllocator>>,
    host: Arc<HostDevice>,
    device: Arc<dyn Device>,
    stream: Stream,
    rank: usize,
    ranks: usize,
}

/// A graph that adds its tensor up over all ranks, in place.
struct Captured {
    graph: Executable,
    tensor: Buffer<i32>,
}

impl Rig {
    fn new(comm: HostCommunicator, config: &ScratchConfig) -> Self {
        Self::over(comm, config.build().unwrap())
    }

    fn over(comm: HostCommunicator, scratch: Box<dyn ScratchAllocator>) -> Self {
        let (host, device) = (Arc::clone(comm.host_device()), Arc::clone(comm.device()));
        let (rank, ranks) = (comm.info().rank.index(), comm.info().world_size);
        let mut collectives = Collectives::new(comm, scratch);
        collectives.set_staging(Staging::Forced);
        let stream = device.create_stream().unwrap();
        Self {
            collectives,
            host,
            device,
            stream,
            rank,
            ranks,
        }
    }

    fn input(&self, count: usize, round: usize) -> Vec<i32> {
        let own = (self.rank + 1) * (round + 1);
        let value = |index: usize| i32::try_from(own + index % 251).unwrap();
        (0..count).map(value).collect()
    }

    /// Elements that are not the sum over all ranks.
    fn wrong(&self, found: &[i32], round: usize) -> usize {
        let own: usize = (1..=self.ranks).sum::<usize>() * (round + 1);
        let value = |index: usize| i32::try_from(own + self.ranks * (index % 251)).unwrap();
        let pairs = found.iter().enumerate();
        pairs
            .filter(|&(index, &found)| found != value(index))
            .count()
    }

    fn try_reduce(&mut self, bytes: usize) -> Result<OpReport> {
        let mut tensor = Buffer::<i32>::zeroed(&self.device, bytes / 4, &self.stream)?;
        self.collectives
            .all_reduce(&mut tensor, ReduceOp::Sum, &self.stream)
    }

    /// One eager call through scratch.
    fn eager(&mut self, bytes: usize, round: usize) {
        let input = self.input(bytes / 4, round);
        let mut tensor = Buffer::from_slice(&self.device, &input, &self.stream).unwrap();
        let report = self
            .collectives
            .all_reduce(&mut tensor, ReduceOp::Sum, &self.stream)
            .unwrap();
        assert_eq!(report.path, Path::Staged);
        let found = tensor.read(&self.stream).unwrap();
        assert_eq!(self.wrong(&found, round), 0, "eager, {bytes} bytes");
    }

    /// Captures what `eager` does; the slot exists already.
    fn capture(&mut self, bytes: usize) -> Captured {
        let mut tensor = Buffer::zeroed(&self.device, bytes / 4, &self.stream).unwrap();
        let capture = Capture::begin(&*self.device, &mut self.stream).unwrap();
        let report = self
            .collectives
            .all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())
            .unwrap();
        assert_eq!(report.path, Path::Staged);
        let graph = capture.end().unwrap().instantiate().unwrap();
        Captured { graph, tensor }
    }

    fn replay(&self, captured: &mut Captured, round: usize, on: &Stream) {
        let input = self.input(captured.tensor.len(), round);
        captured.tensor.write(&input, on).unwrap();
        captured.graph.launch(&*self.device, on).unwrap();
        let found = captured.tensor.read(on).unwrap();
        assert_eq!(self.wrong(&found, round), 0, "replay of {round}");
    }

    fn slots(&self) -> Vec<SlotStats> {
        self.collectives.stats().slots
    }

    fn mapped(&self) -> usize {
        self.collectives.stats().mapped_bytes()
    }
}

fn arena() -> ScratchConfig {
    ScratchConfig::with_policy("arena")
}
