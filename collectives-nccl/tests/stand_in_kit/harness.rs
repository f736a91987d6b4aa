//! Ranks over the stand-in.

use std::env;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use collectives_alloc::checked::Checked;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_nccl::options::Options;
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::harness::{Harness, Joined, Probe, Setup, Terrain};

use crate::control;

/// How long destructors of graphs and watchdogs may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long destructors wait, so that nothing relies on their having run.
const DELAY: Duration = Duration::from_millis(2);

pub(crate) struct StandIn {
    checked: bool,
}

impl StandIn {
    pub(crate) fn new() -> Self {
        let checked = env::var("COLLECTIVES_KIT_CHECKED").is_ok_and(|value| value == "1");
        Self { checked }
    }
}

impl Harness for StandIn {
    fn name(&self) -> &str {
        match self.checked {
            true => "nccl-stand-in-checked",
            false => "nccl-stand-in",
        }
    }

    fn supports(&self, capability: Capability) -> Support {
        match capability {
            Capability::ComparesCalls if !self.checked => {
                Support::no("NCCL does not compare calls; `Checked` around it does")
            }
            Capability::SeesPeers => Support::no("operations of NCCL do not meet on the host"),
            Capability::RoundsOnce => Support::no(
                "the stand-in rounds narrow floats at every step and saturates, as NCCL does",
            ),
            Capability::LongRanges => {
                Support::no("the stand-in folds an element at a time, which would take minutes")
            }
            _ => Support::Yes,
        }
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        control::set_delay(DELAY);
        control::set_lazy(setup.terrain == Terrain::Concurrent);
        let device = CudaDevice::open(bootstrap.rank().index())?;
        let mut options = Options::default();
        options.deadline = setup.deadline;
        options.work_deadline = setup.deadline;
        let comm = NcclCommunicator::connect(bootstrap, Arc::clone(&device), options)?;
        let comm: Box<dyn Communicator> = match self.checked {
            true => Box::new(Checked::default().around(comm)),
            false => Box::new(comm),
        };
        let probe = Box::new(StandInProbe(device));
        Ok(Joined { comm, probe })
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct StandInProbe(Arc<CudaDevice>);

impl Probe for StandInProbe {
    fn mapped_bytes(&self) -> Option<usize> {
        self.0.collect();
        Some(self.0.mapped_bytes())
    }

    fn ordinary_bytes(&self) -> Option<usize> {
        self.0.collect();
        Some(self.0.ordinary_bytes())
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

    fn check_memory(&self) -> Result<(), String> {
        match control::wrong() {
            wrong if wrong.is_empty() => Ok(()),
            wrong => Err(wrong.join("\n")),
        }
    }
}
