//! What users call: typed, checked, safe collectives with scratch.
//!
//! Every operation takes a stream, returns once its work is enqueued, and reports the path it
//! took. Tensors in ordinary memory are staged through a scratch slot where the backend's symmetric
//! kernel needs that; the operation then runs on exactly the requested bytes of the slot.
//!
//! All ranks make the same calls in the same order. Tensors of one call have equal windows and
//! offsets on all ranks: buffers from [`Collectives::symmetric_buffer`] do, at equal ranges.

mod average;
mod calibrate;
mod calibration;
mod effort;
mod enqueue;
mod group;
mod host;
mod operation;
mod ops;
mod pieces;
mod requests;
mod route;
mod rows;
mod run;
mod scope;
mod split;
mod staged;
mod switch;
mod symmetric;

pub use average::Averaged;
pub use calibration::{Calibration, Sample, Staged};
pub use group::Group;
pub use scope::HostScope;
pub use switch::Switch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::rows::Rows;
use crate::addr::WindowId;
use crate::bootstrap::DEFAULT_DEADLINE;
use crate::captures::Captures;
use crate::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use crate::device::Device;
use crate::error::Result;
use crate::memory::Memory;
use crate::no_scratch::NoScratch;
use crate::path::{Averaging, Fallback, Staging};
use crate::rank::{DeviceId, Rank};
use crate::scratch::{Plan, Request, ScratchAllocator, Splitting, Trimmed};
use crate::stats::Stats;
use crate::stream::Stream;
use crate::submission::{Copy, KernelChoice};

/// A communicator with its scratch: the handle users call.
///
/// `C` may be a backend's communicator, a decorated one or `Box<dyn Communicator>`; `A` a pool, a
/// decorated one, `Box<dyn ScratchAllocator>` or [`NoScratch`].
///
/// In the order of declaration: what every call reads comes first, on one cache line, because what a
/// native library does between two calls leaves nothing in the caches.
#[repr(C, align(64))]
pub struct Collectives<C, A = NoScratch> {
    device: Arc<dyn Device>,
    device_id: DeviceId,
    world_size: usize,
    rows: Rows,
    rank: Rank,
    staging: Staging,
    fallback: Fallback,
    /// What calls run on: symmetric kernels where the fallback is forbidden and the backend obeys.
    kernel: KernelChoice,
    look_up_addresses: bool,
    /// Whether there is symmetric memory.
    symmetric: bool,
    /// Whether an operation that has run is not read by peers any more.
    drains: bool,
    forces_kernels: bool,
    splitting: Splitting,
    scratch: A,
    comm: C,
    averaging: Averaging,
    deadline: Duration,
    /// The copies of one piece of a call, kept so that calls in pieces take nothing from the heap.
    copies: Vec<Copy>,
    /// Captures that calls of this handle were recorded into.
    captures: Captures,
    /// Windows behind users' symmetric buffers, in the order of registration.
    buffers: Vec<(Memory, WindowId)>,
    /// The stream of blocking calls on host slices, made when first needed.
    host_stream: Option<Stream>,
}

impl<C: Communicator> Collectives<C> {
    /// The handle without scratch, which never stages.
    pub fn without_scratch(comm: C) -> Self {
        let mut collectives = Self::new(comm, NoScratch);
        collectives.set_staging(Staging::Never);
        collectives
    }
}

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// The handle over a communicator and its scratch allocator.
    pub fn new(comm: C, scratch: A) -> Self {
        let CommInfo {
            rank, world_size, ..
        } = *comm.info();
        let Capabilities {
            symmetric,
            paths,
            drains,
            forces_kernels,
            ..
        } = comm.capabilities();
        Self {
            rows: Rows::of(paths, world_size),
            symmetric: symmetric.is_ok(),
            drains: *drains,
            forces_kernels: *forces_kernels,
            splitting: scratch.splitting().unwrap_or(Splitting::NEVER),
            device: Arc::clone(comm.device()),
            device_id: comm.device().id(),
            comm,
            scratch,
            rank,
            world_size,
            staging: Staging::default(),
            fallback: Fallback::default(),
            kernel: KernelChoice::Any,
            averaging: Averaging::default(),
            look_up_addresses: false,
            deadline: DEFAULT_DEADLINE,
            copies: Vec::new(),
            captures: Captures::default(),
            buffers: Vec::new(),
            host_stream: None,
        }
    }

    /// When to stage; may change between calls, alike on all ranks.
    pub fn set_staging(&mut self, staging: Staging) {
        self.staging = staging;
    }

    /// Whether a call that cannot take a symmetric path fails; may change between calls, alike on
    /// all ranks.
    pub fn set_fallback(&mut self, fallback: Fallback) {
        self.fallback = fallback;
        self.kernel = match fallback {
            Fallback::Forbid if self.forces_kernels => KernelChoice::Symmetric,
            _ => KernelChoice::Any,
        };
    }

    /// How gradients are averaged; may change between calls, alike on all ranks.
    pub fn set_averaging(&mut self, averaging: Averaging) {
        self.averaging = averaging;
    }

    /// How long ranks wait for each other when they [switch](Collectives::switch) and when
    /// symmetric buffers are made or given back; 300 s unless set.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Looks raw addresses up in the windows, so that a [`RawTensor`](crate::tensor::RawTensor)
    /// without a window slice is found to lie in one.
    ///
    /// # Safety
    ///
    /// All ranks must pass addresses at equal offsets of equal windows to one call, or addresses
    /// outside every window: the window is an argument of the collective, and one that ranks
    /// disagree on corrupts data silently on backends that do not compare calls.
    pub unsafe fn look_up_addresses(&mut self, on: bool) {
        self.look_up_addresses = on;
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Ranks in the communicator.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// The device that buffers and streams for this handle are made on.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The communicator.
    #[must_use]
    pub fn communicator(&self) -> &C {
        &self.comm
    }

    /// The communicator, for calls of its own.
    pub fn communicator_mut(&mut self) -> &mut C {
        &mut self.comm
    }

    /// The scratch allocator.
    #[must_use]
    pub fn scratch(&self) -> &A {
        &self.scratch
    }

    /// What the scratch allocator counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.scratch.stats()
    }

    /// The first failure the communicator knows of, this rank's or a peer's.
    ///
    /// # Errors
    ///
    /// That failure.
    pub fn health(&self) -> Result<()> {
        self.comm.abort_handle().health()
    }

    /// A handle that aborts while a call is blocked.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.comm.abort_handle()
    }

    /// What these requests would cost on top of what is kept; local and free. Requests are leases: of a
    /// call that is staged in pieces, what [`Collectives::request_for`] says.
    ///
    /// # Errors
    ///
    /// As [`ScratchAllocator::plan`].
    pub fn plan(&mut self, requests: &[Request]) -> Result<Plan> {
        self.scratch.plan(&mut self.comm, requests)
    }

    /// Makes each of these requests a hit from now on, or none of them; collective.
    ///
    /// # Errors
    ///
    /// As [`ScratchAllocator::reserve`].
    pub fn reserve(&mut self, requests: &[Request]) -> Result<Plan> {
        self.scratch.reserve(&mut self.comm, requests)
    }

    /// Makes every later miss an error or a counted fallback, as configured.
    pub fn seal(&mut self) {
        self.scratch.seal();
    }

    /// Gives back scratch and symmetric buffers that nobody uses on any rank; collective.
    ///
    /// # Errors
    ///
    /// As [`ScratchAllocator::trim`]; also where calls that took no scratch were captured.
    pub fn trim(&mut self) -> Result<Trimmed> {
        let scratch = self.scratch.trim(&mut self.comm)?;
        let buffers = self.retire_buffers("trim")?;
        Ok(Trimmed {
            slots: scratch.slots,
            mapped_bytes: scratch.mapped_bytes + buffers.mapped_bytes,
            held_bytes: scratch.held_bytes + buffers.held_bytes,
        })
    }

    /// Splits the communicator; the child has the scratch that `scratch` makes.
    ///
    /// # Errors
    ///
    /// As [`Communicator::split`].
    pub fn split<B: ScratchAllocator>(
        &mut self,
        color: Option<u32>,
        key: u32,
        scratch: impl FnOnce() -> Result<B>,
    ) -> Result<Option<Collectives<Box<dyn Communicator>, B>>> {
        let child = self.comm.split(color, key)?;
        child
            .map(|comm| Ok(Collectives::new(comm, scratch()?)))
            .transpose()
    }

    /// Ends scratch and communicator; every rank calls it. Never waits for graphs.
    ///
    /// What graphs still own is returned, and destroyed after the last of them.
    ///
    /// # Errors
    ///
    /// The first failure; everything is closed nevertheless.
    pub fn close(mut self) -> Result<Deferred> {
        let stream = self.host_stream.take();
        let settled = stream.map_or(Ok(()), |stream| self.device.synchronize(&stream));
        let scratch = self.scratch.close(&mut self.comm);
        let buffers = self.retire_buffers("close");
        let comm = self.comm.shutdown();
        settled?;
        let (scratch, _, comm) = (scratch?, buffers?, comm?);
        Ok(Deferred {
            windows: scratch.windows.max(comm.windows),
            mapped_bytes: scratch.mapped_bytes.max(comm.mapped_bytes),
            communicator: comm.communicator,
        })
    }
}

impl<C: fmt::Debug, A: fmt::Debug> fmt::Debug for Collectives<C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collectives")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("comm", &self.comm)
            .field("scratch", &self.scratch)
            .field("staging", &self.staging)
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}
