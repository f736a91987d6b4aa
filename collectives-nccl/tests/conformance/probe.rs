//! What the kit asks of a GPU besides the traits.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::device::Device;
use collectives_core::memory::Memory;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_testkit::harness::Probe;

/// How long destructors of graphs may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct CudaProbe(pub(crate) Arc<CudaDevice>);

impl Probe for CudaProbe {
    fn mapped_bytes(&self) -> Option<usize> {
        self.0.collect();
        Some(self.0.mapped_bytes())
    }

    fn ordinary_bytes(&self) -> Option<usize> {
        self.0.collect();
        Some(self.0.ordinary_bytes())
    }

    fn long_range(&self, bytes: usize) -> Option<Memory> {
        self.0.allocate(bytes).ok()
    }

    fn settle(&self) {
        let begun = Instant::now();
        let is_busy = || {
            self.0.collect();
            self.0.pending_count() > 0 || NcclCommunicator::ending_count() > 0
        };
        while is_busy() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_micros(100));
        }
    }
}
