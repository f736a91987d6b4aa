//! Makes ranks drift apart.

use std::thread;
use std::time::Duration;

use collectives_core::agreement::Record;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::layered::Layer;
use collectives_core::submission::Submission;

use crate::values::Dice;

/// Sleeps before operations and agreements, each rank for other times.
#[derive(Clone, Copy, Debug)]
pub struct Skewed {
    longest: Duration,
    seed: u64,
    dice: Dice,
}

impl Skewed {
    /// Sleeps up to `longest`, as the seed says; ranks need different seeds.
    #[must_use]
    pub const fn new(longest: Duration, seed: u64) -> Self {
        Self {
            longest,
            seed,
            dice: Dice::new(seed),
        }
    }

    fn sleep(&mut self) {
        let share = u32::try_from(self.dice.roll(1000)).unwrap_or(0);
        thread::sleep(self.longest * share / 1000);
    }
}

impl Layer for Skewed {
    fn before_enqueue(
        &mut self,
        _inner: &mut dyn Communicator,
        _submission: &Submission<'_>,
    ) -> Result<()> {
        self.sleep();
        Ok(())
    }

    fn agree(
        &mut self,
        inner: &mut dyn Communicator,
        mine: &Record,
        deadline: Duration,
    ) -> Result<Vec<Record>> {
        self.sleep();
        inner.agree(mine, deadline)
    }

    fn for_child(&self) -> Self {
        Self::new(self.longest, self.seed.wrapping_add(1))
    }
}
