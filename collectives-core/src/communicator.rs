//! What a backend must do. Users call [`Collectives`](crate::collectives::Collectives).
//!
//! # Order across ranks
//!
//! All ranks of a communicator make the same collective calls in the same order: `enqueue`,
//! `agree`, `split`, `register`, `retire`. A group (a submission of several calls) is one call;
//! inside it, messages may meet in any order. `Drop` makes no collective call.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::addr::{Addr, WindowSlice};
use crate::agreement::Record;
use crate::collective::Collective;
use crate::device::Device;
use crate::error::{Error, Result, Unsupported};
use crate::memory::Memory;
use crate::path::PathTable;
use crate::rank::{CommId, Rank};
use crate::submission::Submission;
use crate::symmetric::SymmetricMemory;

/// One rank's end of a communicator.
///
/// It is `Send` and takes `&mut self`, because NCCL allows one thread at a time;
/// [`Shared`](crate::shared::Shared) adds a lock where a framework keeps it behind `&self`.
///
/// # Implementer notes
///
/// `enqueue` is `unsafe` because it relies on its caller for the operands; everything else is
/// safe. A backend whose operations meet on the host compares every call across ranks; others
/// leave that to a decorator and say so in [`Capabilities::compares_calls`].
pub trait Communicator: fmt::Debug + Send {
    /// Rank, world size and the sizes that govern symmetric memory.
    fn info(&self) -> &CommInfo;

    /// The device whose memory and streams this communicator uses.
    fn device(&self) -> &Arc<dyn Device>;

    /// What is fast here and what is extra; it changes nothing about what is right.
    fn capabilities(&self) -> &Capabilities;

    /// Enqueues copies in, the calls as one group and copies out, in this order, on the submission's
    /// stream.
    ///
    /// Returns before they have run, unless the stream runs them inline. Work enqueued later on the
    /// stream sees the results. While the stream captures, they become nodes of the graph, which
    /// replay on exactly these addresses. Each copy is an entry of the queue, or a node, of its own. A
    /// call without elements moves nothing; a backend that compares calls compares it like any other.
    /// A submission without calls is local: its copies run, and no other rank hears of it.
    ///
    /// # Implementer notes
    ///
    /// What can be found without another rank is found before the first copy: windows, and what the
    /// library cannot do. After calls that fail, no copy out is enqueued.
    /// [`Submission::copy_around`] makes the copies on the device.
    ///
    /// # Errors
    ///
    /// [`Misuse`](crate::error::Misuse) for operands that do not lie in the windows they name, before
    /// anything is enqueued; [`Unsupported`](crate::error::ErrorKind::Unsupported) likewise; a mismatch
    /// where the backend compares calls; the first failure once poisoned. An error found while a call
    /// runs surfaces when the stream is queried or synchronised.
    ///
    /// # Safety
    ///
    /// The calls: each has passed [`Collective::check`] as this rank passes it, and none writes what
    /// another reads or writes. The capture: it is what the device said of the stream, on which none
    /// has begun or ended since. [`Submission::checked`] sees to both.
    ///
    /// The operands: each is valid for the device until the call has run, and while capturing until the
    /// graph and all its executables are gone. Nothing unordered with the stream uses it meanwhile, on
    /// any rank. An operand that names a window lies at that offset of it, and all ranks pass the same
    /// window and offset; for the part of an in-place gather or scatter, the same offset of the whole
    /// that it is a part of.
    ///
    /// The copies: they are as [`Device::copy`] wants them, and where operations do not
    /// [drain](Capabilities::drains), none comes after calls that peers may read.
    unsafe fn enqueue(&mut self, submission: &Submission<'_>) -> Result<()>;

    /// Hears of a call that its caller refused, before anything of it was enqueued and before any other
    /// rank was asked about it; the error that the caller is to return.
    ///
    /// Each refusal is told once, by whoever checks: [`Collectives`](crate::collectives::Collectives)
    /// and [`Submission::checked`]. The calls are as far as they are known, and may be wrong in any way.
    ///
    /// # Implementer notes
    ///
    /// A backend gives the error back. What compares calls around a backend has other ranks learn of it,
    /// which may be waiting for this one in that comparison.
    fn refused(&mut self, calls: &[Collective<'_>], error: Error) -> Error;

    /// Exchanges one record with every rank, on the host, within a deadline.
    ///
    /// The outcome is fixed once for all ranks: either every rank gets all records, in rank order,
    /// or every rank gets an error. It waits for no stream and may be called while one captures.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::error::ErrorKind::Timeout) naming the absent ranks, the same on every
    /// rank; [`PeerFailed`](crate::error::ErrorKind::PeerFailed) and
    /// [`Aborted`](crate::error::ErrorKind::Aborted).
    fn agree(&mut self, mine: &Record, deadline: Duration) -> Result<Vec<Record>>;

    /// The window that contains `bytes` bytes at `addr`, wholly.
    ///
    /// Which window a rank finds is an argument of the collective that every rank must pass
    /// alike, so looking raw addresses up is opt-in.
    fn window_of(&self, addr: Addr, bytes: usize) -> Option<WindowSlice>;

    /// Symmetric memory, where this backend has it; otherwise
    /// [`Capabilities::symmetric`] says why not.
    fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory>;

    /// Splits into one communicator per color; ranks are ordered by `key`, then by old rank.
    ///
    /// Collective over this communicator. Windows are not inherited. `None` as the color means
    /// that this rank is in no child.
    ///
    /// # Errors
    ///
    /// As [`Communicator::agree`].
    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Communicator>>>;

    /// A handle that aborts this communicator while a call on it is blocked.
    fn abort_handle(&self) -> AbortHandle;

    /// Ends the communicator; idempotent, and collective in that every rank must call it.
    ///
    /// It waits for no graph: what graphs still own is returned and destroyed after the last of
    /// them. Leftover windows are deregistered in order before their memory goes. Every later
    /// call fails with [`Closed`](crate::error::ErrorKind::Closed).
    ///
    /// # Errors
    ///
    /// The first failure; the communicator is closed nevertheless.
    fn shutdown(&mut self) -> Result<Deferred>;
}

/// What a communicator is.
#[derive(Clone, Debug)]
pub struct CommInfo {
    /// This rank's end, never reused in the process.
    pub id: CommId,
    /// This rank.
    pub rank: Rank,
    /// Ranks in the communicator.
    pub world_size: usize,
    /// The backend's name.
    pub backend: &'static str,
    /// Bytes that symmetric memory is mapped in multiples of.
    pub granule: usize,
    /// Bytes of every mapped block that the backend keeps for itself (a signal pad).
    pub overhead: usize,
    /// Owned by graphs that captured a collective, so that the native communicator outlives them.
    pub token: Memory,
}

impl CommInfo {
    /// Bytes the device loses to symmetric memory of this capacity: whole granules.
    ///
    /// Saturates where the sum leaves the address space, so that limits refuse it.
    #[must_use]
    pub fn mapped(&self, capacity: usize) -> usize {
        capacity
            .saturating_add(self.overhead)
            .checked_next_multiple_of(self.granule.max(1))
            .unwrap_or(usize::MAX)
    }
}

/// What is fast on a backend and what is extra.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Whether there is symmetric memory, or why not.
    pub symmetric: Result<(), Unsupported>,
    /// The symmetric kernels, as data.
    pub paths: PathTable,
    /// Whether a finished operation means that every peer has finished reading this rank's
    /// operands. Where not, [`Collectives`](crate::collectives::Collectives) puts a barrier after
    /// every operation on windows, also into captures.
    pub drains: bool,
    /// Whether a collective that differs between ranks fails with the same typed error on all of
    /// them; messages may be compared by their two ranks alone.
    pub compares_calls: bool,
    /// Whether [`KernelChoice::Symmetric`](crate::submission::KernelChoice::Symmetric) is obeyed. Where
    /// not, which kernel runs stays a prediction.
    pub forces_kernels: bool,
    /// World sizes this communicator's backend supports.
    pub world: RangeInclusive<usize>,
}

/// What a closed communicator or allocator leaves to the last graph that owns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Deferred {
    /// Windows that graphs still own.
    pub windows: usize,
    /// Mapped bytes behind them.
    pub mapped_bytes: usize,
    /// Whether graphs still own the communicator itself.
    pub communicator: bool,
}

/// What an abort handle does, implemented by the backend.
pub trait Abort: fmt::Debug + Send + Sync {
    /// Aborts: blocked calls return, later calls fail. Idempotent; never blocks for long.
    fn abort(&self, cause: &str);
    /// The failure the communicator knows of, also one that another rank published.
    ///
    /// # Errors
    ///
    /// That failure.
    fn health(&self) -> Result<()>;
}

/// Aborts a communicator from another thread, also while a call on it is blocked.
#[derive(Clone, Debug)]
pub struct AbortHandle(Arc<dyn Abort>);

impl AbortHandle {
    /// The handle over a backend's implementation.
    #[must_use]
    pub fn new(abort: Arc<dyn Abort>) -> Self {
        Self(abort)
    }

    /// Aborts on every rank that this backend can reach; idempotent.
    pub fn abort(&self, cause: &str) {
        self.0.abort(cause);
    }

    /// Whether the communicator still works.
    ///
    /// # Errors
    ///
    /// The first failure, this rank's or a peer's.
    pub fn health(&self) -> Result<()> {
        self.0.health()
    }
}

const _: Option<&dyn Communicator> = None;
