//! One rank's device: streams, memory, copies and order.

mod graphs;
mod work;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use collectives_core::addr::Addr;
use collectives_core::device::Device;
use collectives_core::error::{CaptureFault, Error, ErrorKind, Misuse, Result};
use collectives_core::graph::Graphs;
use collectives_core::memory::Memory;
use collectives_core::rank::{CaptureId, DeviceId};
use collectives_core::stream::{Fence, Stream, StreamRef};

use crate::block::SharedPiece;
use crate::capture::{CopyNode, Step, copy_bytes};
use crate::event::Event;
use crate::fence::{HostFence, fence_of};
use crate::model::{Call, DeviceModel, StreamMode};
use crate::queue::{HostStream, Job, Queue, Turn, any_queue, queue_of, take_turn};
use crate::reaper::Reaper;
use crate::space::{MemoryReport, MemoryViolation, Space};

use graphs::not_capturing;

/// The backend's name.
pub(crate) const BACKEND: &str = "host";

/// One rank's device, whose memory is host memory and whose streams are queues of this process.
///
/// Streams, memory and graphs keep what they need of it, so they may outlive it.
#[derive(Debug)]
pub struct HostDevice {
    shared: Arc<Shared>,
}

/// What graphs need of their device.
pub(crate) struct Shared {
    id: DeviceId,
    model: DeviceModel,
    space: Arc<Space>,
    reaper: Arc<Reaper>,
    calls: [AtomicU64; Call::COUNT],
    captures: Arc<AtomicUsize>,
    launches: Mutex<()>,
}

impl HostDevice {
    /// A device that behaves as the model says.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) for a model that makes no sense.
    pub fn new(model: DeviceModel) -> Result<Arc<Self>> {
        model.check()?;
        let id = DeviceId::fresh();
        Ok(Arc::new(Self {
            shared: Arc::new(Shared {
                id,
                space: Arc::new(Space::new(id, &model)),
                reaper: Arc::new(Reaper::new(model.destructor_delay())),
                calls: [const { AtomicU64::new(0) }; Call::COUNT],
                captures: Arc::default(),
                launches: Mutex::new(()),
                model,
            }),
        }))
    }

    /// A new stream that runs as asked, whatever the model says.
    ///
    /// # Errors
    ///
    /// When the model refuses.
    pub fn create_stream_with(&self, mode: StreamMode) -> Result<Stream> {
        self.refuse(Call::Stream)?;
        Ok(Stream::new(Arc::new(HostStream::new(self.shared.id, mode))))
    }

    /// How the device behaves.
    #[must_use]
    pub fn model(&self) -> &DeviceModel {
        &self.shared.model
    }

    /// Whether nobody wrote where nobody may, so far.
    ///
    /// Meant for when the device is idle: it reads guards and freed memory, which only a mistake
    /// writes.
    ///
    /// # Errors
    ///
    /// The first violation that was found.
    pub fn check_memory(&self) -> Result<(), MemoryViolation> {
        self.shared.space.collect();
        self.shared.space.check()
    }

    /// What the device has lost to memory; memory that was not collected yet counts.
    #[must_use]
    pub fn memory_report(&self) -> MemoryReport {
        self.shared.space.report()
    }

    /// Bytes of symmetric memory that the device has lost, in whole granules.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.memory_report().mapped_bytes
    }

    /// Captures in progress.
    #[must_use]
    pub fn captures_active(&self) -> usize {
        self.shared.captures.load(Ordering::Acquire)
    }

    /// Calls of this kind so far, those included that the model refused.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.shared.calls[call.index()].load(Ordering::Relaxed)
    }

    /// Waits until the destructors of graphs that are gone have run, delays included.
    pub fn wait_for_destructors(&self) {
        self.shared.reaper.settle();
    }

    /// Invalidates the capture that the stream is part of, as a driver does after a forbidden call.
    ///
    /// # Errors
    ///
    /// When the stream does not capture.
    pub fn invalidate_capture(&self, stream: &StreamRef) -> Result<()> {
        let queue = queue_of(self.shared.id, stream)?;
        let recorder = queue.recorder().ok_or_else(not_capturing)?;
        recorder.invalidate();
        Ok(())
    }

    /// The queue behind a stream of this device.
    #[inline]
    pub(crate) fn queue<'a>(&self, stream: &'a StreamRef) -> Result<&'a Arc<Queue>> {
        queue_of(self.shared.id, stream)
    }

    /// Symmetric memory of at least `bytes` bytes, in whole granules.
    pub(crate) fn allocate_symmetric(&self, bytes: usize) -> Result<Memory> {
        self.shared.refuse_memory(Call::AllocateSymmetric, bytes)?;
        self.shared.space.allocate_symmetric(bytes)
    }

    /// Where other processes find this symmetric memory; nothing where they cannot.
    pub(crate) fn shared_pieces(&self, memory: &Memory) -> Vec<SharedPiece> {
        self.shared.space.shared_pieces(memory)
    }

    /// Symmetric memory that maps the block at `first`, if given, and that others can map too.
    pub(crate) fn allocate_arena(&self, bytes: usize, first: Option<Addr>) -> Result<Memory> {
        self.shared.refuse_memory(Call::AllocateSymmetric, bytes)?;
        self.shared.space.allocate_arena(bytes, first)
    }

    /// Whether the memory is symmetric memory of this device.
    pub(crate) fn is_symmetric(&self, memory: &Memory) -> bool {
        self.shared.space.is_symmetric(memory)
    }

    /// Whether a launch settles what its fence nodes wait for.
    #[cfg(test)]
    pub(crate) fn is_launching(&self) -> bool {
        self.shared.launches.try_lock().is_err()
    }

    /// Counts a call, which fails if the model says so.
    pub(crate) fn refuse(&self, call: Call) -> Result<()> {
        self.shared.refuse(call)
    }
}

impl Shared {
    pub(crate) fn id(&self) -> DeviceId {
        self.id
    }

    pub(crate) fn reaper(&self) -> &Arc<Reaper> {
        &self.reaper
    }

    /// One launch at a time settles what its fence nodes wait for.
    pub(crate) fn lock_launches(&self) -> MutexGuard<'_, ()> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn refuse(&self, call: Call) -> Result<()> {
        if self.is_refused(call) {
            let text = format!("the device model refuses this {}", call.name());
            return Err(Error::new(ErrorKind::System(text)).on_backend(BACKEND));
        }
        Ok(())
    }

    fn refuse_memory(&self, call: Call, bytes: usize) -> Result<()> {
        if self.is_refused(call) {
            return Err(self.space.out_of_memory(bytes).during(call.name()));
        }
        Ok(())
    }

    fn is_refused(&self, call: Call) -> bool {
        let k = self.calls[call.index()].fetch_add(1, Ordering::Relaxed) + 1;
        self.model.refuses(call, k)
    }

    fn queue_of<'a>(&self, stream: &'a StreamRef) -> Result<&'a Arc<Queue>> {
        queue_of(self.id, stream)
    }

    /// Makes `later` wait for `event`, which is taken before `later` gives out a position for the
    /// wait: an event that came after could be of a stream that waits for this very position.
    fn wait_for(
        &self,
        later: &Arc<Queue>,
        event: impl FnOnce() -> Option<Event>,
        captured: impl FnOnce() -> Result<Option<Step>>,
    ) -> Result<()> {
        let event = event();
        match take_turn(later)? {
            Turn::Inline(_turn) => {
                if let Some(event) = event {
                    event.wait();
                }
            }
            Turn::Queued(turn) => {
                if let Some(event) = event {
                    turn.push_job(Job::Wait(event));
                }
            }
            Turn::Captured(turn) => {
                if let Some(step) = captured()? {
                    turn.push_step(step);
                }
            }
        }
        Ok(())
    }

    /// Copies after everything on the stream, and waits for it.
    ///
    /// # Safety
    ///
    /// As for [`Device::copy`], until this returns.
    unsafe fn copy_and_wait(
        &self,
        dst: Addr,
        src: Addr,
        bytes: usize,
        stream: &StreamRef,
        what: &'static str,
    ) -> Result<()> {
        let queue = self.queue_of(stream)?;
        match take_turn(queue)? {
            Turn::Inline(_turn) => {
                // SAFETY: The caller promised valid ranges, and it is this stream's turn.
                unsafe { copy_bytes(dst, src, bytes) };
                Ok(())
            }
            Turn::Queued(turn) => {
                let position = turn.push_job(Job::Run(Box::new(move || {
                    // SAFETY: As above; the caller waits for this to have run or been dropped.
                    unsafe { copy_bytes(dst, src, bytes) };
                    Ok(())
                })));
                queue.progress().wait(position);
                queue.health()
            }
            Turn::Captured(_) => Err(Misuse::BlocksInCapture { what }.into()),
        }
    }
}

// SAFETY: Memory is released when its free hook was called, which runs after its last owner; a
// graph owns what was retained in `Owned`, which its template, executables and replays share;
// streams run work in order and on the given ranges; `synchronize` waits before it looks for
// errors.
unsafe impl Device for HostDevice {
    fn id(&self) -> DeviceId {
        self.shared.id
    }

    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn is_host(&self) -> bool {
        true
    }

    fn create_stream(&self) -> Result<Stream> {
        self.create_stream_with(self.shared.model.stream_mode())
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        self.shared.refuse_memory(Call::Allocate, bytes)?;
        self.shared.space.allocate(bytes)
    }

    fn capture_state(&self, stream: &StreamRef) -> Result<Option<CaptureId>> {
        self.shared.queue_of(stream)?.capture_state()
    }

    fn retain(&self, stream: &StreamRef, memory: Memory) -> Result<()> {
        let recorder = self.shared.queue_of(stream)?.recorder();
        let recorder = recorder.ok_or_else(not_capturing)?;
        recorder.check()?;
        recorder.retain(memory);
        Ok(())
    }

    unsafe fn copy(&self, dst: Addr, src: Addr, bytes: usize, stream: &StreamRef) -> Result<()> {
        let queue = self.shared.queue_of(stream)?;
        if bytes == 0 {
            return queue.capture_state().map(drop);
        }
        match take_turn(queue)? {
            Turn::Inline(_turn) => {
                // SAFETY: The caller promised valid ranges that do not overlap, and it is this
                // stream's turn.
                unsafe { copy_bytes(dst, src, bytes) };
            }
            Turn::Queued(turn) => turn.push(Box::new(move || {
                // SAFETY: As above, until the copy has run.
                unsafe { copy_bytes(dst, src, bytes) };
                Ok(())
            })),
            Turn::Captured(turn) => turn.push(Arc::new(CopyNode { dst, src, bytes })),
        }
        Ok(())
    }

    unsafe fn write(&self, dst: Addr, src: &[u8], stream: &StreamRef) -> Result<()> {
        let from = Addr::from_ptr(src.as_ptr().cast_mut());
        // SAFETY: `dst` is valid as the caller promised, and `src` is borrowed until it returns,
        // which is after the copy.
        unsafe {
            self.shared
                .copy_and_wait(dst, from, src.len(), stream, "write")
        }
    }

    unsafe fn read(&self, dst: &mut [u8], src: Addr, stream: &StreamRef) -> Result<()> {
        let to = Addr::from_ptr(dst.as_mut_ptr());
        // SAFETY: As for `write`, the other way round.
        unsafe {
            self.shared
                .copy_and_wait(to, src, dst.len(), stream, "read")
        }
    }

    fn order(&self, earlier: &StreamRef, later: &StreamRef) -> Result<()> {
        let (first, second) = (self.shared.queue_of(earlier)?, self.shared.queue_of(later)?);
        if Arc::ptr_eq(first, second) {
            return second.capture_state().map(drop);
        }
        let isolation = || Error::capture(CaptureFault::Isolation).during("order");
        let captures = first.recorder().map(|recorder| recorder.id());
        if captures != second.recorder().map(|recorder| recorder.id()) {
            return Err(isolation());
        }
        if captures.is_some() {
            // One recording is one sequence, so the order is there already.
            return second.capture_state().map(drop);
        }
        if second.capture_state()?.is_none() && first.progress().is_idle() {
            return Ok(());
        }
        self.shared
            .wait_for(second, || Event::of(first), || Err(isolation()))
    }

    fn create_fence(&self) -> Result<Fence> {
        self.refuse(Call::Fence)?;
        Ok(Fence::new(Arc::new(HostFence::new(self.shared.id))))
    }

    fn wait(&self, fence: &Fence, stream: &StreamRef) -> Result<()> {
        let host = fence_of(self.shared.id, fence)?;
        let queue = self.shared.queue_of(stream)?;
        if queue.capture_state()?.is_none() && host.latest_for(queue).is_none() {
            return Ok(());
        }
        self.shared.wait_for(
            queue,
            || host.latest_for(queue),
            || Ok(Some(Step::Wait(fence.clone()))),
        )
    }

    fn record(&self, fence: &Fence, stream: &StreamRef) -> Result<()> {
        let host = fence_of(self.shared.id, fence)?;
        let queue = self.shared.queue_of(stream)?;
        if queue.capture_state()?.is_none() {
            host.record(Event::of(queue));
            return Ok(());
        }
        match take_turn(queue)? {
            Turn::Captured(turn) => turn.push_step(Step::Record(fence.clone())),
            // The capture ended meanwhile.
            Turn::Inline(_) | Turn::Queued(_) => host.record(Event::of(queue)),
        }
        Ok(())
    }

    fn record_eager(&self, fence: &Fence, stream: &StreamRef) -> Result<()> {
        let host = fence_of(self.shared.id, fence)?;
        let queue = self.shared.queue_of(stream)?;
        // Recording takes no positions, so what is enqueued is the eager work alone. Positions of
        // a stream that failed complete too, so its error is no reason to refuse.
        host.record(Event::of(queue));
        Ok(())
    }

    fn query(&self, stream: &StreamRef) -> Result<bool> {
        let queue = self.shared.queue_of(stream)?;
        queue.health()?;
        if queue.recorder().is_some() {
            return Err(Misuse::BlocksInCapture { what: "query" }.into());
        }
        Ok(queue.progress().is_idle())
    }

    fn synchronize(&self, stream: &StreamRef) -> Result<()> {
        if let Some(queue) = any_queue(stream) {
            queue.progress().wait(queue.progress().enqueued());
        }
        let queue = self.shared.queue_of(stream)?;
        queue.health()?;
        if queue.recorder().is_some() {
            return Err(Misuse::BlocksInCapture {
                what: "synchronize",
            }
            .into());
        }
        Ok(())
    }

    fn collect(&self) {
        self.shared.space.collect();
    }

    fn graphs(&self) -> Option<&dyn Graphs> {
        Some(self)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("id", &self.id)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "device/tests.rs"]
mod tests;
