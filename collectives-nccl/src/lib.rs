//! Collectives on NCCL's symmetric memory, CUDA streams and CUDA graphs.
//!
//! * [`CudaDevice`](device::CudaDevice) is a GPU: streams, anybody's too, memory, graphs.
//! * [`NcclCommunicator`](communicator::NcclCommunicator) joins ranks through any bootstrap. Its
//!   calls block, a watchdog ends what hangs, and [`Setup`](setup::Setup) can be aborted before
//!   there is a communicator.
//! * Nothing is linked. Without a driver, a GPU or NCCL everything builds, and fails with a typed
//!   error that says what is missing; so do functions that a driver or library lacks.
//! * [`DEFECTS`](known_bad::DEFECTS) lists versions of NCCL that are known to be wrong and what is
//!   done about them. Symmetric memory wants 2.30.6 or later.
//!
//! # An all-reduce
//!
//! Started by `torchrun` or anything that sets its variables, one process a GPU:
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use collectives_core::collectives::Collectives;
//! use collectives_core::device::Device;
//! use collectives_core::env::World;
//! use collectives_core::error::Result;
//! use collectives_core::reduce::ReduceOp;
//! use collectives_nccl::communicator::NcclCommunicator;
//! use collectives_nccl::device::CudaDevice;
//! use collectives_nccl::options::Options;
//!
//! fn main() -> Result<()> {
//!     let world = World::from_env()?;
//!     let bootstrap = world.bootstrap(Duration::from_secs(60))?;
//!     let device = CudaDevice::open(world.local_rank)?;
//!     let comm = NcclCommunicator::connect(bootstrap, Arc::clone(&device), Options::from_env())?;
//!     let mut collectives = Collectives::without_scratch(comm);
//!
//!     let device: Arc<dyn Device> = device;
//!     let stream = device.create_stream()?;
//!     let mut tensor = collectives.symmetric_buffer::<f32>(1 << 20)?;
//!     tensor.write(&vec![1.0; 1 << 20], &stream)?;
//!     let report = collectives.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
//!     println!("{report:?}: {}", tensor.read(&stream)?[0]);
//!     drop(tensor);
//!     collectives.close().map(drop)
//! }
//! ```
//!
//! # What it does not do
//!
//! * It does not compare calls across ranks; a decorator does.
//! * Reductions follow NCCL: 16-bit types round at every hop of a ring, and `Min` and `Max` need
//!   not propagate NaN. 8-bit floats are reduced in halves and converted back as CUDA does it, which
//!   saturates at every step: what is too large, and an infinity that takes part in any reduction, becomes
//!   the largest number of its sign. NaN stays NaN in sums and products. An average over an all-reduce of floating point is the sum, then a
//!   division, each rounded to the element type; other averages are NCCL's own.
//! * A multicast kernel is never asked for, unless [`Algorithm`](options::Algorithm) says so.

mod addresses;
mod call;
pub mod communicator;
mod convert;
pub mod device;
mod driver;
mod enqueue;
mod error;
mod exit;
mod hello;
pub mod known_bad;
mod mapping;
pub mod options;
mod paths;
mod scale;
pub mod setup;
mod state;
mod verdict;
mod verify;
mod watchdog;
mod window;
