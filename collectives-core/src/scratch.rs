//! Scratch: where tensors that live in ordinary memory are staged through.
//!
//! Three sizes, never confused: a *request* is what one call needs; a *capacity* is what the policy
//! asked for; *mapped* bytes are whole granules, what the device lost.

use std::fmt;
use std::sync::Arc;

use crate::addr::{Operand, WindowSlice};
use crate::communicator::{Communicator, Deferred};
use crate::device::Device;
use crate::error::{Error, Misuse, Result};
use crate::memory::Memory;
use crate::path::Reason;
use crate::rank::{CaptureId, StreamId};
use crate::stats::Stats;
use crate::stream::StreamRef;

/// The alignment, in bytes, of every slot and of every part of a lease.
pub const SCRATCH_ALIGNMENT: usize = 4096;

/// A slot of a scratch allocator: its generation, equal on all ranks and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u64);

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

/// How much scratch one call needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Bytes, more than zero.
    pub bytes: usize,
}

impl Request {
    /// A request for `bytes` bytes.
    #[must_use]
    pub const fn new(bytes: usize) -> Self {
        Self { bytes }
    }
}

/// Which calls an allocator wants staged in pieces: one after another, on one stream, through one
/// lease of a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splitting {
    /// Bytes of the lease that a call goes through which needs more than that.
    pub piece: usize,
    /// The most bytes of scratch that such a call may need; one that needs more is asked for whole, so
    /// that the allocator refuses it as its rules say.
    pub up_to: usize,
}

impl Splitting {
    /// No call is split.
    pub(crate) const NEVER: Self = Self {
        piece: usize::MAX,
        up_to: usize::MAX,
    };
}

/// Which uses share slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Domain {
    /// All streams and captures of the communicator.
    #[default]
    Shared,
    /// One stream.
    Stream(StreamId),
    /// One capture.
    Graph(CaptureId),
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => f.write_str("shared"),
            Self::Stream(id) => write!(f, "stream {id}"),
            Self::Graph(id) => write!(f, "graph {id}"),
        }
    }
}

/// What an allocator hands out, and how it gets it back.
///
/// One implementation per allocator; [`Lease`] calls exactly one of the two methods, once.
pub trait LeaseHold: fmt::Debug + Send + Sync {
    /// All work on the lease has been enqueued on its stream: orders later users after it.
    ///
    /// # Errors
    ///
    /// When the order could not be enqueued; the slot is given back nevertheless.
    fn complete(&self) -> Result<()>;

    /// The lease is dropped without that, after an error or a panic; must not panic.
    fn abandon(&self);
}

/// The right to use a range of one slot, on one stream, until it is given back.
///
/// It is move-only and has no lifetime, so that it can be kept where a borrow could not; if it is
/// forgotten its slot stays busy for ever, and is never handed out again. The range lies inside
/// one window, at an offset equal on all ranks; live leases never overlap. It owns the slot's
/// memory, so that the bytes outlive it whatever its allocator does.
#[derive(Debug)]
#[must_use]
pub struct Lease {
    operand: Operand,
    slot: SlotId,
    /// Gone when it has ended.
    held: Option<Held>,
}

/// What a lease owns, and how it ends.
#[derive(Debug)]
struct Held {
    memory: Memory,
    hold: Arc<dyn LeaseHold>,
}

impl Lease {
    /// A lease of the first `bytes` bytes of a slot's memory, whose window starts at `window`, and which
    /// is given back through `hold`.
    ///
    /// # Errors
    ///
    /// [`Misuse::OutOfBounds`] when the memory is smaller.
    #[inline(always)]
    pub fn new(
        memory: Memory,
        bytes: usize,
        window: WindowSlice,
        slot: SlotId,
        hold: Arc<dyn LeaseHold>,
    ) -> Result<Self> {
        if bytes > memory.bytes() {
            return Err(too_short(&memory, bytes));
        }
        Ok(Self {
            operand: Operand::new(memory.addr(), bytes).in_window(window),
            slot,
            held: Some(Held { memory, hold }),
        })
    }

    /// The lease as a decorator hands it on: the same range, given back through `hold`, which keeps
    /// this lease and ends it.
    pub fn seen_through(&self, hold: Arc<dyn LeaseHold>) -> Self {
        let memory = self.held.as_ref().map(|held| held.memory.clone());
        Self {
            operand: self.operand,
            slot: self.slot,
            held: memory.map(|memory| Held { memory, hold }),
        }
    }

    /// Whether it is given back through this very `hold`.
    #[inline(always)]
    #[must_use]
    pub fn ends_through<H: LeaseHold>(&self, hold: &Arc<H>) -> bool {
        let own = self.held.as_ref().map(|held| Arc::as_ptr(&held.hold));
        own.is_some_and(|own| std::ptr::addr_eq(own, Arc::as_ptr(hold)))
    }

    /// Ends the lease without giving it back, for an allocator that has its own back and does itself
    /// what the hold would have done: what it was made of, to make the next one of.
    #[inline(always)]
    #[must_use]
    pub fn into_parts(mut self) -> Option<(Memory, Arc<dyn LeaseHold>)> {
        self.held.take().map(|held| (held.memory, held.hold))
    }

    /// Exactly the bytes requested, in a window.
    #[must_use]
    pub fn operand(&self) -> Operand {
        self.operand
    }

    /// The slot.
    #[must_use]
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Notes the stream that work on the lease is enqueued on, so that the bytes are not reused
    /// before that work has finished.
    #[inline(always)]
    pub(crate) fn note_use(&self, stream: &StreamRef) {
        if let Some(held) = &self.held {
            held.memory.note_user(stream);
        }
    }

    /// Gives the lease back after all work on it has been enqueued on its stream.
    ///
    /// # Errors
    ///
    /// When the order with later users could not be enqueued.
    #[inline(always)]
    pub fn complete(mut self) -> Result<()> {
        self.held.take().map_or(Ok(()), |held| held.hold.complete())
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.hold.abandon();
        }
    }
}

#[cold]
fn too_short(memory: &Memory, bytes: usize) -> Error {
    let (offset, available) = (0, memory.bytes());
    Error::from(Misuse::OutOfBounds {
        offset,
        bytes,
        available,
    })
}

/// What a workload would cost, without spending it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Slots there would be, by the bytes their policy asks for.
    pub capacities: Vec<usize>,
    /// The sum of capacities.
    pub capacity_bytes: usize,
    /// The sum of whole granules.
    pub mapped_bytes: usize,
    /// Registrations still to be made.
    pub registrations: usize,
    /// Requests that would not be staged.
    pub refused: usize,
}

/// What a trim gave back, and what it could not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Trimmed {
    /// Slots retired.
    pub slots: usize,
    /// Mapped bytes freed.
    pub mapped_bytes: usize,
    /// Mapped bytes that leases or graphs still hold, on some rank.
    pub held_bytes: usize,
}

/// Hands out scratch in symmetric memory, for one communicator.
///
/// An allocator stores no communicator; every call gets it. All ranks make the same calls with the
/// same requests in the same order. A hit is local. `reserve`, `trim`, `close` and a miss outside
/// capture before the seal are collective, and every rank misses at the same call because a
/// decision depends only on what all ranks see.
///
/// # Implementer notes
///
/// The collectives trust an allocator with two things: leases that are out never overlap, and work
/// enqueued on the stream after `acquire` is ordered after the last use of the same bytes. One
/// that gets these wrong lets operations race for scratch. It cannot make them touch anything but
/// counted memory, since a lease owns what it lends.
///
/// "Is this slot leased" is equal on all ranks only while leases end in program order.
pub trait ScratchAllocator: fmt::Debug + Send {
    /// The policy's name.
    fn name(&self) -> &str;

    /// Scratch of at least this many bytes, for use on `stream`, of which the device said that it is
    /// part of this capture, or of none.
    ///
    /// While the stream captures, the graph owns the slot before this returns, and nothing is
    /// registered. Work enqueued on the stream after this is ordered after the slot's last use.
    ///
    /// # Errors
    ///
    /// [`Misuse::ZeroBytes`];
    /// [`NeedsReserve`](crate::error::ErrorKind::NeedsReserve) for a miss while capturing or
    /// sealed, [`Refused`](crate::error::ErrorKind::Refused) by cap, limit or policy,
    /// [`OutOfMemory`](crate::error::ErrorKind::OutOfMemory),
    /// [`PeerFailed`](crate::error::ErrorKind::PeerFailed) where a rank cannot make its slot for another
    /// reason, and those of [`Communicator::agree`]. The same on all ranks; the next request works.
    fn acquire(
        &mut self,
        comm: &mut dyn Communicator,
        request: Request,
        stream: &StreamRef,
        capture: Option<CaptureId>,
    ) -> Result<Lease>;

    /// Gives a lease back after all work on it has been enqueued on its stream, as
    /// [`Lease::complete`] does, which is what leases of others do here too. Local.
    ///
    /// An allocator that has its lease back on the thread that calls it may keep the owner for the next
    /// one, and need not count owners. A wrapper that does not pass this on is right, and slower.
    ///
    /// # Errors
    ///
    /// When the order with later users could not be enqueued; the slot is given back nevertheless.
    fn release(&mut self, lease: Lease) -> Result<()> {
        lease.complete()
    }

    /// Why the call should take the ordinary path after `acquire` failed with this error, or `None`
    /// if the error is final; a pure function of the error and the configuration.
    fn fallback_reason(&self, error: &Error) -> Option<Reason>;

    /// What these requests, one after another, would cost on top of what is kept; local, and nothing is
    /// spent.
    ///
    /// What a plan says is what [`reserve`](ScratchAllocator::reserve) does outside captures, as far as one
    /// rank can know: who holds slots on other ranks, and what is left of their budgets, `reserve` asks
    /// them.
    ///
    /// # Errors
    ///
    /// [`Misuse::ZeroBytes`].
    fn plan(&mut self, comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan>;

    /// Makes each of these requests a hit from now on; collective.
    ///
    /// All of them or none: where one is refused, by a rule or by a budget, nothing is registered for the
    /// others. Only memory that a device turns out not to have is found on the way.
    ///
    /// # Errors
    ///
    /// As [`ScratchAllocator::acquire`], and [`Misuse::Sealed`] after the seal unless all of them are hits
    /// already. The same on all ranks.
    fn reserve(&mut self, comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan>;

    /// Makes every later miss an error or a counted fallback.
    fn seal(&mut self);

    /// Retires every slot that no lease and no graph holds on any rank; collective.
    ///
    /// # Errors
    ///
    /// As [`Communicator::agree`], and
    /// [`CaptureFault::WindowChange`](crate::error::CaptureFault::WindowChange) on all ranks while a capture goes on, on any
    /// of them, that the allocator knows of.
    fn trim(&mut self, comm: &mut dyn Communicator) -> Result<Trimmed>;

    /// Retires what can be retired and hands the rest to the graphs that own it; collective.
    ///
    /// # Errors
    ///
    /// As [`Communicator::agree`]; the allocator is closed nevertheless.
    fn close(&mut self, comm: &mut dyn Communicator) -> Result<Deferred>;

    /// Everything counted so far.
    fn stats(&self) -> Stats;

    /// How many windows the communicator may have, its user's symmetric buffers among them; by default any
    /// number. Collective the first time, for ranks compare how they were configured.
    ///
    /// [`Collectives`](crate::collectives::Collectives) asks before it makes a buffer. A decorator that does
    /// not pass it on bounds scratch alone.
    ///
    /// # Errors
    ///
    /// As [`Communicator::agree`].
    fn max_windows(&mut self, comm: &mut dyn Communicator) -> Result<Option<usize>> {
        let _ = comm;
        Ok(None)
    }

    /// A call of the communicator is recorded into a capture on this stream, whether it takes scratch or not.
    ///
    /// [`Collectives`](crate::collectives::Collectives) says so once for each stream of a capture, so that an
    /// allocator leaves windows alone until the capture has ended. One that is not told knows of the
    /// captures that it lent scratch to.
    fn note_capture(&mut self, device: &dyn Device, capture: CaptureId, stream: &StreamRef) {
        let _ = (device, capture, stream);
    }

    /// Which calls are staged in pieces; by default none.
    ///
    /// The same on all ranks, and for as long as the allocator lives. A decorator that does not pass it
    /// on is right, and splits nothing.
    fn splitting(&self) -> Option<Splitting> {
        None
    }

    /// So many pieces of one call were enqueued, to be [counted](Stats::pieces). Between
    /// [`Collectives`](crate::collectives::Collectives) and the pool of `collectives-alloc`, and private to
    /// them: nobody else calls it or needs it, and it may go.
    #[doc(hidden)]
    fn note_pieces(&mut self, pieces: u64) {
        let _ = pieces;
    }
}

const _: Option<&dyn ScratchAllocator> = None;
