//! A rank that is a process, on the embedded backend.

use std::sync::Arc;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::Result;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_host::process::ProcessCommunicator;

use super::{Joined, NoGauge};

/// Joins the others.
pub(super) fn join(bootstrap: Arc<dyn Bootstrap>, granule: usize) -> Result<Joined> {
    let model = DeviceModel::default()
        .with_granule(granule)
        .with_shared_memory(true);
    let comm = ProcessCommunicator::connect(bootstrap, HostDevice::new(model)?)?;
    Ok((Box::new(comm), Box::new(NoGauge)))
}
