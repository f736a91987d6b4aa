//! Typed, counted memory that is safe to use on any stream.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use crate::addr::{Operand, WindowSlice};
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{Misuse, Result};
use crate::memory::Memory;
use crate::order;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// Elements in counted memory of a device.
///
/// Contents are read and written through methods that order themselves after the last use, on
/// whatever stream that was. Queued work and captured graphs keep the memory, so dropping a buffer
/// at any time is safe. A clone and a [slice](Buffer::slice) are handles on the same elements.
#[derive(Clone)]
pub struct Buffer<T: Element> {
    device: Arc<dyn Device>,
    memory: Memory,
    offset: usize,
    count: usize,
    window: Option<WindowSlice>,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> Buffer<T> {
    /// `count` elements of ordinary memory, all zero bytes.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::error::ErrorKind::OutOfMemory), and those of the write.
    pub fn zeroed(device: &Arc<dyn Device>, count: usize, stream: &Stream) -> Result<Self> {
        let buffer = Self::allocate(device, count)?;
        buffer.write_bytes(&vec![0; buffer.bytes()], stream)?;
        Ok(buffer)
    }

    /// A copy of the slice in ordinary memory.
    ///
    /// # Errors
    ///
    /// As [`Buffer::zeroed`].
    pub fn from_slice(device: &Arc<dyn Device>, values: &[T], stream: &Stream) -> Result<Self> {
        let mut buffer = Self::allocate(device, values.len())?;
        buffer.write(values, stream)?;
        Ok(buffer)
    }

    fn allocate(device: &Arc<dyn Device>, count: usize) -> Result<Self> {
        // An empty buffer still has an owner, so it takes a byte.
        let memory = device.allocate(T::DTYPE.bytes(count)?.max(1))?;
        Ok(Self::over(Arc::clone(device), memory, count, None))
    }

    /// The first `count` elements of `memory`, which starts at `window`.
    pub(crate) fn over(
        device: Arc<dyn Device>,
        memory: Memory,
        count: usize,
        window: Option<WindowSlice>,
    ) -> Self {
        Self {
            device,
            memory,
            offset: 0,
            count,
            window,
            element: PhantomData,
        }
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where the elements lie in symmetric memory.
    #[must_use]
    pub fn window(&self) -> Option<WindowSlice> {
        self.window
    }

    /// A handle on some of the elements, counted like any other.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchElements`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.count,
        };
        if start > end || end > self.count {
            let count = self.count;
            return Err(Misuse::NoSuchElements { start, end, count }.into());
        }
        let skipped = start * size_of::<T>();
        Ok(Self {
            offset: self.offset + skipped,
            count: end - start,
            window: self.window.map(|window| window.advance(skipped)),
            ..self.clone()
        })
    }

    /// Writes all elements, after the last use of the buffer, and waits for that.
    ///
    /// # Errors
    ///
    /// [`Misuse::WrongCount`], [`Misuse::BlocksInCapture`], and the stream's asynchronous error.
    pub fn write(&mut self, values: &[T], stream: &Stream) -> Result<()> {
        if values.len() != self.count {
            return Err(Misuse::WrongCount {
                which: "values",
                expected: self.count,
                actual: values.len(),
            }
            .into());
        }
        // SAFETY: `T: Element` has no padding, so its bytes are initialised.
        let bytes = unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values))
        };
        self.write_bytes(bytes, stream)
    }

    fn write_bytes(&self, bytes: &[u8], stream: &Stream) -> Result<()> {
        let dst = self.operand().addr;
        let device = &*self.device;
        refuse_capture(device, stream, "write")?;
        order::exclusively(device, &mut [&self.memory], stream, || {
            // SAFETY: The bytes lie in counted memory of this device, and the stream is ordered
            // after its last user, whose lock is held.
            unsafe { device.write(dst, bytes, stream) }
        })
    }

    /// Reads all elements, after the last use of the buffer, and waits for that.
    ///
    /// # Errors
    ///
    /// As [`Buffer::write`].
    pub fn read_into(&self, values: &mut [T], stream: &Stream) -> Result<()> {
        if values.len() != self.count {
            return Err(Misuse::WrongCount {
                which: "values",
                expected: self.count,
                actual: values.len(),
            }
            .into());
        }
        let length = size_of_val(values);
        // SAFETY: `T: Element` has no padding and every bit pattern is valid for it.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), length) };
        let src = self.operand().addr;
        let device = &*self.device;
        refuse_capture(device, stream, "read")?;
        order::exclusively(device, &mut [&self.memory], stream, || {
            // SAFETY: As in `write_bytes`.
            unsafe { device.read(bytes, src, stream) }
        })
    }

    /// All elements, after the last use of the buffer; waits for that.
    ///
    /// # Errors
    ///
    /// As [`Buffer::write`].
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>> {
        // SAFETY: Every bit pattern is valid for `T: Element`, zeros among them.
        let zero = unsafe { std::mem::zeroed::<T>() };
        let mut values = vec![zero; self.count];
        self.read_into(&mut values, stream)?;
        Ok(values)
    }

    fn bytes(&self) -> usize {
        self.count * size_of::<T>()
    }
}

fn refuse_capture(device: &dyn Device, stream: &Stream, what: &'static str) -> Result<()> {
    if stream.device() == device.id() && device.capture_state(stream)?.is_some() {
        return Err(Misuse::BlocksInCapture { what }.into());
    }
    Ok(())
}

// SAFETY: The operand lies in the counted memory, and all access to it orders itself through it.
unsafe impl<T: Element> Tensor for Buffer<T> {
    fn operand(&self) -> Operand {
        Operand {
            addr: self.memory.addr().offset(self.offset),
            bytes: self.bytes(),
            window: self.window,
        }
    }

    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn owner(&self) -> Option<&Memory> {
        Some(&self.memory)
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer<{}>({} at {:?}",
            T::DTYPE,
            self.count,
            self.operand().addr
        )?;
        if let Some(window) = self.window {
            write!(f, ", {} + {:#x}", window.window, window.offset)?;
        }
        f.write_str(")")
    }
}
