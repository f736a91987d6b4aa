//! Ranks as threads on the embedded backend, and what its devices tell of themselves.

use std::sync::Arc;

use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_host::communicator::HostCommunicator;
use collectives_host::device::HostDevice;
use collectives_host::world::HostWorld;

use super::{Gauge, Joined, Ranks};

pub(super) fn run<R: Send>(
    ranks: &Ranks,
    rank: impl Fn(Joined) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let model = ranks.model();
    let world = HostWorld::new(ranks.count).model(move |_| model.clone());
    let joined = |comm: HostCommunicator| {
        let gauge = Box::new(HostGauge(Arc::clone(comm.host_device())));
        rank(Joined {
            comm: Box::new(comm),
            gauge,
        })
    };
    world.run(joined).into_iter().collect()
}

/// A device of the embedded backend, whoever carries the bytes between ranks.
#[derive(Debug)]
pub(super) struct HostGauge(pub(super) Arc<HostDevice>);

impl Gauge for HostGauge {
    fn mapped_bytes(&self) -> Option<usize> {
        self.0.collect();
        self.0.wait_for_destructors();
        Some(self.0.mapped_bytes())
    }
}
