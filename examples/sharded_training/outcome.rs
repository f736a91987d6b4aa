//! What one rank saw.

use collectives_core::path::{OpReport, Path};
use serde::{Deserialize, Serialize};

/// What a step came to; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Mean over the micro-batches, before the step.
    pub(crate) loss: f64,
    /// The length of the averaged gradient.
    pub(crate) gradient_norm: f64,
}

impl Step {
    /// From what all ranks added up: their losses, and the squares of their shards' gradients.
    pub(crate) fn of_sums([losses, squares]: [f64; 2], ranks: u16) -> Self {
        Self {
            loss: losses / f64::from(ranks),
            gradient_norm: squares.sqrt(),
        }
    }
}

/// A training run on one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) steps: Vec<Step>,
    /// Over the whole data set, after the last step.
    pub(crate) accuracy: f32,
    pub(crate) all_gather: Paths,
    pub(crate) reduce_scatter: Paths,
    /// Of the numbers that are reported, which are allowed the ordinary path.
    pub(crate) all_reduce: Paths,
    pub(crate) averages: Averages,
    /// Steps that were replays of a graph.
    pub(crate) replays: u64,
    pub(crate) kept: Kept,
    pub(crate) nanoseconds: u64,
    /// What one rank came to with the same arithmetic, where that was computed beside the ranks.
    pub(crate) reference: Option<Vec<Step>>,
}

/// The calls of some steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) all_gather: Paths,
    pub(crate) reduce_scatter: Paths,
    pub(crate) all_reduce: Paths,
    pub(crate) averages: Averages,
}

impl Calls {
    /// Counts other calls too.
    pub(crate) fn add(&mut self, other: &Self) {
        for (paths, others) in [
            (&mut self.all_gather, other.all_gather),
            (&mut self.reduce_scatter, other.reduce_scatter),
            (&mut self.all_reduce, other.all_reduce),
        ] {
            paths.zero_copy += others.zero_copy;
            paths.staged += others.staged;
            paths.direct += others.direct;
            paths.fallback += others.fallback;
        }
        self.averages.by_collective += other.averages.by_collective;
        self.averages.by_optimiser += other.averages.by_optimiser;
    }
}

/// Calls of one collective, by the path they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Paths {
    pub(crate) zero_copy: u64,
    pub(crate) staged: u64,
    pub(crate) direct: u64,
    pub(crate) fallback: u64,
}

impl Paths {
    pub(crate) fn add(&mut self, report: OpReport) {
        match report.path {
            Path::ZeroCopy => self.zero_copy += 1,
            Path::Staged => self.staged += 1,
            Path::Fallback => self.fallback += 1,
            // A path that does not exist yet is none of the above.
            _ => self.direct += 1,
        }
    }
}

/// Who divided gradients by the number of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Averages {
    pub(crate) by_collective: u64,
    pub(crate) by_optimiser: u64,
}

/// Bytes of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Mapped for scratch at the end.
    pub(crate) scratch_bytes: usize,
    /// Mapped for tensors in symmetric memory at the end.
    pub(crate) tensor_bytes: usize,
    /// That could not be given back when symmetric memory was switched.
    pub(crate) held_bytes: usize,
    /// Still mapped after everything was closed, where the backend can tell.
    pub(crate) left_bytes: Option<usize>,
}
