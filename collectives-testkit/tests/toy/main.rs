//! A backend in four small files, as `docs/implementing-a-backend.md` builds it, under the kit.

mod communicator;
mod device;
mod reduce;

use std::sync::Arc;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::Result;
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::harness::{Harness, Joined, NoProbe, Setup};

use crate::communicator::ToyCommunicator;
use crate::device::ToyDevice;

struct Toy;

impl Harness for Toy {
    fn name(&self) -> &str {
        "toy"
    }

    fn supports(&self, capability: Capability) -> Support {
        match capability {
            Capability::ComparesCalls
            | Capability::SeesPeers
            | Capability::Abort
            | Capability::RankOrder
            | Capability::RoundsOnce => Support::Yes,
            Capability::Symmetric | Capability::Aliasing => Support::no("its memory is ordinary"),
            Capability::Graphs | Capability::GraphUpdate => Support::no("its streams run at once"),
            Capability::Averages => Support::no("its arithmetic is four folds"),
            _ => Support::no("its device tells nothing of its memory"),
        }
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        let comm = ToyCommunicator::connect(bootstrap, ToyDevice::new(), setup.deadline)?;
        Ok(Joined {
            comm: Box::new(comm),
            probe: Box::new(NoProbe),
        })
    }
}

collectives_testkit::conformance_main!(Toy);
