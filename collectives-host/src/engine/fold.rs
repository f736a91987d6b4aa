//! The arithmetic of [`collectives_core::reduce`], for transports that fold inputs themselves.

use std::fmt;

use collectives_core::dtype::DType;
use collectives_core::error::Result;
use collectives_core::reduce::ReduceOp;

use crate::reduce::{Reducer, Scratch, Source};

/// Working memory of folds, so that one needs no heap.
#[derive(Default)]
pub struct FoldScratch(Scratch);

// SAFETY: The pointers in it are those of the last fold, and nobody uses them after it.
unsafe impl Send for FoldScratch {}

impl fmt::Debug for FoldScratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FoldScratch")
    }
}

/// One rank's input of a fold.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// The first element; any alignment will do.
    pub addr: *const u8,
    /// The bits of the scalar of a pre-multiplied sum.
    pub scalar: u64,
}

/// Folds `elements` elements of every input in rank order, and writes the results to every target.
///
/// # Errors
///
/// For a reduction or element type that is not known.
///
/// # Safety
///
/// Every input has that many elements to read, and every target to write; meanwhile nobody else
/// writes the inputs or touches the targets. A target may be an input, element for element, but
/// overlaps none otherwise.
pub unsafe fn fold(
    (dtype, op): (DType, ReduceOp),
    elements: usize,
    inputs: impl IntoIterator<Item = Input>,
    targets: impl IntoIterator<Item = *mut u8>,
    scratch: &mut FoldScratch,
) -> Result<()> {
    let reducer = Reducer::new(dtype, op)?;
    if elements == 0 {
        return Ok(());
    }
    let sources = inputs.into_iter().map(|input| Source {
        addr: input.addr,
        scalar: input.scalar,
    });
    let job = scratch.0.job(elements, sources, targets);
    // SAFETY: By the caller.
    unsafe { reducer.run(job) };
    Ok(())
}
