//! Everything about a device that is not collective.
//!
//! Several communicators share one device as `Arc<dyn Device>`. Copies and order live here, so that
//! buffers can exist before any communicator does; the copies of a staged call go with it, in its
//! [`Submission`](crate::submission::Submission).

use std::fmt::Debug;

use crate::addr::Addr;
use crate::error::Result;
use crate::graph::Graphs;
use crate::memory::Memory;
use crate::rank::{CaptureId, DeviceId};
use crate::stream::{Fence, Stream, StreamRef};

/// A device: memory, streams, copies, order and capture state.
///
/// Work on one stream runs in the order it was enqueued; work on different streams only in the
/// order that [`Device::order`] and fences establish. All methods may be called from any thread.
///
/// # Safety
///
/// Callers rely on the implementer: memory returned by [`Device::allocate`] stays valid until its
/// last owner is gone; a memory passed to [`Device::retain`] is owned by the captured graph, its
/// clones and its executables until the last of them is destroyed and has finished; enqueued work
/// touches exactly the ranges it was given; [`Device::synchronize`] returns only when nothing of
/// the stream is in flight, also when it returns an error.
pub unsafe trait Device: Debug + Send + Sync + 'static {
    /// The device's identity.
    fn id(&self) -> DeviceId;

    /// The backend's name, for errors and reports.
    fn backend(&self) -> &'static str;

    /// Whether host pointers are addresses of this device, so that host slices need no copy.
    fn is_host(&self) -> bool;

    /// A new stream, ordered with no other.
    ///
    /// # Errors
    ///
    /// When the device cannot make one.
    fn create_stream(&self) -> Result<Stream>;

    /// Ordinary memory of at least `bytes` bytes, aligned to 256 bytes, with unspecified contents.
    ///
    /// It is reused only after the work of its last user has finished, as
    /// [`Memory::new`] says.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::error::ErrorKind::OutOfMemory); the device stays usable.
    fn allocate(&self, bytes: usize) -> Result<Memory>;

    /// The capture the stream is part of, if it captures.
    ///
    /// # Errors
    ///
    /// [`CaptureFault::Invalidated`](crate::error::CaptureFault::Invalidated), or the stream's
    /// asynchronous error.
    fn capture_state(&self, stream: &StreamRef) -> Result<Option<CaptureId>>;

    /// Makes the graph that `stream` captures an owner of `memory`.
    ///
    /// # Errors
    ///
    /// When the stream does not capture.
    fn retain(&self, stream: &StreamRef, memory: Memory) -> Result<()>;

    /// Copies `bytes` bytes in stream order; a node while the stream captures.
    ///
    /// # Errors
    ///
    /// When the copy cannot be enqueued.
    ///
    /// # Safety
    ///
    /// Both ranges must be valid for this device and not overlap, and nothing unordered with the
    /// stream may use them, until the copy has run; while capturing, until the graph is gone.
    unsafe fn copy(&self, dst: Addr, src: Addr, bytes: usize, stream: &StreamRef) -> Result<()>;

    /// Writes host bytes to device memory after all work on the stream, and waits for it.
    ///
    /// # Errors
    ///
    /// [`Misuse::BlocksInCapture`](crate::error::Misuse::BlocksInCapture) while the stream captures,
    /// and the stream's asynchronous error.
    ///
    /// # Safety
    ///
    /// `src.len()` bytes at `dst` must be valid for this device, and nothing unordered with the
    /// stream may use them.
    unsafe fn write(&self, dst: Addr, src: &[u8], stream: &StreamRef) -> Result<()>;

    /// Reads device memory after all work on the stream, and waits for it.
    ///
    /// # Errors
    ///
    /// [`Misuse::BlocksInCapture`](crate::error::Misuse::BlocksInCapture) while the stream captures,
    /// and the stream's asynchronous error.
    ///
    /// # Safety
    ///
    /// `dst.len()` bytes at `src` must be valid for this device, and nothing unordered with the
    /// stream may write them.
    unsafe fn read(&self, dst: &mut [u8], src: Addr, stream: &StreamRef) -> Result<()>;

    /// Makes later work on `later` wait for all work enqueued on `earlier` so far.
    ///
    /// A stream never joins a capture by this; [`Graphs::fork`] does that.
    ///
    /// # Errors
    ///
    /// [`CaptureFault::Isolation`](crate::error::CaptureFault::Isolation) unless neither stream
    /// captures or both belong to one capture.
    fn order(&self, earlier: &StreamRef, later: &StreamRef) -> Result<()>;

    /// A new fence, not recorded yet.
    ///
    /// # Errors
    ///
    /// When the device cannot make one.
    fn create_fence(&self) -> Result<Fence>;

    /// Makes later work on `stream` wait for the fence's latest record; while capturing, an
    /// external node, which waits for the latest record at each replay.
    ///
    /// # Errors
    ///
    /// When the wait cannot be enqueued.
    fn wait(&self, fence: &Fence, stream: &StreamRef) -> Result<()>;

    /// Records the fence after all work on `stream` so far; while capturing, an external node,
    /// which records at each replay.
    ///
    /// # Errors
    ///
    /// When the record cannot be enqueued.
    fn record(&self, fence: &Fence, stream: &StreamRef) -> Result<()>;

    /// Records the fence after the work that was enqueued on `stream` outside any capture, also if
    /// the stream captures now.
    ///
    /// # Errors
    ///
    /// When the record cannot be enqueued.
    fn record_eager(&self, fence: &Fence, stream: &StreamRef) -> Result<()>;

    /// Whether everything enqueued on the stream has finished; never waits.
    ///
    /// # Errors
    ///
    /// [`Misuse::BlocksInCapture`](crate::error::Misuse::BlocksInCapture) while it captures, and the asynchronous error of the stream, which it keeps returning.
    fn query(&self, stream: &StreamRef) -> Result<bool>;

    /// Waits until everything enqueued on the stream has finished, also on error.
    ///
    /// # Errors
    ///
    /// [`Misuse::BlocksInCapture`](crate::error::Misuse::BlocksInCapture) while it captures, after
    /// waiting for what was enqueued before the capture; and the asynchronous error of the stream, which it keeps returning.
    fn synchronize(&self, stream: &StreamRef) -> Result<()>;

    /// Does what destructors queued: frees memory whose last owner is gone.
    fn collect(&self);

    /// Capture and launch, where this backend offers graphs of its own.
    fn graphs(&self) -> Option<&dyn Graphs>;
}
