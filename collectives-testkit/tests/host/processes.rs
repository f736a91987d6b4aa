//! The embedded backend's harness for ranks that are processes.

use std::sync::Arc;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::Result;
use collectives_host::device::HostDevice;
use collectives_host::process::ProcessCommunicator;
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::harness::{Harness, Joined, Ranks, Setup};

use crate::device::{HostProbe, model};

/// Ranks as processes, on the same devices.
#[derive(Debug)]
pub struct HostProcesses;

impl Harness for HostProcesses {
    fn name(&self) -> &str {
        "host-processes"
    }

    fn supports(&self, _capability: Capability) -> Support {
        Support::Yes
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        let model = model(bootstrap.rank(), setup.terrain).with_shared_memory(true);
        let device = HostDevice::new(model)?;
        let comm =
            ProcessCommunicator::connect_within(bootstrap, Arc::clone(&device), setup.deadline)?;
        Ok(Joined {
            comm: Box::new(comm),
            probe: Box::new(HostProbe {
                device,
                has_long_ranges: true,
            }),
        })
    }

    fn ranks(&self) -> Ranks {
        Ranks::Processes
    }
}
