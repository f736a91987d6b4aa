//! Sees everything a rank asks of its backend: operands, calls, windows, and the order of streams.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use collectives_core::addr::{Addr, Operand, WindowId};
use collectives_core::agreement::Record;
use collectives_core::collective::OpKind;
use collectives_core::communicator::{Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::layered::{Layer, symmetric_of};
use collectives_core::memory::Memory;
use collectives_core::rank::{CaptureId, CommId};
use collectives_core::stream::{Fence, FenceHandle, StreamRef};
use collectives_core::submission::{Copy, Submission};

use crate::clocks::{Clocks, Step, Use};
use crate::interpose::{GraphHooks, Interpose, Launch};
use crate::watchdog::Progress;

/// One operation as it reached the backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Which operation.
    pub kind: OpKind,
    /// What it reads.
    pub send: Operand,
    /// What it writes.
    pub recv: Operand,
    /// Whether it was captured.
    pub captured: bool,
}

/// Something that happened to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowEvent {
    /// It was registered, over this many bytes.
    Registered(WindowId, usize),
    /// It was retired.
    Retired(WindowId),
}

/// Memory that this rank was given.
#[derive(Clone, Debug)]
struct Mapped {
    start: usize,
    bytes: usize,
    /// Which memory it is; generations of an arena are one, and begin with the same byte.
    memory: u64,
    /// Goes when the bytes do, after their last owner and their window.
    alive: Weak<()>,
}

impl Mapped {
    fn is_gone(&self) -> bool {
        self.alive.strong_count() == 0
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.start + other.bytes && other.start < self.start + self.bytes
    }
}

#[derive(Debug, Default)]
struct State {
    seen: Vec<Seen>,
    windows: Vec<WindowEvent>,
    calls: BTreeMap<&'static str, u64>,
    /// What memory there is; that which is gone stays until there is new memory.
    mapped: Vec<Mapped>,
    /// How many memories there have been.
    memory: u64,
    /// The memory of every window.
    memories: HashMap<(CommId, WindowId), u64>,
    clocks: Clocks,
    /// What streams that capture have used.
    captured: HashMap<CaptureId, Vec<Mapped>>,
    /// Uses of memory that was gone.
    stale: Vec<String>,
}

impl State {
    /// Follows memory for as long as there are its bytes, which may be those of a window.
    fn follow(&mut self, memory: &Memory, extended: Option<(CommId, WindowId)>) {
        let bytes = Arc::new(());
        self.memory += 1;
        let known = extended.and_then(|window| self.memories.get(&window));
        let new = Mapped {
            start: memory.addr().value(),
            bytes: memory.bytes(),
            memory: known.copied().unwrap_or(self.memory),
            alive: Arc::downgrade(&bytes),
        };
        memory.keeps(bytes);
        // What was where the new memory is has gone, even if it is only about to say so.
        let gone = self
            .mapped
            .extract_if(.., |known| known.is_gone() || known.overlaps(&new));
        let gone: Vec<_> = gone.map(|gone| gone.memory).collect();
        self.mapped.push(new);
        for memory in gone {
            if !self.mapped.iter().any(|known| known.memory == memory) {
                self.clocks.forget(memory);
            }
        }
    }

    /// The memory that an address is in.
    fn at(&self, start: usize) -> Option<&Mapped> {
        let inside = |mapped: &&Mapped| {
            start >= mapped.start && start < mapped.start + mapped.bytes && !mapped.is_gone()
        };
        self.mapped.iter().find(inside)
    }
}

/// The recording of one rank in one case; shared by the layer and the device that write it.
///
/// As a [`Layer`](WitnessLayer) it records operands, so that reducing the whole slot instead of the
/// slice is found although the result is right, and the copies that come with them; as hooks of an
/// [`Interposed`](crate::interpose::Interposed) device it keeps [`Clocks`], and sees the copies that
/// are made on the device itself. The backend is on the device inside, so no copy is seen twice.
#[derive(Debug, Default)]
pub struct Witness {
    state: Mutex<State>,
    progress: Arc<Progress>,
}

impl Witness {
    pub(crate) fn new(progress: Arc<Progress>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            progress,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, call: &'static str) {
        self.progress.beat();
        *self.lock().calls.entry(call).or_default() += 1;
    }

    /// Operations so far, as they reached the backend.
    pub fn seen(&self) -> Vec<Seen> {
        self.lock().seen.clone()
    }

    /// As [`Witness::seen`], without barriers, which follow operations on windows where these do not
    /// drain.
    pub fn moved(&self) -> Vec<Seen> {
        let seen = self.lock();
        let moves = |op: &&Seen| op.kind != OpKind::Barrier;
        seen.seen.iter().filter(moves).copied().collect()
    }

    /// Forgets the operations so far.
    pub fn forget(&self) {
        self.lock().seen.clear();
    }

    /// Registrations and retirements so far, in order.
    pub fn windows(&self) -> Vec<WindowEvent> {
        self.lock().windows.clone()
    }

    /// Calls of this name so far: `enqueue` (of collectives, not of copies alone), `agree`, `allocate_symmetric`, `register`, `retire`,
    /// `capture_state`, `allocate`, `retain`, `order`, `wait`, `record`, `host_wait`, `launch`.
    pub fn calls(&self, name: &str) -> u64 {
        self.lock().calls.get(name).copied().unwrap_or(0)
    }

    /// Calls that need other ranks.
    pub fn collective_calls(&self) -> u64 {
        ["agree", "register", "retire"]
            .iter()
            .map(|name| self.calls(name))
            .sum()
    }

    /// Pairs of uses of the same bytes that nothing orders.
    pub fn conflicts(&self) -> Vec<String> {
        self.lock().clocks.conflicts().to_vec()
    }

    /// Uses of memory that was gone: launches of graphs, which were refused.
    pub fn stale(&self) -> Vec<String> {
        self.lock().stale.clone()
    }

    /// What no case may do, if it was done.
    pub(crate) fn fault(&self) -> Option<String> {
        let state = self.lock();
        let stale = state.stale.first().cloned();
        let unordered = |conflict| format!("unordered uses: {conflict}");
        stale.or_else(|| state.clocks.conflicts().first().map(unordered))
    }

    fn copies(&self, stream: &StreamRef, capture: Option<CaptureId>, copies: &[Copy]) {
        for copy in copies {
            let sides = [(copy.src, copy.bytes, false), (copy.dst, copy.bytes, true)];
            self.uses(stream, capture, &sides);
        }
    }

    fn uses(&self, stream: &StreamRef, capture: Option<CaptureId>, sides: &[(Addr, usize, bool)]) {
        self.progress.beat();
        let mut state = self.lock();
        for &(addr, bytes, writes) in sides {
            let start = addr.value();
            let Some(mapped) = state.at(start).filter(|_| bytes > 0).cloned() else {
                continue;
            };
            let what = Use {
                memory: mapped.memory,
                start: start - mapped.start,
                bytes,
                writes,
            };
            state.clocks.used(stream.id(), capture, what);
            if let Some(capture) = capture {
                state.captured.entry(capture).or_default().push(mapped);
            }
        }
    }
}

/// Records what a communicator is asked.
#[derive(Clone, Debug)]
pub struct WitnessLayer(pub Arc<Witness>);

impl Layer for WitnessLayer {
    fn before_enqueue(
        &mut self,
        _inner: &mut dyn Communicator,
        submission: &Submission<'_>,
    ) -> Result<()> {
        let Submission {
            stream, capture, ..
        } = *submission;
        self.0.copies(stream, capture, submission.copies_in);
        if let Some(first) = submission.calls.first() {
            self.0.progress.note(first.kind().name());
            self.0.count("enqueue");
        }
        for op in submission.calls {
            self.0.lock().seen.push(Seen {
                kind: op.kind(),
                send: op.send,
                recv: op.recv,
                captured: capture.is_some(),
            });
            let sides = [
                (op.send.addr, op.send.bytes, false),
                (op.recv.addr, op.recv.bytes, true),
            ];
            self.0.uses(stream, capture, &sides);
        }
        self.0.copies(stream, capture, submission.copies_out);
        Ok(())
    }

    fn agree(
        &mut self,
        inner: &mut dyn Communicator,
        mine: &Record,
        deadline: Duration,
    ) -> Result<Vec<Record>> {
        self.0.progress.note("agree");
        self.0.count("agree");
        inner.agree(mine, deadline)
    }

    fn allocate(
        &mut self,
        inner: &mut dyn Communicator,
        bytes: usize,
        extend: Option<WindowId>,
    ) -> Result<Memory> {
        self.0.progress.note("allocate symmetric memory");
        self.0.count("allocate_symmetric");
        let memory = symmetric_of(inner)?.allocate(bytes, extend)?;
        let comm = inner.info().id;
        let extended = extend.map(|window| (comm, window));
        self.0.lock().follow(&memory, extended);
        Ok(memory)
    }

    fn register(&mut self, inner: &mut dyn Communicator, memory: &Memory) -> Result<WindowId> {
        self.0.progress.note("register");
        self.0.count("register");
        let window = symmetric_of(inner)?.register(memory)?;
        let event = WindowEvent::Registered(window, memory.bytes());
        let comm = inner.info().id;
        let mut state = self.0.lock();
        state.windows.push(event);
        if let Some(number) = state.at(memory.addr().value()).map(|mapped| mapped.memory) {
            state.memories.insert((comm, window), number);
        }
        Ok(window)
    }

    fn retire(&mut self, inner: &mut dyn Communicator, window: WindowId) -> Result<()> {
        self.0.progress.note("retire");
        self.0.count("retire");
        symmetric_of(inner)?.retire(window)?;
        self.0.lock().windows.push(WindowEvent::Retired(window));
        Ok(())
    }

    fn shutdown(&mut self, inner: &mut dyn Communicator) -> Result<Deferred> {
        self.0.progress.note("shutdown");
        inner.shutdown()
    }

    fn for_child(&self) -> Self {
        self.clone()
    }
}

/// A fence with a number, so that the clocks can tell fences apart.
#[derive(Debug)]
struct Numbered {
    number: u64,
    inner: Fence,
}

impl FenceHandle for Numbered {}

fn numbered(fence: &Fence) -> (&Fence, Option<u64>) {
    match fence.downcast::<Numbered>() {
        Some(numbered) => (&numbered.inner, Some(numbered.number)),
        None => (fence, None),
    }
}

impl Interpose for Arc<Witness> {
    fn capture_state(&self, inner: &dyn Device, stream: &StreamRef) -> Result<Option<CaptureId>> {
        self.count("capture_state");
        inner.capture_state(stream)
    }

    fn allocate(&self, inner: &dyn Device, bytes: usize) -> Result<Memory> {
        self.count("allocate");
        let memory = inner.allocate(bytes)?;
        self.lock().follow(&memory, None);
        Ok(memory)
    }

    fn retain(&self, inner: &dyn Device, stream: &StreamRef, memory: Memory) -> Result<()> {
        self.count("retain");
        inner.retain(stream, memory)
    }

    fn copying(
        &self,
        inner: &dyn Device,
        dst: Addr,
        src: Addr,
        bytes: usize,
        stream: &StreamRef,
    ) -> Result<usize> {
        let capture = inner.capture_state(stream)?;
        self.uses(stream, capture, &[(src, bytes, false), (dst, bytes, true)]);
        Ok(bytes)
    }

    fn accessing(&self, addr: Addr, bytes: usize, writes: bool, stream: &StreamRef) {
        self.uses(stream, None, &[(addr, bytes, writes)]);
    }

    fn order(&self, inner: &dyn Device, earlier: &StreamRef, later: &StreamRef) -> Result<()> {
        self.count("order");
        inner.order(earlier, later)?;
        self.lock().clocks.orders(earlier.id(), later.id());
        Ok(())
    }

    fn create_fence(&self, inner: &dyn Device) -> Result<Fence> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(Fence::new(Arc::new(Numbered {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            inner: inner.create_fence()?,
        })))
    }

    fn wait(&self, inner: &dyn Device, fence: &Fence, stream: &StreamRef) -> Result<()> {
        self.count("wait");
        let (fence, number) = numbered(fence);
        inner.wait(fence, stream)?;
        if let Some(number) = number {
            let capture = inner.capture_state(stream)?;
            self.lock().clocks.waits(stream.id(), capture, number);
        }
        Ok(())
    }

    fn record(&self, inner: &dyn Device, fence: &Fence, stream: &StreamRef) -> Result<()> {
        self.count("record");
        let (fence, number) = numbered(fence);
        inner.record(fence, stream)?;
        if let Some(number) = number {
            let capture = inner.capture_state(stream)?;
            self.lock().clocks.records(stream.id(), capture, number);
        }
        Ok(())
    }

    fn record_eager(&self, inner: &dyn Device, fence: &Fence, stream: &StreamRef) -> Result<()> {
        self.count("record");
        let (fence, number) = numbered(fence);
        inner.record_eager(fence, stream)?;
        if let Some(number) = number {
            self.lock().clocks.records(stream.id(), None, number);
        }
        Ok(())
    }

    fn waited(&self, stream: &StreamRef) {
        self.count("host_wait");
        self.lock().clocks.host_waits(stream.id());
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
            any.downcast_ref::<Replays>()
        });
        if let (Some(capture), Some(child)) = (capture, child) {
            let mut state = self.lock();
            state.clocks.embeds(capture, &child.steps);
            let uses = state.captured.entry(capture).or_default();
            uses.extend_from_slice(&child.uses);
        }
        Launch::Go
    }

    fn captured(&self, capture: Option<CaptureId>) -> Option<Arc<dyn GraphHooks>> {
        let mut state = self.lock();
        let steps = state.clocks.take_capture(capture?);
        let uses = state.captured.remove(&capture?).unwrap_or_default();
        Some(Arc::new(Replays {
            witness: Self::clone(self),
            steps,
            uses,
        }))
    }
}

#[derive(Debug)]
struct Replays {
    witness: Arc<Witness>,
    steps: Vec<Step>,
    uses: Vec<Mapped>,
}

impl GraphHooks for Replays {
    /// Refuses what would use memory that is gone, which may be anybody's by now.
    fn launching(&self, stream: &StreamRef) -> Result<Launch> {
        self.witness.progress.note("launch");
        self.witness.count("launch");
        let mut state = self.witness.lock();
        if let Some(gone) = self.uses.iter().find(|used| used.is_gone()) {
            let text = format!(
                "a graph is launched that uses {:#x}, in {} bytes whose last owner is gone",
                gone.start, gone.bytes
            );
            state.stale.push(text.clone());
            return Err(Error::new(ErrorKind::System(text)));
        }
        state.clocks.replays(stream.id(), &self.steps);
        Ok(Launch::Go)
    }

    fn for_executable(self: Arc<Self>) -> Option<Arc<dyn GraphHooks>> {
        Some(self)
    }

    fn for_duplicate(self: Arc<Self>) -> Option<Arc<dyn GraphHooks>> {
        Some(self)
    }
}
