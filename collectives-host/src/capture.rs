//! Captures in progress: what is recorded, and what the recording owns.

use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use collectives_core::addr::Addr;
use collectives_core::error::{CaptureFault, Error, Result};
use collectives_core::memory::Memory;
use collectives_core::rank::{CaptureId, StreamId};
use collectives_core::stream::Fence;

use crate::graph::Body;
use crate::queue::Queue;

/// One recorded operation. It stores raw addresses and replays exactly those.
pub(crate) trait Node: Debug + Send + Sync {
    /// Called at each launch, on the launching thread, in recorded order and one launch of the
    /// device at a time: takes tickets, checks that the communicator is open. It must not wait.
    fn prepare(self: Arc<Self>) -> Result<Prepared>;

    /// What two nodes must have in common so that one may replace the other in an executable.
    fn kind(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// A node of one replay, ready to run. When an earlier node fails, or another node of the launch
/// cannot be prepared, it is dropped and never runs: its drop gives back what `prepare` took.
pub(crate) type Prepared = Box<dyn FnOnce() -> Result<()> + Send>;

/// What a recording consists of.
#[derive(Clone)]
pub(crate) enum Step {
    Run(Arc<dyn Node>),
    /// An external wait, for the latest record at each launch.
    Wait(Fence),
    /// An external record.
    Record(Fence),
    /// A branch begins here. Branches are recorded in program order, which is one of the orders
    /// the forks and joins allow, so a replay needs neither.
    Fork,
    /// A branch ends here.
    Join,
    /// Another graph, as it was when it was embedded.
    Child(Arc<Body>),
}

/// Calls `visit` for every step in recorded order, and for those of children at their place.
pub(crate) fn walk<'a>(
    steps: &'a [Step],
    visit: &mut dyn FnMut(&'a Step) -> Result<()>,
) -> Result<()> {
    for step in steps {
        match step {
            Step::Child(body) => walk(&body.steps, visit)?,
            step => visit(step)?,
        }
    }
    Ok(())
}

/// A copy between raw addresses.
#[derive(Debug)]
pub(crate) struct CopyNode {
    pub(crate) dst: Addr,
    pub(crate) src: Addr,
    pub(crate) bytes: usize,
}

/// One capture, shared by the streams that are part of it.
pub(crate) struct Recorder {
    id: CaptureId,
    origin: StreamId,
    /// `None` once the capture has ended.
    recording: Mutex<Option<Recording>>,
}

/// What a capture has gathered so far.
pub(crate) struct Recording {
    pub(crate) steps: Vec<Step>,
    pub(crate) owned: Vec<Memory>,
    pub(crate) branches: Vec<Weak<Queue>>,
    pub(crate) invalid: bool,
    _active: Active,
}

/// Counts captures in progress.
struct Active(Arc<AtomicUsize>);

impl Step {
    /// Whether a step of this kind may replace the other in an executable.
    pub(crate) fn has_kind_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Run(left), Self::Run(right)) => left.kind() == right.kind(),
            (Self::Wait(_), Self::Wait(_))
            | (Self::Record(_), Self::Record(_))
            | (Self::Fork, Self::Fork)
            | (Self::Join, Self::Join) => true,
            (Self::Child(left), Self::Child(right)) => left.has_shape_of(right),
            _ => false,
        }
    }

    /// Whether the step is a node of the graph; forks and joins are edges.
    pub(crate) fn is_node(&self) -> bool {
        !matches!(self, Self::Fork | Self::Join)
    }
}

impl Node for CopyNode {
    fn prepare(self: Arc<Self>) -> Result<Prepared> {
        Ok(Box::new(move || {
            // SAFETY: Who captured the copy promised that both ranges are valid and do not overlap
            // until the graph is gone, and that nothing unordered with a replay uses them.
            unsafe { copy_bytes(self.dst, self.src, self.bytes) };
            Ok(())
        }))
    }
}

/// Copies bytes now.
///
/// # Safety
///
/// Both ranges are valid, do not overlap, and nobody else uses them meanwhile.
pub(crate) unsafe fn copy_bytes(dst: Addr, src: Addr, bytes: usize) {
    let (dst, src) = (dst.as_ptr::<u8>(), src.as_ptr::<u8>());
    // SAFETY: As this function demands.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) }
}

impl Recorder {
    pub(crate) fn new(origin: StreamId, active: &Arc<AtomicUsize>) -> Self {
        active.fetch_add(1, Ordering::AcqRel);
        Self {
            id: CaptureId::fresh(),
            origin,
            recording: Mutex::new(Some(Recording {
                steps: Vec::new(),
                owned: Vec::new(),
                branches: Vec::new(),
                invalid: false,
                _active: Active(Arc::clone(active)),
            })),
        }
    }

    pub(crate) fn id(&self) -> CaptureId {
        self.id
    }

    /// The stream that the capture began on.
    pub(crate) fn origin(&self) -> StreamId {
        self.origin
    }

    /// Whether the capture can go on.
    pub(crate) fn check(&self) -> Result<()> {
        match &*self.lock() {
            Some(recording) if !recording.invalid => Ok(()),
            Some(_) => Err(Error::capture(CaptureFault::Invalidated)),
            None => Err(Error::capture(CaptureFault::NotCapturing)),
        }
    }

    pub(crate) fn push(&self, step: Step) {
        if let Some(recording) = &mut *self.lock() {
            recording.steps.push(step);
        }
    }

    /// Owns `memory`, once however often it is used.
    pub(crate) fn retain(&self, memory: Memory) {
        if let Some(recording) = &mut *self.lock()
            && recording.owned.iter().all(|own| own.id() != memory.id())
        {
            recording.owned.push(memory);
        }
    }

    /// Records another graph, and owns what it owns.
    pub(crate) fn embed(&self, child: &Arc<Body>) {
        for memory in child.memories() {
            self.retain(memory.clone());
        }
        self.push(Step::Child(Arc::clone(child)));
    }

    /// Notes that a stream forked off.
    pub(crate) fn fork(&self, branch: &Arc<Queue>) -> Result<()> {
        let mut recording = self.lock();
        let Some(recording) = &mut *recording else {
            return Err(Error::capture(CaptureFault::NotCapturing));
        };
        recording.branches.push(Arc::downgrade(branch));
        recording.steps.push(Step::Fork);
        Ok(())
    }

    /// Notes that a forked stream joined; not if it is no branch of this capture.
    pub(crate) fn join(&self, branch: &Arc<Queue>) -> Result<()> {
        if let Some(recording) = &mut *self.lock()
            && let Some(position) = recording
                .branches
                .iter()
                .position(|own| std::ptr::eq(own.as_ptr(), Arc::as_ptr(branch)))
        {
            recording.branches.swap_remove(position);
            recording.steps.push(Step::Join);
            return Ok(());
        }
        Err(Error::capture(CaptureFault::NotCapturing))
    }

    /// Makes the capture fail at its end.
    pub(crate) fn invalidate(&self) {
        if let Some(recording) = &mut *self.lock() {
            recording.invalid = true;
        }
    }

    /// Ends the capture for all its streams but the origin, and takes what it gathered.
    pub(crate) fn finish(&self) -> Option<Recording> {
        let recording = self.lock().take()?;
        for branch in recording.branches.iter().filter_map(Weak::upgrade) {
            branch.leave_capture(self.id);
        }
        Some(recording)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(node) => node.fmt(f),
            Self::Wait(_) => f.write_str("Wait"),
            Self::Record(_) => f.write_str("Record"),
            Self::Fork => f.write_str("Fork"),
            Self::Join => f.write_str("Join"),
            Self::Child(body) => f.debug_tuple("Child").field(&body.steps).finish(),
        }
    }
}

impl Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder(capture {} of stream {})", self.id, self.origin)
    }
}
