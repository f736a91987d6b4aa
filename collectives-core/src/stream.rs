//! Streams and fences, opaque to everybody but their backend.

use std::any::{Any, TypeId};
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
pub struct StreamRef {
    handle: Arc<dyn StreamHandle>,
    /// The type of the handle, which every operation compares. Asked of the handle each time, it would
    /// come through memory, and comparing it would wait for that: a sixth of a small all-reduce.
    kind: TypeId,
}

impl StreamRef {
    fn new(handle: Arc<dyn StreamHandle>) -> Self {
        let any: &dyn Any = &*handle;
        let kind = any.type_id();
        Self { handle, kind }
    }

    /// The stream's identity.
    #[inline]
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.handle.id()
    }

    /// Whether both are the same stream.
    #[inline]
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.address() == other.address() || self.id() == other.id()
    }

    /// Where the handle lies, which is no other's place as long as this one is held.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.handle).addr()
    }

    /// The device the stream belongs to.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.handle.device()
    }

    /// The native handle as a word.
    #[must_use]
    pub fn raw(&self) -> usize {
        self.handle.raw()
    }

    /// The backend's own handle, if it is a `T`.
    #[inline]
    #[must_use]
    pub fn downcast<T: StreamHandle>(&self) -> Option<&T> {
        if self.kind != TypeId::of::<T>() {
            return None;
        }
        let handle = Arc::as_ptr(&self.handle).cast::<T>();
        // SAFETY: `kind` is the type of the handle, which lives as long as this reference to it.
        Some(unsafe { &*handle })
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
        Self(StreamRef::new(handle))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct One(u64);

    #[derive(Debug)]
    struct Other(u64);

    macro_rules! handle {
        ($name:ident) => {
            // SAFETY: The tests compare no identities, and there is no native stream.
            unsafe impl StreamHandle for $name {
                fn id(&self) -> StreamId {
                    StreamId::from_raw(self.0)
                }

                fn device(&self) -> DeviceId {
                    DeviceId::from_raw(0)
                }

                fn raw(&self) -> usize {
                    0
                }
            }
        };
    }
    handle!(One);
    handle!(Other);

    #[test]
    fn a_handle_is_found_as_what_it_is_and_as_nothing_else() {
        let streams = [
            Stream::new(Arc::new(One(1))),
            Stream::new(Arc::new(Other(2))),
        ];
        let [one, other] = streams.map(|stream| StreamRef::clone(&stream));
        assert_eq!(one.downcast::<One>().unwrap().0, 1);
        assert_eq!(other.downcast::<Other>().unwrap().0, 2);
        assert!(one.downcast::<Other>().is_none() && other.downcast::<One>().is_none());
    }
}
