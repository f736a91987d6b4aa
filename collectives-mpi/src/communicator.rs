//! The communicator over MPI.

use collectives_host::engine::Engine;

pub use crate::transport::MpiTransport;

/// One rank's end of a communicator over MPI.
///
/// Made from any control plane whose ranks are of one MPI job, an
/// [`MpiBootstrap`](crate::bootstrap::MpiBootstrap) or another, and a
/// [`HostDevice`](collectives_host::device::HostDevice). What it costs is told at the
/// [crate](crate#what-mpi-decides).
///
/// ```no_run
/// use std::time::Duration;
///
/// use collectives_core::buffer::Buffer;
/// use collectives_core::collectives::Collectives;
/// use collectives_core::error::Result;
/// use collectives_core::reduce::ReduceOp;
/// use collectives_host::device::HostDevice;
/// use collectives_host::model::DeviceModel;
/// use collectives_mpi::bootstrap::MpiBootstrap;
/// use collectives_mpi::communicator::MpiCommunicator;
///
/// fn main() -> Result<()> {
///     let bootstrap = MpiBootstrap::of_world(Duration::from_secs(60))?;
///     let device = HostDevice::new(DeviceModel::new().with_shared_memory(true))?;
///     let communicator = MpiCommunicator::connect(bootstrap, device)?;
///     let mut collectives = Collectives::without_scratch(communicator);
///     let device = collectives.device().clone();
///     let stream = device.create_stream()?;
///     let mut gradient = Buffer::from_slice(&device, &[1.0_f32; 1000], &stream)?;
///     collectives.all_reduce(&mut gradient, ReduceOp::Average, &stream)?;
///     let _deferred = collectives.close()?;
///     Ok(())
/// }
/// ```
pub type MpiCommunicator = Engine<MpiTransport>;
