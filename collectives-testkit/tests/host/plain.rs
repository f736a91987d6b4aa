//! Devices that give freed memory back at once, as plain `malloc` and `mmap` do.

use std::sync::Arc;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::Result;
use collectives_host::model::{AddressOrder, DeviceModel, StreamMode};
use collectives_testkit::capability::{Capability, Support};
use collectives_testkit::harness::{Harness, Joined, Setup, Terrain};

use crate::host::device::GRANULE;
use crate::host::join_on;

/// Ranks as threads on devices that nothing protects: what is freed goes at once.
#[derive(Clone, Copy, Debug)]
pub enum Plain {
    /// The next allocation gets it, of whatever kind.
    Reused,
    /// Its addresses are no memory any more.
    Unmapped,
}

impl Harness for Plain {
    fn name(&self) -> &str {
        match self {
            Self::Reused => "plain-reused",
            Self::Unmapped => "plain-unmapped",
        }
    }

    fn supports(&self, capability: Capability) -> Support {
        match (self, capability) {
            (Self::Reused, Capability::Aliasing) => Support::no("its memory is a heap"),
            _ => Support::Yes,
        }
    }

    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined> {
        let model = DeviceModel::new()
            .with_rank(bootstrap.rank())
            .with_granule(GRANULE)
            .with_heap(matches!(self, Self::Reused));
        let model = match bootstrap.rank().0 % 2 {
            0 => model,
            _ => model.with_address_order(AddressOrder::Descending),
        };
        let model = match setup.terrain {
            Terrain::Concurrent => model.with_stream_mode(StreamMode::Asynchronous),
            _ => model,
        };
        join_on(model, bootstrap, setup)
    }
}
