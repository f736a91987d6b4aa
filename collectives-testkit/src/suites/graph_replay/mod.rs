//! Captured graphs: what they own, what they replay, and when their memory comes back.
#![forbid(unsafe_code)]

use super::{count, join};
use crate::case::Case;

mod branches;
mod capture;
mod children;
mod ends;
mod growth;
mod many;
mod misses;
mod owners;
mod pieces;
mod updates;

const PARTS: &[&[Case]] = &[
    branches::CASES,
    capture::CASES,
    children::CASES,
    ends::CASES,
    growth::CASES,
    many::CASES,
    misses::CASES,
    owners::CASES,
    pieces::CASES,
    updates::CASES,
];

/// The cases.
pub const CASES: &[Case] = &join::<{ count(PARTS) }>(PARTS);

/// The same on streams that run beside their callers, which drift apart.
pub const CONCURRENT: &[Case] = &concurrent(join::<{ count(PARTS) }>(PARTS));

const fn concurrent<const N: usize>(mut cases: [Case; N]) -> [Case; N] {
    let mut index = 0;
    while index < N {
        cases[index] = cases[index].concurrent();
        index += 1;
    }
    cases
}
