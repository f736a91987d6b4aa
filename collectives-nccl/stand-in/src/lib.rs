//! A driver and a library of collectives that answer and compute nothing.
//!
//! Tests of the NCCL backend load this in the place of `libcuda.so.1` and `libnccl.so.2`, so that its
//! set-up, registration, enqueueing, errors and shutdown run where there is no GPU. Ranks are threads
//! of one process.
//!
//! * Handles are numbers that are never reused. What is destroyed twice, used after its end or asked
//!   of a stream that captures is noted, and so is a call from a destructor of a graph's.
//! * Copies are made at once. Collectives among several ranks move nothing; setting a communicator up
//!   and registering a window wait for all ranks, until they are aborted.
//! * Every call is counted, and logged where a test asks for it. Any call can be told to fail.

mod control;
mod graphs;
mod memory;
mod nccl;
mod streams;
mod world;
