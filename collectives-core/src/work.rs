//! What a caller who has checked its operations has enqueued at once.

use crate::addr::Addr;
use crate::collective::Collective;
use crate::communicator::Communicator;
use crate::device::Device;
use crate::error::Result;
use crate::stream::StreamRef;

/// A copy between two ranges of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where the bytes go.
    pub dst: Addr,
    /// Where they come from; the ranges do not overlap.
    pub src: Addr,
    /// How many there are.
    pub bytes: usize,
}

/// Copies, then operations as one group, then copies, in stream order: what a call becomes that is
/// staged.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a, 'c> {
    /// Copies before the operations.
    pub into: &'a [Copy],
    /// The operations.
    pub calls: &'a [Collective<'c>],
    /// Copies after them.
    pub out: &'a [Copy],
}

impl<'a, 'c> Work<'a, 'c> {
    /// Operations without copies.
    #[must_use]
    pub const fn of(calls: &'a [Collective<'c>]) -> Self {
        Self {
            into: &[],
            calls,
            out: &[],
        }
    }

    /// Enqueues the copies on the communicator's device, one by one, and the operations as one group
    /// between them: what [`Communicator::enqueue_checked`] is where a backend has nothing better.
    ///
    /// # Errors
    ///
    /// As [`Device::copy`] and [`Communicator::enqueue`].
    ///
    /// # Safety
    ///
    /// As for [`Communicator::enqueue_checked`].
    pub unsafe fn enqueue_each<C: Communicator + ?Sized>(
        &self,
        comm: &mut C,
        stream: &StreamRef,
    ) -> Result<()> {
        let copy = |device: &dyn Device, copy: &Copy| {
            // SAFETY: By the caller.
            unsafe { device.copy(copy.dst, copy.src, copy.bytes, stream) }
        };
        let mut into = self.into.iter();
        into.try_for_each(|each| copy(&**comm.device(), each))?;
        // SAFETY: By the caller.
        unsafe { comm.enqueue(self.calls, stream) }?;
        let mut out = self.out.iter();
        out.try_for_each(|each| copy(&**comm.device(), each))
    }
}
