//! What backends share whose ranks are processes: everything but how bytes travel.
//!
//! Such a backend writes a [`Transport`]: how its ranks join, meet, and move operands from one
//! address space to another, one call after the other. [`Engine`] makes a communicator of it, on
//! [`HostDevice`](crate::device::HostDevice)s: streams, captures, the order of operations, windows,
//! splitting, failure and shutdown are the same ones that thread ranks have.
//!
//! # Windows
//!
//! Symmetric memory is an anonymous file that each rank maps, its own and its peers', so it exists
//! where all ranks share a machine, and nothing of it has a name that could be left behind. A
//! reduction or gather whose operands lie in windows goes [directly](Engine#windows) between them.
//!
//! # Failure
//!
//! The control plane tells who failed. A transport that waits asks its [`Health`] now and then; one
//! that cannot be interrupted watches it from a thread of its own.

mod communicator;
mod direct;
mod endpoint;
pub mod fold;
mod health;
mod neighbours;
mod node;
mod transport;

pub use communicator::{Engine, Liveness};
pub use health::Health;
pub(crate) use neighbours::Mapping;
pub use neighbours::Neighbours;
pub use transport::{Ranks, Transport};
