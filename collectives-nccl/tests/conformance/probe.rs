//! What the kit asks of a GPU besides the traits.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::graph::Capture;
use collectives_core::memory::Memory;
use collectives_core::stream::Stream;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_testkit::harness::Probe;

/// How long destructors of graphs may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct CudaProbe {
    device: Arc<CudaDevice>,
    stream: Mutex<Stream>,
}

impl CudaProbe {
    pub(crate) fn new(device: Arc<CudaDevice>) -> Result<Self> {
        let stream = Mutex::new(device.create_stream()?);
        Ok(Self { device, stream })
    }

    /// Makes a graph that owns something, destroys it, and waits until its destructor has run. The
    /// driver runs destructors one after another, so those of earlier graphs have run by then.
    fn flush(&self) -> Result<()> {
        let (ran, has_run) = channel();
        let token = Memory::token(self.device.id(), move || {
            // Nobody may be waiting any more.
            let _ = ran.send(());
        });
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let capture = Capture::begin(&*self.device, &mut stream)?;
        self.device.retain(capture.stream(), token)?;
        drop(capture.end()?);
        let _ran = has_run.recv_timeout(PATIENCE);
        Ok(())
    }
}

impl Probe for CudaProbe {
    fn mapped_bytes(&self) -> Option<usize> {
        self.device.collect();
        Some(self.device.mapped_bytes())
    }

    fn ordinary_bytes(&self) -> Option<usize> {
        self.device.collect();
        Some(self.device.ordinary_bytes())
    }

    fn settle(&self) {
        if let Err(error) = self.flush() {
            eprintln!("destructors of graphs were not waited for: {error}");
        }
        let begun = Instant::now();
        let is_busy = || {
            self.device.collect();
            self.device.pending_count() > 0 || NcclCommunicator::ending_count() > 0
        };
        while is_busy() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_micros(100));
        }
    }
}
