//! Streams and fences, opaque to everybody but their backend.

use std::any::{Any, TypeId};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::rank::{DeviceId, StreamId};

/// What a backend's stream must tell.
///
/// # Safety
///
/// `id` is never reused in the process, and equal exactly for equal streams; neither it nor the device
/// changes; the native stream stays valid until the handle is dropped.
pub unsafe trait StreamHandle: fmt::Debug + Send + Sync + Any {
    /// The stream's identity.
    fn id(&self) -> StreamId;
    /// The device it belongs to.
    fn device(&self) -> DeviceId;
    /// The native handle as a word (a `CUstream`, for example); what it means is the backend's
    /// business.
    fn raw(&self) -> usize;
    /// Whether the native stream ends with its [`Stream`]. Not so where it is a framework's, of which
    /// another [`Stream`] may be made.
    fn is_owned(&self) -> bool {
        true
    }
}

/// A counted reference to a stream, kept to order later work after it.
#[derive(Clone)]
pub struct StreamRef(Arc<Known>);

/// A handle, and what every operation asks of it, on one cache line: asked of the handle each time, it
/// would come through its table of methods.
#[repr(C, align(64))]
struct Known {
    kind: TypeId,
    device: DeviceId,
    id: StreamId,
    /// Where the handle lies, whatever its type.
    at: *const (),
    handle: Arc<dyn StreamHandle>,
    /// Whether the [`Stream`] was dropped, if the native one ends with it.
    gone: AtomicBool,
}

// SAFETY: `at` is where `handle` points, and that may be sent and shared.
unsafe impl Send for Known {}
// SAFETY: As above.
unsafe impl Sync for Known {}

impl StreamRef {
    fn new(handle: Arc<dyn StreamHandle>) -> Self {
        let any: &dyn Any = &*handle;
        Self(Arc::new(Known {
            kind: any.type_id(),
            device: handle.device(),
            id: handle.id(),
            at: Arc::as_ptr(&handle).cast(),
            handle,
            gone: AtomicBool::new(false),
        }))
    }

    /// The stream's identity.
    #[inline]
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.0.id
    }

    /// Whether both are the same stream.
    #[inline]
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.id() == other.id()
    }

    /// A number that no other stream has as long as this reference is held.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The device the stream belongs to.
    #[inline]
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.device
    }

    /// Whether its [`Stream`] was dropped, so that nothing more will be enqueued. Work that was enqueued
    /// before may still run. A stream that a framework [owns](StreamHandle::is_owned) is never gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.gone.load(Ordering::Relaxed)
    }

    /// The native handle as a word.
    #[must_use]
    pub fn raw(&self) -> usize {
        self.0.handle.raw()
    }

    /// The backend's own handle, if it is a `T`.
    #[inline(always)]
    #[must_use]
    pub fn downcast<T: StreamHandle>(&self) -> Option<&T> {
        if self.0.kind != TypeId::of::<T>() {
            return None;
        }
        let handle = self.0.at.cast::<T>();
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

impl Drop for Stream {
    fn drop(&mut self) {
        let known = &self.0.0;
        // It says nothing of other memory, so no order is needed.
        known.gone.store(known.handle.is_owned(), Ordering::Relaxed);
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

    #[test]
    fn a_reference_tells_whether_its_stream_is_gone() {
        let stream = Stream::new(Arc::new(One(1)));
        let [kept, again] = [(); 2].map(|()| StreamRef::clone(&stream));
        assert!(!kept.is_gone());
        drop(again);
        assert!(!kept.is_gone());
        drop(stream);
        assert!(kept.is_gone());
    }
}
