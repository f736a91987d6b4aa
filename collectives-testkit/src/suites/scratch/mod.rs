//! Scratch: what a policy keeps, what a lease is, and what is counted.
#![forbid(unsafe_code)]

use collectives_alloc::config::ScratchConfig;
use collectives_core::communicator::Communicator;
use collectives_core::scratch::ScratchAllocator;

use super::{count, join};
use crate::case::{Case, Outcome};
use crate::rig::Rig;
use crate::values::Dice;

mod bounds;
mod counts;
mod leases;
mod limits;
mod misses;
mod pieces;
mod promises;

const PARTS: &[&[Case]] = &[
    bounds::CASES,
    counts::CASES,
    leases::CASES,
    limits::CASES,
    misses::CASES,
    pieces::CASES,
    promises::CASES,
];

/// The cases.
pub const CASES: &[Case] = &join::<{ count(PARTS) }>(PARTS);

/// An allocator with its communicator.
struct Scratch {
    comm: Box<dyn Communicator>,
    pool: Box<dyn ScratchAllocator>,
}

impl Scratch {
    fn new(rig: &mut Rig<'_>, policy: &str) -> Outcome<Self> {
        Self::of(rig, &ScratchConfig::with_policy(policy))
    }

    fn of(rig: &mut Rig<'_>, config: &ScratchConfig) -> Outcome<Self> {
        let mut options = config.options();
        options.agree_deadline = rig.deadline();
        let comm = rig.communicator()?;
        let pool = rig.pool_of(config, options)?;
        Ok(Self { comm, pool })
    }

    /// One use of this many bytes.
    fn touch(&mut self, rig: &Rig<'_>, bytes: usize) -> Outcome {
        Ok(rig
            .lease(&mut *self.comm, &mut *self.pool, bytes)?
            .complete()?)
    }

    fn close(self, rig: &Rig<'_>) -> Outcome {
        rig.close(self.comm, self.pool)
    }
}

/// Sizes of a random workload, equal on all ranks.
fn workload(seed: u64, granule: usize) -> Vec<usize> {
    let mut dice = Dice::new(seed);
    let mut sizes = Vec::new();
    for _ in 0..30 {
        let octave = dice.roll(9);
        sizes.push(1 + dice.roll((granule / 8) << octave));
    }
    sizes
}
