//! Ranks that differ, in addresses, sizes, outcomes or calls: one answer for all of them.
#![forbid(unsafe_code)]

use collectives_core::error::{Error, ErrorKind, Field};

use super::{count, join};
use crate::case::Case;

mod decisions;
mod mismatch;
mod order;
mod partial;

const PARTS: &[&[Case]] = &[
    decisions::CASES,
    mismatch::CASES,
    order::CASES,
    partial::CASES,
];

/// The cases.
pub const CASES: &[Case] = &join::<{ count(PARTS) }>(PARTS);

fn field_of(error: &Error) -> Option<Field> {
    match error.kind() {
        ErrorKind::Mismatch { field, .. } => Some(*field),
        _ => None,
    }
}
