//! The embedded backend's harness.

pub mod device;

use std::sync::Arc;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::Result;
use collectives_host::communicator::HostCommunicator;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::harness::{Harness, Joined, Setup};

use self::device::{HostProbe, model};

/// Ranks as threads on devices as hostile as the terrain says.
#[derive(Debug)]
pub struct Host;

impl Harness for Host {
    fn name(&self) -> &str {
        "host"
    }

    fn supports(&self, _capability: Capability) -> Support {
        Support::Yes
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        join_on(model(bootstrap.rank(), setup.terrain), bootstrap, setup)
    }
}

/// Starts a rank on a device that behaves as the model says.
pub fn join_on(model: DeviceModel, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
    let device = HostDevice::new(model)?;
    let comm = HostCommunicator::connect_within(bootstrap, Arc::clone(&device), setup.deadline)?;
    Ok(Joined {
        comm: Box::new(comm),
        probe: Box::new(HostProbe {
            device,
            has_long_ranges: true,
        }),
    })
}
