//! Operations that end before their peers have read.

use collectives_core::layered::Layer;

/// Says that a finished operation does not mean that peers have finished reading its operands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Undrained;

impl Layer for Undrained {
    fn drains(&self) -> bool {
        false
    }

    fn for_child(&self) -> Self {
        *self
    }
}
