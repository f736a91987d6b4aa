//! A rank that is a process, on the embedded backend.

use std::sync::Arc;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::Result;
use collectives_host::device::HostDevice;
use collectives_host::process::ProcessCommunicator;

use super::host::HostGauge;
use super::{Joined, Ranks};

/// Joins the others.
pub(super) fn join(bootstrap: Arc<dyn Bootstrap>, ranks: &Ranks) -> Result<Joined> {
    let device = HostDevice::new(ranks.model().with_shared_memory(true))?;
    let comm = ProcessCommunicator::connect(bootstrap, Arc::clone(&device))?;
    Ok(Joined {
        comm: Box::new(comm),
        gauge: Box::new(HostGauge(device)),
    })
}
