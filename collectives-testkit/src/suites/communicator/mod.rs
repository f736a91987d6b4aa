//! Operations: what they compute, and the path that they take.
#![forbid(unsafe_code)]

use super::{count, join};
use crate::case::Case;

mod long;
mod operations;
mod paths;
mod reductions;
mod rounding;

const PARTS: &[&[Case]] = &[
    operations::CASES,
    reductions::CASES,
    rounding::CASES,
    paths::CASES,
    long::CASES,
];

/// The cases.
pub const CASES: &[Case] = &join::<{ count(PARTS) }>(PARTS);
