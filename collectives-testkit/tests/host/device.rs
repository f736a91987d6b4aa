//! The devices that the embedded backend's ranks are tried on.

use std::sync::Arc;
use std::time::Duration;

use collectives_core::device::Device;
use collectives_core::rank::Rank;
use collectives_host::device::HostDevice;
use collectives_host::model::{AddressOrder, DeviceModel, StreamMode};
use collectives_testkit::harness::{Probe, Terrain};

/// Small, so that cases that count in granules are quick.
const GRANULE: usize = 64 << 10;

/// As hostile as the terrain says.
pub fn model(rank: Rank, terrain: Terrain) -> DeviceModel {
    let order = if rank.0.is_multiple_of(2) {
        AddressOrder::Descending
    } else {
        AddressOrder::Shuffled(u64::from(rank.0))
    };
    let model = DeviceModel::new()
        .with_rank(rank)
        .with_granule(GRANULE)
        .with_address_order(order)
        .with_guard(4096)
        .with_poison(0xdb)
        .with_quarantine(32 << 20)
        .with_destructor_delay(Duration::from_millis(u64::from(rank.0)));
    match terrain {
        Terrain::Concurrent => model
            .with_stream_mode(StreamMode::Asynchronous)
            .with_skew(Duration::from_micros(100), u64::from(rank.0)),
        _ => model,
    }
}

/// What the device tells.
#[derive(Debug)]
pub struct HostProbe(pub Arc<HostDevice>);

impl Probe for HostProbe {
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

    fn check_memory(&self) -> Result<(), String> {
        self.0
            .check_memory()
            .map_err(|violation| format!("{violation:?}"))
    }
}
