//! The collectives of the host backend, from outside.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "tests panic where something is wrong, and make small numbers of large ones"
)]

mod arena;
mod common;
mod disagreement;
mod eight_bits;
mod failure;
mod large;
mod messages;
mod movement;
mod order;
mod reductions;
mod streams;
mod windows;
