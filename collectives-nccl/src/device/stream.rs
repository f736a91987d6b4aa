//! Streams of the driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{ptr, slice};

use collectives_core::error::{CaptureFault, Error, Misuse, Result};
use collectives_core::rank::{CaptureId, DeviceId, StreamId};
use collectives_core::stream::{StreamHandle, StreamRef};
use collectives_core::submission::Copy;

use super::event::Event;
use super::garbage::{Item, ready};
use super::pointer;
use super::shared::Shared;
use crate::driver::{
    CAPTURE_ACTIVE, CAPTURE_NONE, Driver, EVENT_DISABLE_TIMING, RawEvent, RawGraph, RawNode,
    RawStream, STREAM_NON_BLOCKING,
};

/// The handle behind a stream of this backend; all that a call asks of it is on one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct CudaStream {
    pub(crate) raw: RawStream,
    id: StreamId,
    device: DeviceId,
    driver: &'static Driver,
    owned: bool,
    pub(crate) state: Arc<StreamState>,
    shared: Arc<Shared>,
}

/// What communicators and watchdogs need of a stream; it may outlive the handle.
#[derive(Debug)]
pub(crate) struct StreamState {
    /// The first failure of an operation on it, which queries keep returning.
    failure: OnceLock<Error>,
    /// Behind the last eager work that had to be marked.
    tail: Event,
    marked: AtomicBool,
    /// For ordering other streams behind this one.
    order: Event,
    /// Held while a capture of ours begins, so that nothing is recorded across that moment.
    beginning: Mutex<()>,
}

/// A stream's capture, if it captures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capturing {
    pub(crate) id: CaptureId,
    pub(crate) graph: RawGraph,
}

/// Whether the work on a stream has finished.
#[derive(Debug)]
pub(crate) enum Settled {
    Yes,
    NotYet,
    /// When this event, which now belongs to the caller, is complete.
    When(RawEvent),
}

// SAFETY: The id comes from `cuStreamGetId`, which is unique for the life of the program, and is kept, as
// the device is; the stream is owned and destroyed after the handle, or its owner promised that it outlives it.
unsafe impl StreamHandle for CudaStream {
    fn id(&self) -> StreamId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn raw(&self) -> usize {
        self.raw.0.expose_provenance()
    }

    fn is_owned(&self) -> bool {
        !self.is_foreign()
    }
}

/// The stream behind `stream`, if it is one of this backend and this device.
#[inline(always)]
pub(crate) fn stream_of(device: DeviceId, stream: &StreamRef) -> Result<&CudaStream> {
    match stream.downcast::<CudaStream>() {
        Some(cuda) if cuda.device == device => Ok(cuda),
        _ => Err(wrong_stream()),
    }
}

#[cold]
fn wrong_stream() -> Error {
    Misuse::WrongDevice { what: "the stream" }.into()
}

impl CudaStream {
    /// A new stream, which waits for no other.
    pub(crate) fn create(shared: &Arc<Shared>) -> Result<Self> {
        let current = shared.context.enter_relaxed()?;
        let mut raw = RawStream::NULL;
        // SAFETY: `cuStreamCreate` (cuda.h, "Stream Management") writes one handle.
        unsafe {
            shared
                .driver()
                .stream_create(&raw mut raw, STREAM_NON_BLOCKING)
        }?;
        drop(current);
        Self::over(shared, raw, true)
    }

    /// Somebody else's stream.
    ///
    /// # Safety
    ///
    /// It outlives its last use through this handle.
    pub(crate) unsafe fn foreign(shared: &Arc<Shared>, raw: RawStream) -> Result<Self> {
        let current = shared.context.enter_relaxed()?;
        let mut context = crate::driver::RawContext::NULL;
        // SAFETY: `cuStreamGetCtx` (cuda.h, "Stream Management"): the stream is valid.
        unsafe { shared.driver().stream_get_context(raw, &raw mut context) }?;
        drop(current);
        if context != shared.context.raw {
            return Err(Misuse::WrongDevice { what: "the stream" }.into());
        }
        Self::over(shared, raw, false)
    }

    fn over(shared: &Arc<Shared>, raw: RawStream, owned: bool) -> Result<Self> {
        let current = shared.context.enter_relaxed()?;
        let mut id = 0;
        // SAFETY: `cuStreamGetId` (cuda.h, "Stream Management"): the stream is valid.
        unsafe { shared.driver().stream_get_id(raw, &raw mut id) }?;
        drop(current);
        Ok(Self {
            raw,
            id: StreamId::from_raw(id),
            device: shared.id,
            driver: shared.driver(),
            owned,
            state: Arc::new(StreamState {
                failure: OnceLock::new(),
                tail: Event::new(shared)?,
                marked: AtomicBool::new(false),
                order: Event::new(shared)?,
                beginning: Mutex::new(()),
            }),
            shared: Arc::clone(shared),
        })
    }

    /// Whether somebody else made it, so that captures may begin without our knowing.
    pub(crate) fn is_foreign(&self) -> bool {
        !self.owned
    }

    /// The failure of an operation that ran on it.
    #[inline(always)]
    pub(crate) fn health(&self) -> Result<()> {
        match self.state.failure.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// The capture it is part of.
    #[inline(always)]
    pub(crate) fn capturing(&self) -> Result<Option<Capturing>> {
        let mut status = CAPTURE_NONE;
        // SAFETY: `cuStreamIsCapturing` (cuda.h, "Stream Management"): the stream is valid.
        unsafe { self.driver.stream_is_capturing(self.raw, &raw mut status) }?;
        match status {
            CAPTURE_NONE => Ok(None),
            _ => self.capture_info(),
        }
    }

    #[cold]
    fn capture_info(&self) -> Result<Option<Capturing>> {
        Ok(self.capturing_after()?.map(|(capturing, _)| capturing))
    }

    /// The capture it is part of, and the nodes that its next work comes after.
    pub(crate) fn capturing_after(&self) -> Result<Option<(Capturing, Vec<RawNode>)>> {
        let (mut status, mut id, mut graph) = (CAPTURE_NONE, 0, RawGraph::NULL);
        let (mut nodes, mut count) = (ptr::null(), 0);
        // SAFETY: `cuStreamGetCaptureInfo` (cuda.h, "Stream Management"): the stream is valid.
        unsafe {
            self.driver.stream_get_capture_info(
                self.raw,
                &raw mut status,
                &raw mut id,
                &raw mut graph,
                &raw mut nodes,
                &raw mut count,
            )
        }?;
        match status {
            CAPTURE_NONE => Ok(None),
            CAPTURE_ACTIVE => {
                let id = CaptureId::from_raw(id);
                let after = match nodes.is_null() {
                    true => Vec::new(),
                    // SAFETY: The driver gave an array of this length, which is valid until the next
                    // call on the stream.
                    false => unsafe { slice::from_raw_parts(nodes, count) }.to_vec(),
                };
                Ok(Some((Capturing { id, graph }, after)))
            }
            _ => Err(Error::capture(CaptureFault::Invalidated)),
        }
    }

    /// Copies in stream order, with the context current; the caller marks the end.
    ///
    /// # Safety
    ///
    /// As for `Device::copy`.
    #[inline(always)]
    pub(crate) unsafe fn copy(&self, copies: &[Copy]) -> Result<()> {
        for copy in copies.iter().filter(|copy| copy.bytes > 0) {
            let (dst, src) = (pointer(copy.dst), pointer(copy.src));
            // SAFETY: `cuMemcpyDtoDAsync` (cuda.h, "Memory Management"): the ranges are valid and do
            // not overlap, by the caller.
            unsafe {
                self.driver
                    .copy_device_to_device(dst, src, copy.bytes, self.raw)
            }?;
        }
        Ok(())
    }

    /// Marks the end of the eager work so far. The stream does not capture.
    #[inline]
    pub(crate) fn mark(&self) -> Result<()> {
        // SAFETY: `cuEventRecord` (cuda.h, "Event Management"): both handles are valid.
        unsafe { self.driver.event_record(self.state.tail.raw, self.raw) }?;
        self.state.marked.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether all eager work on a stream of ours has finished. The context is current, in relaxed
    /// mode.
    pub(crate) fn is_idle(&self) -> bool {
        let driver = self.driver;
        let _beginning = self.lock_beginning();
        let queried = match (self.capturing(), self.tail()) {
            // SAFETY: `cuStreamQuery` (cuda.h, "Stream Management"): the stream is valid, and does
            // not capture, because captures of ours are kept away.
            (Ok(None), _) => unsafe { driver.stream_query(self.raw) },
            // What came before a capture was marked when it began.
            // SAFETY: `cuEventQuery` (cuda.h, "Event Management"): the state keeps the event.
            (_, Some(tail)) => unsafe { driver.event_query(tail) },
            (_, None) => Ok(()),
        };
        // A device that has failed runs nothing any more.
        ready(queried).unwrap_or(true)
    }

    /// The event behind the eager work that was marked, if any was.
    pub(crate) fn tail(&self) -> Option<RawEvent> {
        self.state.tail()
    }

    /// The event that other streams are ordered by.
    pub(crate) fn order_event(&self) -> RawEvent {
        self.state.order.raw
    }

    /// Keeps captures of ours from beginning on the stream.
    pub(crate) fn lock_beginning(&self) -> MutexGuard<'_, ()> {
        self.state
            .beginning
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the work enqueued through this crate has finished, or how to find out later.
    ///
    /// On a stream of somebody else all such work was marked, so that nothing has to be asked of a
    /// stream that may begin to capture at any moment.
    pub(crate) fn settled_or_event(&self) -> Result<Settled> {
        let driver = self.driver;
        let by_tail = || match self.tail() {
            None => Ok(Settled::Yes),
            Some(tail) => {
                // SAFETY: The state keeps the event.
                let settled = ready(unsafe { driver.event_query(tail) })?;
                Ok(if settled {
                    Settled::Yes
                } else {
                    Settled::NotYet
                })
            }
        };
        if self.is_foreign() {
            return by_tail();
        }
        let _beginning = self.lock_beginning();
        if !matches!(self.capturing(), Ok(None)) {
            return by_tail();
        }
        // SAFETY: `cuStreamQuery` (cuda.h, "Stream Management"): the stream is valid, and does not
        // capture, because captures of ours are kept away.
        if ready(unsafe { driver.stream_query(self.raw) })? {
            return Ok(Settled::Yes);
        }
        let mut event = RawEvent::NULL;
        // SAFETY: `cuEventCreate` (cuda.h, "Event Management") writes one handle.
        unsafe { driver.event_create(&raw mut event, EVENT_DISABLE_TIMING) }?;
        // SAFETY: Both handles are valid.
        unsafe { driver.event_record(event, self.raw) }?;
        Ok(Settled::When(event))
    }
}

impl StreamState {
    /// Notes a failure; the first stays.
    pub(crate) fn fail(&self, error: &Error) {
        let _ = self.failure.set(error.clone());
    }

    pub(crate) fn tail(&self) -> Option<RawEvent> {
        self.marked.load(Ordering::Acquire).then_some(self.tail.raw)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.owned {
            self.shared.garbage.push(Item::Stream(self.raw), None);
        }
    }
}
