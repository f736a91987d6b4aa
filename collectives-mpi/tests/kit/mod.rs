//! The harness of ranks that an MPI launcher starts, on the devices that the embedded backend's are
//! tried on.

#[path = "../../../collectives-testkit/tests/host/device.rs"]
mod device;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use collectives_alloc::checked::Checked;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::communicator::Communicator;
use collectives_core::env::World;
use collectives_core::error::Result;
use collectives_host::device::HostDevice;
use collectives_mpi::bootstrap::MpiBootstrap;
use collectives_mpi::communicator::MpiCommunicator;
use collectives_mpi::launcher::Launcher;
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::harness::{Harness, Joined, Ranks, Setup};

use self::device::{HostProbe, model};

/// MPI ranks on devices as hostile as the terrain says.
#[derive(Debug)]
pub struct Mpi {
    /// Whether every call is compared across ranks before it is enqueued.
    pub checked: bool,
}

impl Harness for Mpi {
    fn name(&self) -> &str {
        match self.checked {
            true => "mpi-checked",
            false => "mpi",
        }
    }

    fn supports(&self, capability: Capability) -> Support {
        match capability {
            Capability::ComparesCalls if !self.checked => {
                Support::no("calls are compared where `Checked` is around the communicator")
            }
            Capability::SeesPeers => {
                Support::no("MPI tells nothing of the operation that a peer is in")
            }
            Capability::Abort if !self.checked => Support::no(
                "MPI cannot take an operation back: the watchdog ends the job, unless calls are \
                 compared first",
            ),
            Capability::RankOrder => Support::no(
                "MPI adds 32 and 64-bit floats in an order of its own; what it has no operation for is \
                 folded in the order of ranks",
            ),
            Capability::LongRanges => {
                Support::no("gigabytes take MPI minutes; its own tests carry some")
            }
            _ => Support::Yes,
        }
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        let model = model(bootstrap.rank(), setup.terrain).with_shared_memory(true);
        let device = HostDevice::new(model)?;
        let comm = MpiCommunicator::connect_within(bootstrap, Arc::clone(&device), setup.deadline)?;
        let comm: Box<dyn Communicator> = match self.checked {
            true => Box::new(Checked::new(setup.deadline).around(comm)),
            false => Box::new(comm),
        };
        Ok(Joined {
            comm,
            probe: Box::new(HostProbe {
                device,
                has_long_ranges: false,
            }),
        })
    }

    fn ranks(&self) -> Ranks {
        Ranks::Launched
    }

    fn launcher(&self, ranks: usize) -> Vec<OsString> {
        Launcher::of_this_mpi().crowded().command(ranks)
    }

    fn bootstrap(&self, _world: &World, deadline: Duration) -> Result<Arc<dyn Bootstrap>> {
        MpiBootstrap::of_world(deadline)
    }

    /// Ranks of one world fill the machine: MPI polls.
    fn is_exclusive(&self) -> bool {
        true
    }
}
