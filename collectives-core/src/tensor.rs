//! What users hand to a collective.

use crate::addr::{Addr, Operand};
use crate::dtype::{DType, Element};
use crate::memory::Memory;

/// A contiguous run of elements on a device, which a collective may read or write.
///
/// [`Buffer`](crate::buffer::Buffer) is the safe, counted one. A framework implements this for its
/// own tensor type, or wraps a raw address in a [`RawTensor`].
///
/// # Safety
///
/// The operand is valid for reads, and for writes where it is passed as `&mut`, by the device it
/// was made for. With an owner, the operand lies inside it, and every other use of those bytes
/// orders itself through the same owner. Without one, the implementer promises what
/// [`RawTensor::new`] asks for.
pub unsafe trait Tensor {
    /// The bytes, and where they lie in symmetric memory.
    fn operand(&self) -> Operand;

    /// The type of the elements.
    fn dtype(&self) -> DType;

    /// The counted memory behind it, if there is one.
    fn owner(&self) -> Option<&Memory>;

    /// The number of elements.
    fn count(&self) -> usize {
        self.operand().bytes / self.dtype().size()
    }
}

/// Somebody else's memory, by its address.
#[derive(Clone, Copy, Debug)]
pub struct RawTensor {
    operand: Operand,
    dtype: DType,
}

impl RawTensor {
    /// The tensor at an operand.
    ///
    /// # Safety
    ///
    /// The operand must be valid for the device of every communicator it is passed to, from the
    /// call on until the work on the stream has finished; if the stream captures, until the graph
    /// and all its executables are gone. Nothing unordered with the stream may use it meanwhile.
    /// All ranks must pass the same window and offset to one call, and the operand must lie there.
    #[must_use]
    pub const unsafe fn new(operand: Operand, dtype: DType) -> Self {
        Self { operand, dtype }
    }

    /// The tensor of `count` elements at `pointer`, in ordinary memory.
    ///
    /// # Safety
    ///
    /// As [`RawTensor::new`].
    #[must_use]
    pub const unsafe fn from_ptr<T: Element>(pointer: *mut T, count: usize) -> Self {
        Self {
            operand: Operand::new(
                Addr::from_ptr(pointer),
                count.saturating_mul(size_of::<T>()),
            ),
            dtype: T::DTYPE,
        }
    }
}

// SAFETY: The constructors' contracts are this trait's.
unsafe impl Tensor for RawTensor {
    fn operand(&self) -> Operand {
        self.operand
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn owner(&self) -> Option<&Memory> {
        None
    }
}
