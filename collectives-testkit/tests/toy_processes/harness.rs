//! The toy with ranks that are processes: what it needs of its peers is a control plane.

use std::sync::Arc;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::Result;
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::harness::{Harness, Joined, NoProbe, Ranks, Setup};

use crate::communicator::ToyCommunicator;
use crate::device::ToyDevice;

/// The harness.
pub struct Processes;

impl Harness for Processes {
    fn name(&self) -> &str {
        "toy-processes"
    }

    fn supports(&self, capability: Capability) -> Support {
        match capability {
            Capability::ComparesCalls
            | Capability::SeesPeers
            | Capability::Abort
            | Capability::RankOrder
            | Capability::RoundsOnce => Support::Yes,
            _ => Support::no("the toy has none"),
        }
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        let comm = ToyCommunicator::connect(bootstrap, ToyDevice::new(), setup.deadline)?;
        Ok(Joined {
            comm: Box::new(comm),
            probe: Box::new(NoProbe),
        })
    }

    fn ranks(&self) -> Ranks {
        Ranks::Processes
    }
}
