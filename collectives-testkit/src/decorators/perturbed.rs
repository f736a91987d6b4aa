//! Gives ranks different addresses for the same sequence of allocations.

use collectives_core::addr::WindowId;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::layered::{Layer, symmetric_of};
use collectives_core::memory::Memory;

use crate::values::Dice;

/// Allocates and frees memory of its own around every allocation, as a rank with another history
/// would have.
#[derive(Debug)]
pub struct Perturbed {
    seed: u64,
    dice: Dice,
    ballast: Vec<Memory>,
}

impl Perturbed {
    /// Ranks need different seeds.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            dice: Dice::new(seed),
            ballast: Vec::new(),
        }
    }
}

impl Layer for Perturbed {
    fn allocate(
        &mut self,
        inner: &mut dyn Communicator,
        bytes: usize,
        extend: Option<WindowId>,
    ) -> Result<Memory> {
        for _ in 0..self.dice.roll(3) {
            self.ballast.push(symmetric_of(inner)?.allocate(1, None)?);
        }
        if self.ballast.len() > 4 {
            self.ballast.remove(self.dice.roll(4));
            inner.device().collect();
        }
        symmetric_of(inner)?.allocate(bytes, extend)
    }

    fn for_child(&self) -> Self {
        Self::new(self.seed.wrapping_add(1))
    }
}
