//! Capture and replay, for users without a framework that does it.
//!
//! A [`Capture`] borrows its stream mutably, so nothing else can be between asking for the capture
//! state and enqueueing. A [`Graph`] is a template; an [`Executable`] is what is launched. Both own
//! every memory that was retained while capturing; so do clones.

use std::any::Any;
use std::fmt::Debug;

use crate::device::Device;
use crate::error::{CaptureFault, Error, Result, Unsupported};
use crate::memory::{Entered, Memory};
use crate::order;
use crate::rank::CaptureId;
use crate::stream::{Stream, StreamRef};

/// Capture of streams, offered by a [`Device`].
///
/// # Safety
///
/// Between `begin` and `end`, work on the stream is recorded and not run; a replay does exactly
/// what was recorded, on the recorded addresses. What was retained is owned by the template, its
/// clones and its executables.
pub unsafe trait Graphs: Debug {
    /// Begins a capture on the stream.
    ///
    /// # Errors
    ///
    /// [`CaptureFault::AlreadyCapturing`].
    ///
    /// # Safety
    ///
    /// No other thread may be between asking for the stream's capture state and enqueueing on it,
    /// which holding its [`Stream`] mutably rules out.
    unsafe fn begin(&self, stream: &StreamRef) -> Result<CaptureId>;

    /// Makes `branch` part of the capture of `trunk`, after the work on `trunk` so far.
    ///
    /// # Errors
    ///
    /// When `trunk` does not capture, or `branch` does already.
    ///
    /// # Safety
    ///
    /// As [`Graphs::begin`], for `branch`.
    unsafe fn fork(&self, trunk: &StreamRef, branch: &StreamRef) -> Result<()>;

    /// Ends the part of `branch` in the capture of `trunk`; `trunk` waits for it.
    ///
    /// # Errors
    ///
    /// When the two are not part of one capture.
    ///
    /// # Safety
    ///
    /// As [`Graphs::begin`], for `branch`.
    unsafe fn join(&self, trunk: &StreamRef, branch: &StreamRef) -> Result<()>;

    /// Ends the capture that began on the stream.
    ///
    /// # Errors
    ///
    /// [`CaptureFault`], for example because the capture was
    /// invalidated; everything it had retained is released then.
    ///
    /// # Safety
    ///
    /// As [`Graphs::begin`].
    unsafe fn end(&self, stream: &StreamRef) -> Result<Box<dyn GraphTemplate>>;

    /// Graphs inside graphs, if the backend has them.
    fn children(&self) -> Option<&dyn ChildGraphs> {
        None
    }
}

/// Graphs as nodes of other graphs, offered by [`Graphs`].
///
/// # Safety
///
/// A replay of the parent does at the child's place exactly what the child does. All memory that the
/// child owns is owned by the parent, its clones and its executables too, whatever becomes of the
/// child, and [`GraphTemplate::owned`] tells it.
pub unsafe trait ChildGraphs: Debug {
    /// Records the child as it is now as one node, after the work on `stream` so far.
    ///
    /// # Errors
    ///
    /// [`CaptureFault::NotCapturing`], and [`Misuse::WrongDevice`](crate::error::Misuse::WrongDevice)
    /// for a graph of another device; nothing was recorded then.
    ///
    /// # Safety
    ///
    /// As [`Graphs::begin`].
    unsafe fn embed(&self, stream: &StreamRef, child: &dyn GraphTemplate) -> Result<()>;
}

/// A backend's captured graph.
pub trait GraphTemplate: Debug + Send + Sync + Any {
    /// A copy that owns the same memory.
    ///
    /// # Errors
    ///
    /// When the library cannot copy it.
    fn duplicate(&self) -> Result<Box<dyn GraphTemplate>>;

    /// An executable of it, which also owns the memory.
    ///
    /// # Errors
    ///
    /// When the library cannot instantiate it.
    fn instantiate(&self) -> Result<Box<dyn GraphExecutable>>;

    /// What was retained while capturing.
    fn owned(&self) -> &[Memory];

    /// Nodes in the graph.
    fn node_count(&self) -> usize;
}

/// A backend's executable graph.
pub trait GraphExecutable: Debug + Send {
    /// Enqueues one replay.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::error::ErrorKind::Closed) after a communicator it uses was closed, and
    /// the stream's asynchronous error.
    ///
    /// # Safety
    ///
    /// The stream is ordered after all work that uses memory of the graph, apart from slots, whose
    /// order the graph's own fence nodes establish.
    unsafe fn launch(&mut self, stream: &StreamRef) -> Result<()>;

    /// Replaces the recorded work by another graph's, and owns that graph's memory instead.
    ///
    /// # Errors
    ///
    /// When the two graphs differ in shape; the executable stays as it was.
    fn update(&mut self, from: &dyn GraphTemplate) -> Result<()>;

    /// What it owns.
    fn owned(&self) -> &[Memory];
}

/// A capture in progress; dropping it abandons the capture.
#[derive(Debug)]
pub struct Capture<'a> {
    device: &'a dyn Device,
    stream: &'a mut Stream,
    id: CaptureId,
    ended: bool,
}

impl<'a> Capture<'a> {
    /// Begins a capture.
    ///
    /// # Errors
    ///
    /// [`Unsupported::Graphs`], and those of [`Graphs::begin`].
    pub fn begin(device: &'a dyn Device, stream: &'a mut Stream) -> Result<Self> {
        // SAFETY: The stream is borrowed mutably, so nobody else is using it.
        let id = unsafe { graphs(device)?.begin(stream) }?;
        Ok(Self {
            device,
            stream,
            id,
            ended: false,
        })
    }

    /// The capturing stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// The capture's identity.
    #[must_use]
    pub fn id(&self) -> CaptureId {
        self.id
    }

    /// Captures on a second stream as well, as a branch that begins here, while `body` runs.
    ///
    /// The branch ends with `body`, also where it fails or panics: what it recorded until then stays in the
    /// capture, which goes on and ends like any other.
    ///
    /// # Errors
    ///
    /// Those of [`Graphs::fork`], of `body`, and else of [`Graphs::join`].
    pub fn branch<R>(
        &self,
        branch: &mut Stream,
        body: impl FnOnce(&Stream) -> Result<R>,
    ) -> Result<R> {
        let graphs = graphs(self.device)?;
        // SAFETY: `branch` is borrowed mutably, so nobody else is using it.
        unsafe { graphs.fork(self.stream, branch) }?;
        let forked = Forked {
            graphs,
            trunk: self.stream,
            branch,
        };
        let result = body(forked.branch);
        let joined = forked.join();
        let result = result?;
        joined.map(|()| result)
    }

    /// Records another graph as one node of this one, which owns from then on what the child owns.
    ///
    /// The child is taken as it is; it may be dropped, or be part of several graphs.
    ///
    /// # Errors
    ///
    /// [`Unsupported::ChildGraphs`], and those of [`ChildGraphs::embed`].
    pub fn embed(&self, child: &Graph) -> Result<()> {
        let unsupported =
            || Error::unsupported(Unsupported::ChildGraphs).on_backend(self.device.backend());
        let children = graphs(self.device)?.children().ok_or_else(unsupported)?;
        // SAFETY: The stream has been borrowed mutably since the capture began.
        unsafe { children.embed(self.stream, &*child.0) }
    }

    /// Ends the capture.
    ///
    /// # Errors
    ///
    /// Those of [`Graphs::end`].
    pub fn end(mut self) -> Result<Graph> {
        self.ended = true;
        // SAFETY: The stream has been borrowed mutably since the capture began.
        unsafe { graphs(self.device)?.end(self.stream) }.map(Graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended
            && let Some(graphs) = self.device.graphs()
            // SAFETY: The stream has been borrowed mutably since the capture began.
            && let Err(error) = unsafe { graphs.end(self.stream) }
        {
            tracing::debug!(%error, "an abandoned capture did not end cleanly");
        }
    }
}

/// A branch, which is joined at the latest when this is dropped.
struct Forked<'a> {
    graphs: &'a dyn Graphs,
    trunk: &'a StreamRef,
    branch: &'a Stream,
}

impl Forked<'_> {
    fn join(self) -> Result<()> {
        let joined = self.join_now();
        std::mem::forget(self);
        joined
    }

    fn join_now(&self) -> Result<()> {
        // SAFETY: `Capture::branch` borrows the branch mutably and lends it to its body alone, which has
        // ended.
        unsafe { self.graphs.join(self.trunk, self.branch) }
    }
}

impl Drop for Forked<'_> {
    /// The body panicked.
    fn drop(&mut self) {
        if let Err(error) = self.join_now() {
            tracing::error!(%error, "a branch whose body panicked could not be joined");
        }
    }
}

fn graphs(device: &dyn Device) -> Result<&dyn Graphs> {
    device
        .graphs()
        .ok_or_else(|| Error::unsupported(Unsupported::Graphs).on_backend(device.backend()))
}

/// Enters each memory once.
fn enter_all(memories: &[&Memory]) -> Result<Vec<Entered>> {
    let mut distinct = memories.to_vec();
    distinct.sort_unstable_by_key(|memory| memory.id());
    distinct.dedup_by_key(|memory| memory.id());
    distinct.into_iter().map(Memory::try_enter).collect()
}

/// A captured graph.
#[derive(Debug)]
pub struct Graph(Box<dyn GraphTemplate>);

impl Graph {
    /// A copy that owns the same memory.
    ///
    /// # Errors
    ///
    /// When the library cannot copy it.
    pub fn duplicate(&self) -> Result<Self> {
        self.0.duplicate().map(Self)
    }

    /// An executable, which owns the memory too, whether or not this graph lives on.
    ///
    /// # Errors
    ///
    /// When the library cannot instantiate it.
    pub fn instantiate(&self) -> Result<Executable> {
        self.0.instantiate().map(Executable)
    }

    /// Nodes in the graph: copies, operations, and one wait and one record per use of a slot.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.0.node_count()
    }
}

/// A graph that can be launched.
#[derive(Debug)]
pub struct Executable(Box<dyn GraphExecutable>);

impl Executable {
    /// Enqueues one replay on a stream, after the last use of every buffer the graph owns.
    ///
    /// Every rank launches graphs that contain collectives in the same order relative to its other
    /// collective calls.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::error::ErrorKind::Closed) after a communicator it uses was closed,
    /// [`Misuse::InUse`](crate::error::Misuse::InUse) while a lease of a slot it owns is out, and
    /// the stream's asynchronous error.
    pub fn launch(&mut self, device: &dyn Device, stream: &Stream) -> Result<()> {
        if device.capture_state(stream)?.is_some() {
            return Err(Error::capture(CaptureFault::AlreadyCapturing).during("launch"));
        }
        let owned = self.0.owned().to_vec();
        let mut owned: Vec<_> = owned.iter().collect();
        let all = owned.clone();
        order::exclusively(device, &mut owned, stream, || {
            // The locks keep other launches away, and the guards leases of slots.
            let entered = enter_all(&all)?;
            // SAFETY: The stream was just ordered after the last user of everything the graph
            // owns, and the locks that say who that is are held until the replay is enqueued.
            unsafe { self.0.launch(stream) }?;
            entered.iter().for_each(Entered::count_replay);
            Ok(())
        })
    }

    /// Replaces the recorded work by another graph's of the same shape.
    ///
    /// # Errors
    ///
    /// When the two graphs differ in shape; the executable stays as it was.
    pub fn update(&mut self, from: &Graph) -> Result<()> {
        self.0.update(&*from.0)
    }
}
