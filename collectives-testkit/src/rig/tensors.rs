//! Inputs of a round, and every element compared with what it must be.

use std::marker::PhantomData;

use collectives_core::addr::Operand;
use collectives_core::buffer::Buffer;
use collectives_core::device::Device;
use collectives_core::dtype::{DType, Element};
use collectives_core::error::{Misuse, Result};
use collectives_core::kernel;
use collectives_core::memory::Memory;
use collectives_core::reduce::ReduceOp;
use collectives_core::stream::Stream;
use collectives_core::tensor::Tensor;

use super::{Handle, Rig};
use crate::case::{Failure, Outcome};
use crate::ensure;
use crate::values::{self, Exact};

/// Counted memory as a tensor.
#[derive(Debug)]
pub struct Part<T> {
    memory: Memory,
    of: PhantomData<fn() -> T>,
}

// SAFETY: The operand is the memory, which is the owner.
unsafe impl<T: Element> Tensor for Part<T> {
    fn operand(&self) -> Operand {
        Operand::new(self.memory.addr(), self.memory.bytes())
    }

    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn owner(&self) -> Option<&Memory> {
        Some(&self.memory)
    }
}

impl Rig<'_> {
    /// Some memory as a tensor, for a case that uses it on one stream.
    #[must_use]
    pub const fn part_as<T: Element>(memory: Memory) -> Part<T> {
        let of = PhantomData;
        Part { memory, of }
    }

    /// Runs a kernel that is no collective: it copies a buffer into another that is no longer.
    ///
    /// # Errors
    ///
    /// Where it would leave the first or the two overlap, and those of [`kernel::launch`].
    pub fn duplicate<T: Element>(
        device: &dyn Device,
        from: &Buffer<T>,
        to: &mut Buffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        let target = to.operand();
        let source = from.operand().slice(0, target.bytes)?;
        if source.overlaps(target) {
            return Err(Misuse::Overlap.into());
        }
        kernel::launch(device, &[to, from], stream, || {
            // SAFETY: The ranges lie in the buffers, are equally long and do not overlap;
            // `kernel::launch` keeps the buffers and orders the copy among their uses.
            unsafe { device.copy(target.addr, source.addr, target.bytes, stream) }
        })
    }

    /// A buffer with this rank's input of a round.
    ///
    /// # Errors
    ///
    /// As [`Buffer::from_slice`].
    pub fn tensor<T: Exact>(&self, count: usize, round: usize) -> Result<Buffer<T>> {
        let values = values::input(self.rank(), self.ranks(), count, round);
        Buffer::from_slice(&self.device, &values, &self.stream)
    }

    /// This rank's input of a round.
    #[must_use]
    pub fn input<T: Exact>(&self, count: usize, round: usize) -> Vec<T> {
        values::input(self.rank(), self.ranks(), count, round)
    }

    /// Fails unless every element is the sum of all ranks' inputs of a round.
    ///
    /// # Errors
    ///
    /// Naming the first element that is not.
    pub fn expect_sum<T: Exact>(
        &self,
        what: &str,
        tensor: &Buffer<T>,
        round: usize,
        stream: &Stream,
    ) -> Outcome {
        let expected = values::sum::<T>(self.ranks(), tensor.len(), round);
        self.expect_all(what, tensor, &expected, stream)
    }

    /// Fails unless every element is as expected.
    ///
    /// # Errors
    ///
    /// Naming the first element that is not.
    pub fn expect_all<T: Exact>(
        &self,
        what: &str,
        tensor: &Buffer<T>,
        expected: &[T],
        stream: &Stream,
    ) -> Outcome {
        let found = tensor.read(stream)?;
        let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
        ensure!(found.len() == expected.len(), "{what}: lengths differ");
        match wrong {
            None => Ok(()),
            Some(index) => Err(Failure(format!(
                "{what}: element {index} of {} is {:?} and should be {:?}",
                found.len(),
                found[index],
                expected[index]
            ))),
        }
    }

    /// One eager all-reduce of this many bytes, checked.
    ///
    /// # Errors
    ///
    /// Those of the call, and a wrong element.
    pub fn eager(&self, handle: &mut Handle, bytes: usize, stream: &Stream) -> Outcome {
        let count = bytes / 4;
        let mut tensor = self.tensor::<f32>(count, 7)?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
        self.expect_sum("an eager call", &tensor, 7, stream)
    }
}
