//! Scratch policies, the slot pool they share, configuration and decorators.
//!
//! # Which policy
//!
//! * [`Geometric`](geometric::Geometric), the default: few slots, at most four times the largest
//!   request, whatever the order of sizes.
//! * [`Reserved`](reserved::Reserved), where the largest request is known: one slot.
//! * [`Arena`](arena::Arena), where graphs are captured and memory is short: bytes are appended and
//!   mapped again, so that they exist once. The backend must be able to.
//! * [`Replace`](replace::Replace): one slot and what graphs still own, for the price of
//!   deregistering when it grows.
//! * [`GeometricClass`](geometric_class::GeometricClass): a slot per power of two.
//! * [`Exact`](exact::Exact): a slot per size, to compare with.
//!
//! A policy is one pure function, [`Policy::decide`](policy::Policy::decide); the
//! [`Pool`](pool::Pool) does leases, stream order, graph claims, agreement, deferred frees, cap,
//! limit and statistics for all of them. Third parties add a [`Policy`](policy::Policy):
//!
//! ```
//! use collectives_alloc::options::Options;
//! use collectives_alloc::policy::{Ask, Decision, Policy, SlotView, best_fit};
//! use collectives_alloc::pool::Pool;
//!
//! /// Slots of whole steps, however large the request.
//! #[derive(Debug)]
//! struct Steps(usize);
//!
//! impl Policy for Steps {
//!     fn name(&self) -> &str {
//!         "steps"
//!     }
//!     fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
//!         match best_fit(slots, ask.bytes) {
//!             Some(index) => Decision::Hit(index),
//!             None => match ask.bytes.checked_next_multiple_of(self.0) {
//!                 Some(capacity) => Decision::Grow { capacity, retire: true },
//!                 None => Decision::Refuse,
//!             },
//!         }
//!     }
//!     fn digest(&self) -> u64 {
//!         self.0 as u64
//!     }
//!     fn bound(&self, largest: usize, _granule: usize) -> Option<usize> {
//!         largest.checked_next_multiple_of(self.0)
//!     }
//! }
//!
//! let scratch = Pool::new(Box::new(Steps(32 << 20)), Options::default());
//! # let _ = scratch;
//! ```
//!
//! # Configuration
//!
//! [`ScratchConfig`](config::ScratchConfig) reads a `[scratch]` table and the variables
//! `COLLECTIVES_SCRATCH_*`, and the [`registry`] turns the name of a policy, built in or a third
//! party's, into an allocator. Two decorators help to find out what is going on:
//! [`Recorded`](recorded::Recorded) writes a [`trace`] that a [`replay`] prices under any other
//! policy, and [`Checked`](checked::Checked) compares every call across ranks. What a pool counts goes
//! to [`tracing`] and, with the feature `metrics`, to a recorder of the process: see [`statistics`].
#![forbid(unsafe_code)]

pub mod arena;
pub mod budget;
pub mod bytes;
pub mod checked;
pub mod config;
pub mod digest;
pub mod env;
pub mod exact;
pub mod geometric;
pub mod geometric_class;
pub mod growth;
pub mod options;
pub mod policy;
pub mod pool;
pub mod recorded;
pub mod registry;
pub mod replace;
pub mod replay;
pub mod reserved;
pub mod statistics;
pub mod trace;

mod model;
mod nearest;
mod verdict;
