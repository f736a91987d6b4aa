//! The kernels of this program, by name.

use collectives_core::error::Result;

use super::gpu::{Gpu, Kernel};
use crate::adam::{BETA1, BETA2, EPSILON, RATE};
use crate::data::CLASSES;

/// What they are compiled from.
pub(super) const SOURCE: &str = include_str!("kernels.cu");

/// What the source leaves open, beside the type of compute copies.
pub(super) fn constants() -> [String; 5] {
    [
        format!("RATE={RATE:e}f"),
        format!("BETA1={BETA1:e}f"),
        format!("BETA2={BETA2:e}f"),
        format!("EPSILON={EPSILON:e}f"),
        format!("CLASSES={CLASSES}"),
    ]
}

#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) narrow: Kernel,
    pub(super) activate: Kernel,
    pub(super) cut_gradient: Kernel,
    pub(super) column_sums: Kernel,
    pub(super) cross_entropy: Kernel,
    pub(super) widen: Kernel,
    pub(super) divide: Kernel,
    pub(super) square_parts: Kernel,
    pub(super) square_total: Kernel,
    pub(super) tick: Kernel,
    pub(super) adam: Kernel,
}

impl Kernels {
    pub(super) fn of(gpu: &Gpu) -> Result<Self> {
        Ok(Self {
            narrow: gpu.kernel(c"narrow")?,
            activate: gpu.kernel(c"activate")?,
            cut_gradient: gpu.kernel(c"cut_gradient")?,
            column_sums: gpu.kernel(c"column_sums")?,
            cross_entropy: gpu.kernel(c"cross_entropy")?,
            widen: gpu.kernel(c"widen")?,
            divide: gpu.kernel(c"divide")?,
            square_parts: gpu.kernel(c"square_parts")?,
            square_total: gpu.kernel(c"square_total")?,
            tick: gpu.kernel(c"tick")?,
            adam: gpu.kernel(c"adam")?,
        })
    }
}
