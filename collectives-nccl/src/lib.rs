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
//! # What it does not do
//!
//! * It does not compare calls across ranks; a decorator does.
//! * Reductions follow NCCL: 16-bit types round at every hop of a ring, and `Min` and `Max` need
//!   not propagate NaN. An average over an all-reduce of floating point is the sum, then a
//!   division, each rounded to the element type; other averages are NCCL's own.
//! * A multicast kernel is never asked for, unless [`Algorithm`](options::Algorithm) says so.

pub mod communicator;
mod control;
mod convert;
pub mod device;
mod driver;
mod enqueue;
mod error;
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
