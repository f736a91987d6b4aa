//! Streams and fences, opaque to everybody but their backend.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::rank::{DeviceId, StreamId};

/// What a backend's stream must tell.
///
/// # Safety
///
/// `id` is never reused in the process, and equal exactly for equal streams; the native stream
/// stays valid until the handle is dropped.
pub unsafe trait StreamHandle: fmt::Debug + Send + Sync + Any {
    /// The stream's identity.
    fn id(&self) -> StreamId;
    /// The device it belongs to.
    fn device(&self) -> DeviceId;
    /// The native handle as a word (a `CUstream`, for example); what it means is the backend's
    /// business.
    fn raw(&self) -> usize;
}

/// A counted reference to a stream, kept to order later work after it.
#[derive(Clone)]
pub struct StreamRef(Arc<dyn StreamHandle>);

impl StreamRef {
    /// The stream's identity.
    #[inline]
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.0.id()
    }

    /// Whether both are the same stream.
    #[inline]
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0)) || self.id() == other.id()
    }

    /// The device the stream belongs to.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.device()
    }

    /// The native handle as a word.
    #[must_use]
    pub fn raw(&self) -> usize {
        self.0.raw()
    }

    /// The backend's own handle, if it is a `T`.
    #[must_use]
    pub fn downcast<T: StreamHandle>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }
}

impl fmt::Debug for StreamRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of device {}", self.id(), self.device())
    }
}

/// A stream: an ordered queue of work on one device.
///
/// It is not `Clone`: a capture begins on `&mut Stream`, so that no other thread can be between
/// asking whether the stream captures and enqueueing on it. Dropping it never waits.
#[derive(Debug)]
pub struct Stream(StreamRef);

impl Stream {
    /// The stream behind a backend's handle, which must have no other [`Stream`].
    #[must_use]
    pub fn new(handle: Arc<dyn StreamHandle>) -> Self {
        Self(StreamRef(handle))
    }
}

impl Deref for Stream {
    type Target = StreamRef;

    fn deref(&self) -> &StreamRef {
        &self.0
    }
}

/// What a backend's fence is.
pub trait FenceHandle: fmt::Debug + Send + Sync + Any {}

/// An event that orders uses of one slot, inside captured graphs and outside.
///
/// Waiting for a fence that was never recorded passes at once.
#[derive(Clone, Debug)]
pub struct Fence(Arc<dyn FenceHandle>);

impl Fence {
    /// The fence behind a backend's handle.
    #[must_use]
    pub fn new(handle: Arc<dyn FenceHandle>) -> Self {
        Self(handle)
    }

    /// The backend's own handle, if it is a `T`.
    #[must_use]
    pub fn downcast<T: FenceHandle>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }
}
