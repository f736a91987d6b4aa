//! What the programs in this folder share.
//!
//! The code in the README and in the guides is compiled and run here.
#![forbid(unsafe_code)]

pub mod backend;
pub mod exit;
pub mod plot;
pub mod rows;
pub mod scratch;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../docs/choosing-a-policy.md")]
mod choosing_a_policy {}

#[cfg(doctest)]
#[doc = include_str!("../docs/memory-and-streams.md")]
mod memory_and_streams {}

#[cfg(doctest)]
#[doc = include_str!("../docs/sharded-training.md")]
mod sharded_training {}
