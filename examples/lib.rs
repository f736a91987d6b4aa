//! Holds the programs in this folder together; there is nothing to import.
//!
//! The code in the README and in the guides is compiled and run here.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../docs/choosing-a-policy.md")]
mod choosing_a_policy {}

#[cfg(doctest)]
#[doc = include_str!("../docs/memory-and-streams.md")]
mod memory_and_streams {}
