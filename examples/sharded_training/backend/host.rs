//! Ranks as threads on the embedded backend.

use std::sync::Arc;

use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_host::communicator::HostCommunicator;
use collectives_host::model::{DeviceModel, StreamMode};
use collectives_host::world::HostWorld;

use crate::options::Options;
use crate::outcome::Outcome;
use crate::trainer;

pub(super) fn run(options: &Options) -> Result<Vec<Outcome>> {
    let granule = options.granule.get();
    // Streams with threads of their own, so that prefetches run while a rank computes.
    let model = DeviceModel::default()
        .with_granule(granule)
        .with_stream_mode(StreamMode::Asynchronous);
    let world = HostWorld::new(options.ranks()).model(move |_| model.clone());
    let rank = |comm: HostCommunicator| {
        let device = Arc::clone(comm.host_device());
        let mut outcome = trainer::train(Box::new(comm), options)?;
        device.collect();
        device.wait_for_destructors();
        outcome.kept.left_bytes = Some(device.mapped_bytes());
        Ok(outcome)
    };
    world.run(rank).into_iter().collect()
}
