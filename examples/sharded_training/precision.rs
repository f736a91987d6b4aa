//! The types that compute copies are made of. Masters, optimiser state and sums are `f32`.

use collectives_core::dtype::Element;
use half::bf16;

use crate::exact::{self, Grid};

/// What is gathered and scattered.
pub(crate) trait Compute: Element {
    /// The zero.
    const ZERO: Self;
    /// Where its sums over ranks are exact.
    const GRID: Grid<f32>;
    /// The nearest value.
    fn narrow(value: f32) -> Self;
    /// The same value.
    fn widen(self) -> f32;
}

impl Compute for f32 {
    const ZERO: Self = 0.0;
    const GRID: Grid<Self> = exact::F32;

    fn narrow(value: f32) -> Self {
        value
    }

    fn widen(self) -> f32 {
        self
    }
}

impl Compute for bf16 {
    const ZERO: Self = Self::ZERO;
    const GRID: Grid<f32> = exact::BF16;

    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// The values as a compute copy holds them.
pub(crate) fn narrowed<T: Compute>(values: &[f32]) -> Vec<T> {
    values.iter().map(|&value| T::narrow(value)).collect()
}

/// The values that a compute copy stands for.
pub(crate) fn widened<T: Compute>(values: &[T]) -> Vec<f32> {
    values.iter().map(|value| value.widen()).collect()
}

/// The value that is left of an `f32` in a compute copy.
pub(crate) fn rounded<T: Compute>(value: f32) -> f32 {
    T::narrow(value).widen()
}
