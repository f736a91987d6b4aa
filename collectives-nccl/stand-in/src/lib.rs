//! A driver and a library of collectives on the memory of the process.
//!
//! Tests of the NCCL backend load this in the place of `libcuda.so.1` and `libnccl.so.2`, so that all
//! of it runs where there is no GPU. Ranks are threads of one process, and a device is what is
//! allocated on it.
//!
//! * Handles are numbers that are never reused. What is destroyed twice, used after its end or asked
//!   of a stream that captures is noted, and so is a call from a destructor of a graph's, work on
//!   memory that is not there, and memory that is freed under work.
//! * Work is queued, and runs as soon as nothing holds it up: an event that was not reached, ranks
//!   that have not come to the same collective. Told to be lazy it runs no earlier than somebody
//!   waits for it.
//! * Collectives compute: ranks meet, inputs are folded in rank order, results are written. Ranks
//!   that call differently are noted.
//! * Setting a communicator up and registering a window wait for all ranks, until they are aborted.
//! * Every call is counted, and logged where a test asks for it. Any call can be told to fail.
#![cfg(target_os = "linux")]

mod arithmetic;
mod calls;
mod captures;
mod collectives;
mod communicators;
mod control;
mod devices;
mod graphs;
mod groups;
mod kernels;
mod memory;
mod owned;
mod paths;
mod streams;
mod windows;
mod work;
mod world;
