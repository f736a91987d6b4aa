//! A device with hooks around its calls.
//!
//! Core's [`Layer`](collectives_core::layered::Layer) does this for communicators. The kit needs it
//! for devices too: to see the order that streams are put in, and to plant bugs there.

mod communicator;
mod device;
mod graph;

pub(crate) use communicator::OnDevice;
pub use device::{Interpose, Interposed};
pub use graph::{GraphHooks, Launch};
