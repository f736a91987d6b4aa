//! What a backend is given at once: copies, the calls between them, and the stream they go to.
//!
//! There is no other way in. A call is one submission; one whose operands are copied through scratch takes
//! its copies along. Where operations do not [drain](crate::communicator::Capabilities::drains), a call on
//! windows is three: copies in and calls, a barrier, copies out. Members of a group have no order, so the
//! barrier is no member of the group that it follows.

use crate::addr::Addr;
use crate::collective::Collective;
use crate::communicator::Communicator;
use crate::device::Device;
use crate::error::{Error, Misuse, Result};
use crate::rank::CaptureId;
use crate::stream::StreamRef;

/// Copies, then calls as one group, then copies, in stream order.
///
/// What [`Communicator::enqueue`] takes. Without calls it is local: the copies run, and no other rank
/// hears of it.
///
/// ```
/// use collectives_core::collective::Collective;
/// use collectives_core::communicator::Communicator;
/// use collectives_core::error::Result;
/// use collectives_core::stream::StreamRef;
/// use collectives_core::submission::Submission;
///
/// fn barrier(comm: &mut dyn Communicator, stream: &StreamRef) -> Result<()> {
///     let submission = Submission::checked(comm, &[Collective::BARRIER], stream)?;
///     // SAFETY: A barrier has no operands, and was checked.
///     unsafe { comm.enqueue(&submission) }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// Copies before the calls.
    pub copies_in: &'a [Copy],
    /// The calls; several are a group.
    pub calls: &'a [Collective<'a>],
    /// Copies after them.
    pub copies_out: &'a [Copy],
    /// The stream that all of it goes to.
    pub stream: &'a StreamRef,
    /// What [`Device::capture_state`] said of the stream.
    pub capture: Option<CaptureId>,
    /// What the calls run on.
    pub kernel: KernelChoice,
}

/// A copy between two ranges of one device, as [`Device::copy`] makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where the bytes go.
    pub dst: Addr,
    /// Where they come from; the ranges do not overlap.
    pub src: Addr,
    /// How many there are.
    pub bytes: usize,
}

/// Which kernels the calls of a submission may run on; equal on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelChoice {
    /// Whichever the library chooses.
    #[default]
    Any,
    /// A call whose operands lie in windows, as a row of the table of paths wants them, runs on a
    /// symmetric kernel or fails before anything moves. Where a backend does not
    /// [force kernels](crate::communicator::Capabilities::forces_kernels), the same as `Any`.
    Symmetric,
}

impl<'a> Submission<'a> {
    /// Nothing yet, on a stream of which the device said this.
    #[inline(always)]
    #[must_use]
    pub const fn on(stream: &'a StreamRef, capture: Option<CaptureId>) -> Self {
        Self {
            copies_in: &[],
            calls: &[],
            copies_out: &[],
            stream,
            capture,
            kernel: KernelChoice::Any,
        }
    }

    /// Calls as one group, for a caller who has not checked them: shapes, overlap within the group and
    /// the stream are, and the device is asked whether the stream captures.
    ///
    /// What is left to promise is what [`Communicator::enqueue`] says of operands.
    ///
    /// # Errors
    ///
    /// The [`Misuse`] that was found and the stream's asynchronous error, as
    /// [`Communicator::refused`] tells it.
    pub fn checked<C: Communicator + ?Sized>(
        comm: &mut C,
        calls: &'a [Collective<'a>],
        stream: &'a StreamRef,
    ) -> Result<Self> {
        match check(comm, calls, stream) {
            Ok(capture) => Ok(Self {
                calls,
                ..Self::on(stream, capture)
            }),
            Err(error) => {
                let info = comm.info();
                let error = error.on_backend(info.backend).on_rank(info.rank);
                Err(comm.refused(calls, error))
            }
        }
    }

    /// Makes the copies on a device, one by one, and between them what `enqueue` does with the calls:
    /// for a backend that has nothing better.
    ///
    /// # Errors
    ///
    /// Those of [`Device::copy`] and of `enqueue`; nothing is enqueued after the first.
    ///
    /// # Safety
    ///
    /// As for [`Communicator::enqueue`].
    pub unsafe fn copy_around(
        &self,
        device: &dyn Device,
        enqueue: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let make = |copy: &Copy| {
            // SAFETY: The caller promises ranges as `Device::copy` wants them ("The copies").
            unsafe { device.copy(copy.dst, copy.src, copy.bytes, self.stream) }
        };
        self.copies_in.iter().try_for_each(make)?;
        if !self.calls.is_empty() {
            enqueue()?;
        }
        self.copies_out.iter().try_for_each(make)
    }
}

fn check<C: Communicator + ?Sized>(
    comm: &C,
    calls: &[Collective<'_>],
    stream: &StreamRef,
) -> Result<Option<CaptureId>> {
    let (info, device) = (comm.info(), comm.device());
    check_stream(stream, device.id())?;
    for call in calls {
        call.check(info.rank, info.world_size)?;
    }
    check_disjoint(calls)?;
    device.capture_state(stream)
}

/// Refuses a stream of another device.
#[inline(always)]
pub(crate) fn check_stream(stream: &StreamRef, device: crate::rank::DeviceId) -> Result<()> {
    match stream.device() == device {
        true => Ok(()),
        false => Err(Error::from(Misuse::WrongDevice { what: "the stream" })),
    }
}

/// Refuses a group in which one call writes what another reads or writes: members run in no particular
/// order.
pub(crate) fn check_disjoint(calls: &[Collective<'_>]) -> Result<()> {
    for (index, left) in calls.iter().enumerate() {
        for right in &calls[index + 1..] {
            if left.recv.overlaps(right.recv)
                || left.recv.overlaps(right.send)
                || left.send.overlaps(right.recv)
            {
                return Err(Misuse::Overlap.into());
            }
        }
    }
    Ok(())
}
