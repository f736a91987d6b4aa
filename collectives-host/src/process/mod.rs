//! Ranks that are processes of one machine: no MPI, no server, one anonymous file.
//!
//! * [`ProcessCommunicator`] is one rank's end. Any control plane will do: the launcher's environment
//!   ([`World::from_env`](collectives_core::env::World::from_env)), a parent that starts copies of
//!   itself, or MPI.
//! * Ranks meet in a segment of shared memory that rank 0 makes and the others map through its
//!   process. It has no name, in `/dev/shm` or elsewhere, so nothing is left of it after success,
//!   failure or a kill, and no earlier run can be in the way.
//! * Operands of windows are read and written where they are; others go through blocks of the
//!   segment. Calls are compared, as between threads: a mismatch is the same typed error everywhere.
//! * A rank whose process is gone is noticed within moments, by its peers themselves, also where the
//!   control plane does not tell.

mod bell;
mod board;
mod common;
mod folded;
mod inside;
mod judgement;
mod letters;
mod meeting;
mod peers;
mod segment;
mod staged;
mod transport;

pub use transport::ProcessTransport;

/// One rank's end of a communicator whose ranks are processes.
///
/// ```no_run
/// use std::time::Duration;
///
/// use collectives_core::collectives::Collectives;
/// use collectives_core::env::World;
/// use collectives_core::error::Result;
/// use collectives_host::device::HostDevice;
/// use collectives_host::model::DeviceModel;
/// use collectives_host::process::ProcessCommunicator;
///
/// fn main() -> Result<()> {
///     let bootstrap = World::from_env()?.bootstrap(Duration::from_secs(60))?;
///     let device = HostDevice::new(DeviceModel::new().with_shared_memory(true))?;
///     let collectives = Collectives::without_scratch(ProcessCommunicator::connect(bootstrap, device)?);
///     let _deferred = collectives.close()?;
///     Ok(())
/// }
/// ```
pub type ProcessCommunicator = crate::engine::Engine<ProcessTransport>;
