//! The harness of ranks that an MPI launcher starts.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use collectives_alloc::checked::Checked;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::env::World;
use collectives_core::error::Result;
use collectives_host::device::HostDevice;
use collectives_host::model::{AddressOrder, DeviceModel, StreamMode};
use collectives_mpi::bootstrap::MpiBootstrap;
use collectives_mpi::communicator::MpiCommunicator;
use collectives_mpi::launcher::Launcher;
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::harness::{Harness, Joined, Probe, Ranks, Setup, Terrain};

/// Small, so that cases that count in granules are quick.
const GRANULE: usize = 64 << 10;

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
            Capability::Abort if !self.checked => Support::no(
                "MPI cannot take an operation back: the watchdog ends the job, unless calls are \
                 compared first",
            ),
            Capability::Aliasing => Support::no("a window is one file, which the others map whole"),
            Capability::LongRanges => Support::no("its probe gives none"),
            _ => Support::Yes,
        }
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        let rank = bootstrap.rank();
        let order = if rank.0.is_multiple_of(2) {
            AddressOrder::Descending
        } else {
            AddressOrder::Shuffled(u64::from(rank.0))
        };
        let mut model = DeviceModel::new()
            .with_rank(rank)
            .with_shared_memory(true)
            .with_granule(GRANULE)
            .with_address_order(order)
            .with_guard(4096)
            .with_poison(0xdb)
            .with_quarantine(32 << 20)
            .with_destructor_delay(Duration::from_millis(u64::from(rank.0)));
        if setup.terrain == Terrain::Concurrent {
            model = model.with_stream_mode(StreamMode::Asynchronous);
        }
        let device = HostDevice::new(model)?;
        let comm = MpiCommunicator::connect_within(bootstrap, Arc::clone(&device), setup.deadline)?;
        let comm: Box<dyn Communicator> = match self.checked {
            true => Box::new(Checked::new(setup.deadline).around(comm)),
            false => Box::new(comm),
        };
        Ok(Joined {
            comm,
            probe: Box::new(MpiProbe(device)),
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

#[derive(Debug)]
struct MpiProbe(Arc<HostDevice>);

impl Probe for MpiProbe {
    fn mapped_bytes(&self) -> Option<usize> {
        self.0.collect();
        Some(self.0.mapped_bytes())
    }

    fn ordinary_bytes(&self) -> Option<usize> {
        self.0.collect();
        Some(self.0.memory_report().ordinary_bytes)
    }

    fn settle(&self) {
        self.0.wait_for_destructors();
    }

    fn check_memory(&self) -> std::result::Result<(), String> {
        self.0
            .check_memory()
            .map_err(|violation| format!("{violation:?}"))
    }
}
