//! The conformance kit on NCCL: ranks are processes, each on the next GPU, in turn.
//!
//! ```text
//! COLLECTIVES_RANKS=8 COLLECTIVES_REQUIRE=platform cargo test -p collectives-nccl --test conformance
//! ```
//!
//! Without a driver, a GPU or NCCL every case is listed as skipped, with what is missing;
//! `COLLECTIVES_REQUIRE=platform` makes failures of them. What NCCL has is claimed here, so that a
//! communicator without it fails instead of skipping. With `COLLECTIVES_KIT_CHECKED=1` every
//! communicator is wrapped in `Checked`, which compares calls where NCCL does not.

mod probe;

use std::env;
use std::sync::Arc;

use collectives_alloc::checked::Checked;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::communicator::Communicator;
use collectives_core::env::World;
use collectives_core::error::Result;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_nccl::known_bad::{self, Remedy};
use collectives_nccl::options::Options;
use collectives_nccl::setup::{check_platform, library_version};
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::harness::{Harness, Joined, Ranks, Setup};

use crate::probe::CudaProbe;

struct Nccl {
    name: String,
    checked: bool,
}

impl Nccl {
    fn new() -> Self {
        let checked = env::var("COLLECTIVES_KIT_CHECKED").is_ok_and(|value| value == "1");
        let ranks = env::var("COLLECTIVES_RANKS").unwrap_or_else(|_| "3".to_owned());
        let version = library_version().map_or_else(|_| "none".to_owned(), |v| v.to_string());
        let suffix = if checked { "-checked" } else { "" };
        Self {
            name: format!("nccl-{version}-ranks-{ranks}{suffix}"),
            checked,
        }
    }
}

/// Why this version has no symmetric memory, if so.
fn symmetric() -> Support {
    let Ok(version) = library_version() else {
        return Support::no("NCCL was not found");
    };
    let allow = Options::from_env().allow;
    match known_bad::of(version, Remedy::NoSymmetricMemory, &allow).next() {
        None => Support::Yes,
        Some(defect) => Support::no(format!("NCCL {version}: {}", defect.what)),
    }
}

impl Harness for Nccl {
    fn name(&self) -> &str {
        &self.name
    }

    fn supports(&self, capability: Capability) -> Support {
        match capability {
            Capability::Symmetric => symmetric(),
            Capability::ComparesCalls if !self.checked => {
                Support::no("NCCL does not compare calls; `Checked` around it does")
            }
            Capability::SeesPeers => Support::no("operations of NCCL do not meet on the host"),
            Capability::RankOrder => Support::no("NCCL adds in the order of its rings and trees"),
            Capability::RoundsOnce => Support::no(
                "NCCL rounds narrow floats at every step, and what is too large saturates",
            ),
            Capability::DelaysDestructors => {
                Support::no("the driver runs destructors when it likes")
            }
            _ => Support::Yes,
        }
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        let place = World::from_env()?;
        let gpu = place.local_rank % CudaDevice::count().max(1);
        let device = CudaDevice::open(gpu)?;
        let mut options = Options::from_env();
        options.deadline = setup.deadline;
        options.work_deadline = setup.deadline;
        let comm = NcclCommunicator::connect(bootstrap, Arc::clone(&device), options)?;
        let comm: Box<dyn Communicator> = match self.checked {
            true => Box::new(Checked::default().around(comm)),
            false => Box::new(comm),
        };
        Ok(Joined {
            comm,
            probe: Box::new(CudaProbe(device)),
        })
    }

    fn ranks(&self) -> Ranks {
        Ranks::Processes
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn heeds_terrain(&self) -> bool {
        false
    }

    fn platform(&self) -> Support {
        match check_platform() {
            Ok(()) => Support::Yes,
            Err(error) => Support::no(error.kind().to_string()),
        }
    }
}

collectives_testkit::conformance_main!(Nccl::new());
