//! The policy `arena` on the host backend: bytes that exist once, whoever maps them.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod aliases;
mod lifecycle;
mod limits;
mod pages;
mod seed;

#[path = "../rig/mod.rs"]
mod rig;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::error::Result;
use collectives_core::path::OpReport;
use collectives_core::reduce::ReduceOp;
use collectives_core::stats::SlotStats;

use rig::{Captured, DEADLINE, Rig};

const GRANULE: usize = 16 << 10;

impl Rig {
    fn try_reduce(&mut self, bytes: usize) -> Result<OpReport> {
        let mut tensor = Buffer::<i32>::zeroed(&self.device, bytes / 4, &self.stream)?;
        self.collectives
            .all_reduce(&mut tensor, ReduceOp::Sum, &self.stream)
    }

    /// Captures what `eager` does.
    fn capture(&mut self, bytes: usize) -> Captured {
        self.capture_of(bytes, &[ReduceOp::Sum])
    }

    /// Elements that are not the sum over all ranks.
    fn wrong(&self, found: &[i32], round: usize) -> usize {
        let expected = self.expected(found.len(), round, &[ReduceOp::Sum]);
        let pairs = found.iter().zip(&expected);
        pairs.filter(|(found, expected)| found != expected).count()
    }

    fn slots(&self) -> Vec<SlotStats> {
        self.collectives.stats().slots
    }
}

fn arena() -> ScratchConfig {
    ScratchConfig::with_policy("arena")
}
