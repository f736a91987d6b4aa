//! Bugs in a device.

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use collectives_core::addr::Addr;
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::memory::Memory;
use collectives_core::rank::CaptureId;
use collectives_core::stream::{Fence, FenceHandle, StreamRef};

use crate::interpose::{GraphHooks, Interpose, Launch};
use crate::planted::Planted;

thread_local! {
    static LAST_COPY: Cell<Option<(Addr, usize)>> = const { Cell::new(None) };
}

/// The source of this thread's last copy, if it was this long.
pub(super) fn last_copy(bytes: usize) -> Option<Addr> {
    let (source, copied) = LAST_COPY.get()?;
    (copied == bytes).then_some(source)
}

thread_local! {
    static GENERATION: Cell<u64> = const { Cell::new(0) };
}

/// This thread extended some memory.
pub(super) fn next_generation() {
    GENERATION.set(GENERATION.get() + 1);
}

thread_local! {
    static OPERATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Operations of this thread's call so far; a call begins by asking whether its stream captures.
pub(super) fn next_operation() -> u64 {
    OPERATIONS.replace(OPERATIONS.get() + 1)
}

thread_local! {
    static ORDERS: Cell<u64> = const { Cell::new(0) };
}

/// As many fences as there are generations.
#[derive(Debug, Default)]
struct Generations(Mutex<HashMap<u64, Fence>>);

impl FenceHandle for Generations {}

/// What a planted bug does around the calls of a device.
#[derive(Debug)]
pub(crate) struct BuggedDevice {
    bug: Planted,
    retained: Mutex<HashMap<CaptureId, Vec<Memory>>>,
}

impl BuggedDevice {
    pub(crate) fn new(bug: Planted) -> Self {
        // What the case before copied from is gone.
        LAST_COPY.set(None);
        Self {
            bug,
            retained: Mutex::default(),
        }
    }

    fn is(&self, bug: Planted) -> bool {
        self.bug == bug
    }

    /// Whether ownership by graphs is the bug's own affair.
    fn owns(&self) -> bool {
        matches!(
            self.bug,
            Planted::ExecutableOwnsNothing
                | Planted::CopyOwnsNothing
                | Planted::UpdateKeepsOldOwners
                | Planted::ChildOwnsNothing
                | Planted::LaunchesLeak
        )
    }

    /// The fence to use in its place.
    fn fence(&self, inner: &dyn Device, fence: &Fence) -> Result<Fence> {
        let Some(generations) = fence.downcast::<Generations>() else {
            return Ok(fence.clone());
        };
        let mut fences = generations.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match fences.entry(GENERATION.get()) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(place) => place.insert(inner.create_fence()?).clone(),
        })
    }

    fn captures(inner: &dyn Device, stream: &StreamRef) -> bool {
        matches!(inner.capture_state(stream), Ok(Some(_)))
    }
}

impl Interpose for BuggedDevice {
    fn capture_state(&self, inner: &dyn Device, stream: &StreamRef) -> Result<Option<CaptureId>> {
        OPERATIONS.set(0);
        ORDERS.set(0);
        if self.is(Planted::CaptureHidden) {
            return Ok(None);
        }
        inner.capture_state(stream)
    }

    fn retain(&self, inner: &dyn Device, stream: &StreamRef, memory: Memory) -> Result<()> {
        if self.is(Planted::RetainForgotten) {
            return Ok(());
        }
        if self.is(Planted::RetainForever) {
            std::mem::forget(memory.clone());
        }
        if self.owns()
            && let Some(capture) = inner.capture_state(stream)?
        {
            let mut retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
            retained.entry(capture).or_default().push(memory);
            return Ok(());
        }
        inner.retain(stream, memory)
    }

    fn copying(
        &self,
        inner: &dyn Device,
        _dst: Addr,
        src: Addr,
        bytes: usize,
        stream: &StreamRef,
    ) -> Result<usize> {
        LAST_COPY.set(Some((src, bytes)));
        match self.bug {
            Planted::AllocatesInCapture if Self::captures(inner, stream) => {
                drop(inner.allocate(256)?);
            }
            Planted::WaitsInCapture if Self::captures(inner, stream) => {
                // Refused by the backend, which is what a driver would not do in time.
                let _refused = inner.synchronize(stream);
            }
            Planted::CapturedCopiesShort if Self::captures(inner, stream) => {
                return Ok(bytes.saturating_sub(4));
            }
            _ => {}
        }
        Ok(bytes)
    }

    fn order(&self, inner: &dyn Device, earlier: &StreamRef, later: &StreamRef) -> Result<()> {
        let orders = ORDERS.replace(ORDERS.get() + 1);
        if self.is(Planted::SecondOrderDropped) && orders > 0 {
            return Ok(());
        }
        inner.order(earlier, later)
    }

    fn create_fence(&self, inner: &dyn Device) -> Result<Fence> {
        if self.is(Planted::FencePerGeneration) {
            return Ok(Fence::new(Arc::new(Generations::default())));
        }
        inner.create_fence()
    }

    fn wait(&self, inner: &dyn Device, fence: &Fence, stream: &StreamRef) -> Result<()> {
        let dropped = self.is(Planted::WaitsDropped)
            || self.is(Planted::CapturedWaitsDropped) && Self::captures(inner, stream);
        if dropped {
            return Ok(());
        }
        inner.wait(&self.fence(inner, fence)?, stream)
    }

    fn record(&self, inner: &dyn Device, fence: &Fence, stream: &StreamRef) -> Result<()> {
        if self.is(Planted::CapturedRecordsDropped) && Self::captures(inner, stream) {
            return Ok(());
        }
        inner.record(&self.fence(inner, fence)?, stream)
    }

    fn record_eager(&self, inner: &dyn Device, fence: &Fence, stream: &StreamRef) -> Result<()> {
        inner.record_eager(&self.fence(inner, fence)?, stream)
    }

    fn joining(&self, _trunk: &StreamRef, _branch: &StreamRef) -> Launch {
        if self.is(Planted::PanicsLeaveBranches) && std::thread::panicking() {
            return Launch::Skip;
        }
        Launch::Go
    }

    fn embedding(
        &self,
        inner: &dyn Device,
        stream: &StreamRef,
        child: Option<&Arc<dyn GraphHooks>>,
    ) -> Launch {
        let capture = inner.capture_state(stream).ok().flatten();
        let child = child.and_then(|hooks| {
            let any: &dyn Any = &**hooks;
            any.downcast_ref::<BuggedGraph>()
        });
        if let (Some(capture), Some(child)) = (capture, child)
            && !self.is(Planted::ChildOwnsNothing)
        {
            let mut retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
            retained
                .entry(capture)
                .or_default()
                .extend(child.owned.iter().cloned());
        }
        if self.is(Planted::ChildLeftOut) {
            Launch::Skip
        } else {
            Launch::Go
        }
    }

    fn captured(&self, capture: Option<CaptureId>) -> Option<Arc<dyn GraphHooks>> {
        let mut retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
        let owned = capture.and_then(|capture| retained.remove(&capture));
        let owned = owned.unwrap_or_default();
        Some(Arc::new(BuggedGraph {
            bug: self.bug,
            owned,
            launches: AtomicU64::new(0),
        }))
    }
}

#[derive(Debug)]
struct BuggedGraph {
    bug: Planted,
    owned: Vec<Memory>,
    launches: AtomicU64,
}

impl GraphHooks for BuggedGraph {
    fn launching(&self, _stream: &StreamRef) -> Result<Launch> {
        let count = self.launches.fetch_add(1, Ordering::Relaxed);
        let skips = match self.bug {
            Planted::LaunchDoesNothing => true,
            Planted::LaunchesAreFlaky => count % 16 == 15,
            Planted::LaunchesTwice => count >= 2,
            _ => false,
        };
        if self.bug == Planted::LaunchesLeak {
            std::mem::forget(self.owned.clone());
        }
        Ok(if skips { Launch::Skip } else { Launch::Go })
    }

    fn launched(&self, outcome: Result<()>) -> Result<()> {
        if self.bug == Planted::LaunchErrorsSwallowed {
            return Ok(());
        }
        outcome
    }

    fn updated(&self, outcome: Result<()>) -> Result<()> {
        if self.bug == Planted::UpdateNeverRefused {
            return Ok(());
        }
        outcome
    }

    fn for_executable(self: Arc<Self>) -> Option<Arc<dyn GraphHooks>> {
        match self.bug {
            Planted::ExecutableOwnsNothing => None,
            _ => Some(self),
        }
    }

    fn for_duplicate(self: Arc<Self>) -> Option<Arc<dyn GraphHooks>> {
        match self.bug {
            Planted::CopyOwnsNothing => None,
            _ => Some(self),
        }
    }

    fn follows_updates(&self) -> bool {
        self.bug != Planted::UpdateKeepsOldOwners
    }

    fn owned(&self) -> &[Memory] {
        &self.owned
    }
}
