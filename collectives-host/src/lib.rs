//! The backend that needs nothing: ranks are threads or processes, memory is memory.
//!
//! * A [`HostDevice`](device::HostDevice) is one rank's device. Its streams are ordered queues that
//!   run inline on the caller's thread, or on a worker thread where asked
//!   ([`StreamMode`](model::StreamMode)).
//! * Ranks are threads ([`HostWorld`](world::HostWorld)), or processes of one machine
//!   ([`ProcessCommunicator`](process::ProcessCommunicator)).
//! * [`engine`] is what backends share whose ranks are processes, and what one of them writes itself.
//! * A capture records raw addresses and a replay touches exactly those.
//! * A [`DeviceModel`](model::DeviceModel) says how hostile the device is: granule, budget, order of
//!   addresses, delayed destructors, refusals, guard bytes, poison.

mod block;
mod capabilities;
mod capture;
mod chunk;
pub mod communicator;
mod compare;
mod course;
pub mod device;
mod endpoint;
pub mod engine;
mod event;
mod exchange;
mod fabric;
mod fence;
mod file;
mod flat;
#[cfg(test)]
mod gate;
mod graph;
mod heap;
mod lobby;
mod meeting;
mod messages;
pub mod model;
mod node;
mod post;
mod presence;
pub mod process;
mod progress;
mod queue;
mod reaper;
mod reduce;
mod region;
mod registry;
mod replay;
mod seat;
pub mod space;
mod standing;
mod tickets;
mod verdict;
mod view;
mod windows;
mod worker;
pub mod world;
