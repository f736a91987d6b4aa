//! One rank on the host backend: its handle, eager calls through scratch, graphs of some, and what
//! every element must be.

use std::sync::Arc;
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::graph::{Capture, Executable};
use collectives_core::path::{Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;
use collectives_host::communicator::HostCommunicator;
use collectives_host::device::HostDevice;

/// How long ranks wait for each other.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// One rank.
pub(crate) struct Rig {
    pub(crate) collectives: Collectives<HostCommunicator, Box<dyn ScratchAllocator>>,
    pub(crate) host: Arc<HostDevice>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) stream: Stream,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

/// A graph of some reductions of its tensor over all ranks, in place, one after another.
pub(crate) struct Captured {
    pub(crate) graph: Executable,
    pub(crate) tensor: Buffer<i32>,
    ops: Vec<ReduceOp>,
}

impl Rig {
    pub(crate) fn new(comm: HostCommunicator, config: &ScratchConfig) -> Self {
        Self::over(comm, config.build().unwrap())
    }

    pub(crate) fn over(comm: HostCommunicator, scratch: Box<dyn ScratchAllocator>) -> Self {
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

    /// This rank's input of a round: a number of the rank and one of the index.
    pub(crate) fn input(&self, count: usize, round: usize) -> Vec<i32> {
        let own = (self.rank + 1) * (round + 1);
        let value = |index: usize| i32::try_from(own + index % 251).unwrap();
        (0..count).map(value).collect()
    }

    /// What the inputs of a round come to.
    pub(crate) fn expected(&self, count: usize, round: usize, ops: &[ReduceOp]) -> Vec<i32> {
        let mut of_ranks: Vec<_> = (1..=self.ranks).map(|rank| rank * (round + 1)).collect();
        let mut of_index = 1;
        for op in ops {
            let of_all = match op {
                ReduceOp::Sum => {
                    of_index *= self.ranks;
                    of_ranks.iter().sum()
                }
                ReduceOp::Max => of_ranks.iter().copied().max().unwrap(),
                other => unreachable!("no test reduces by {other:?}"),
            };
            of_ranks.fill(of_all);
        }
        let value = |index: usize| i32::try_from(of_ranks[0] + of_index * (index % 251)).unwrap();
        (0..count).map(value).collect()
    }

    /// One sum of all ranks through scratch.
    pub(crate) fn eager(&mut self, bytes: usize, round: usize) {
        let input = self.input(bytes / 4, round);
        let mut tensor = Buffer::from_slice(&self.device, &input, &self.stream).unwrap();
        let report = self
            .collectives
            .all_reduce(&mut tensor, ReduceOp::Sum, &self.stream)
            .unwrap();
        assert_eq!(report.path, Path::Staged);
        let found = tensor.read(&self.stream).unwrap();
        let expected = self.expected(bytes / 4, round, &[ReduceOp::Sum]);
        assert!(found == expected, "eager, {bytes} bytes");
    }

    /// A graph of these operations on a tensor of its own; the slot exists already.
    pub(crate) fn capture_of(&mut self, bytes: usize, ops: &[ReduceOp]) -> Captured {
        let mut tensor = Buffer::zeroed(&self.device, bytes / 4, &self.stream).unwrap();
        let capture = Capture::begin(&*self.device, &mut self.stream).unwrap();
        for &op in ops {
            let report = self
                .collectives
                .all_reduce(&mut tensor, op, capture.stream())
                .unwrap();
            assert_eq!(report.path, Path::Staged);
        }
        let graph = capture.end().unwrap().instantiate().unwrap();
        let ops = ops.to_vec();
        Captured { graph, tensor, ops }
    }

    pub(crate) fn replay(&self, captured: &mut Captured, round: usize, on: &Stream) {
        let count = captured.tensor.len();
        captured
            .tensor
            .write(&self.input(count, round), on)
            .unwrap();
        captured.graph.launch(&*self.device, on).unwrap();
        let found = captured.tensor.read(on).unwrap();
        let expected = self.expected(count, round, &captured.ops);
        assert!(found == expected, "replay of {round}");
    }

    pub(crate) fn mapped(&self) -> usize {
        self.collectives.stats().mapped_bytes()
    }
}
