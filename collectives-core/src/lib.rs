//! Collectives on symmetric memory, whatever carries them out.
//!
//! This crate is the contract. It knows no GPU library, and everything in it works without one.
//!
//! # Map
//!
//! * Users call [`Collectives`](collectives::Collectives): typed, checked, safe.
//! * A framework runs kernels of its own beside them through [`kernel::launch`].
//! * A backend implements [`Communicator`](communicator::Communicator),
//!   [`Device`](device::Device) and, where it has windows,
//!   [`SymmetricMemory`](symmetric::SymmetricMemory).
//! * A scratch policy implements [`ScratchAllocator`](scratch::ScratchAllocator), or only a decision
//!   function (see the crate `collectives-alloc`).
//! * Ranks find each other through a [`Bootstrap`](bootstrap::Bootstrap): threads through
//!   [`InProcess`](in_process::InProcess), processes through [`TcpStore`](tcp_store::TcpStore), for
//!   which [`World`](env::World) reads what their launcher says.
//! * Everything fails with one [`Error`](error::Error).

pub mod addr;
pub mod agreement;
pub mod bootstrap;
pub mod buffer;
pub mod captures;
mod causes;
pub mod collective;
pub mod collectives;
pub mod communicator;
pub mod device;
pub mod disorder;
pub mod dtype;
pub mod eight_bits;
pub mod env;
pub mod error;
pub mod file_store;
mod forward;
pub mod graph;
pub mod in_process;
pub mod kernel;
pub mod layered;
pub mod memory;
pub mod no_scratch;
mod order;
pub mod outcome;
pub mod path;
pub mod rank;
pub mod reduce;
pub mod rendezvous;
pub mod round;
pub mod scratch;
pub mod shared;
pub mod split;
pub mod stats;
pub mod stream;
pub mod submission;
pub mod symmetric;
#[cfg(not(loom))]
mod sync;
#[cfg(loom)]
pub mod sync;
pub mod tcp_store;
pub mod tensor;
