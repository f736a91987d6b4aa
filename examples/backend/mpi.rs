//! A rank on MPI, where this build has one.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::Result;

use super::{Joined, Ranks};

#[cfg(feature = "system-mpi")]
mod present {
    use collectives_host::device::HostDevice;
    use collectives_mpi::bootstrap::MpiBootstrap;
    use collectives_mpi::communicator::MpiCommunicator;
    use collectives_mpi::environment::Mpi;
    use collectives_mpi::launcher::Launcher;

    use super::super::host::HostGauge;
    use super::{Arc, Bootstrap, Duration, Joined, OsString, Ranks, Result};

    pub(crate) fn launcher(ranks: usize) -> Vec<OsString> {
        Launcher::of_this_mpi().crowded().command(ranks)
    }

    pub(crate) fn bootstrap(deadline: Duration) -> Result<Arc<dyn Bootstrap>> {
        MpiBootstrap::of_world(deadline)
    }

    pub(crate) fn join(bootstrap: Arc<dyn Bootstrap>, ranks: &Ranks) -> Result<Joined> {
        // Results are compared with those of other backends, bit by bit.
        Mpi::initialize()?.sum_in_rank_order(true);
        let device = HostDevice::new(ranks.model().with_shared_memory(true))?;
        let comm = MpiCommunicator::connect(bootstrap, Arc::clone(&device))?;
        Ok(Joined {
            comm: Box::new(comm),
            gauge: Box::new(HostGauge(device)),
        })
    }
}

/// The command that starts the ranks.
pub(super) fn launcher(ranks: usize) -> Result<Vec<OsString>> {
    collectives_mpi::availability()?;
    #[cfg(feature = "system-mpi")]
    return Ok(present::launcher(ranks));
    #[cfg(not(feature = "system-mpi"))]
    unavailable(ranks)
}

/// The control plane of the job.
pub(super) fn bootstrap(deadline: Duration) -> Result<Arc<dyn Bootstrap>> {
    #[cfg(feature = "system-mpi")]
    return present::bootstrap(deadline);
    #[cfg(not(feature = "system-mpi"))]
    unavailable(deadline)
}

/// Joins the others.
pub(super) fn join(bootstrap: Arc<dyn Bootstrap>, ranks: &Ranks) -> Result<Joined> {
    #[cfg(feature = "system-mpi")]
    return present::join(bootstrap, ranks);
    #[cfg(not(feature = "system-mpi"))]
    unavailable((bootstrap, ranks))
}

#[cfg(not(feature = "system-mpi"))]
fn unavailable<T>(_: impl Sized) -> Result<T> {
    use collectives_core::error::{Error, Unsupported};

    collectives_mpi::availability()?;
    let text = "this build has no MPI".to_owned();
    Err(Error::unsupported(Unsupported::Operation(text)))
}
