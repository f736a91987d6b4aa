//! A backend that does nothing and remembers what it was asked to do, in order.
//!
//! Ranks are threads that really rendezvous; memory is an address and a length.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use collectives_core::addr::{Addr, WindowId, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::collective::{Collective, OpKind};
use collectives_core::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::dtype::DType;
use collectives_core::error::{CaptureFault, Error, ErrorKind, Misuse, Result, Unsupported};
use collectives_core::graph::Graphs;
use collectives_core::in_process::InProcess;
use collectives_core::memory::{KeepAlive, Memory};
use collectives_core::path::{PathRule, PathTable, Sides};
use collectives_core::rank::{CaptureId, CommId, DeviceId, Rank, StreamId};
use collectives_core::stream::{Fence, FenceHandle, Stream, StreamHandle, StreamRef};
use collectives_core::submission::Submission;
use collectives_core::symmetric::SymmetricMemory;

pub(crate) const GRANULE: usize = 2 << 20;

/// What the backend was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Agree,
    Allocate(usize),
    Register(u64),
    Retire(u64),
    Retain(u64),
    Free(u64),
    Synchronize(StreamId),
    Record(StreamId),
    RecordEager(StreamId),
    Wait(StreamId),
    Order(StreamId, StreamId),
}

/// One rank's device.
#[derive(Debug)]
pub(crate) struct Mock {
    id: DeviceId,
    log: Mutex<Vec<Call>>,
    captures: Mutex<HashMap<StreamId, (CaptureId, Vec<Memory>)>>,
    dying: Arc<Mutex<Vec<Dying>>>,
    /// Bytes that symmetric memory may still take.
    pub(crate) free_bytes: Arc<AtomicUsize>,
    /// Whether recording a fence fails.
    pub(crate) broken: Mutex<bool>,
    /// Whether making a fence fails.
    pub(crate) fenceless: AtomicBool,
}

/// What a destructor queued.
#[derive(Debug)]
enum Dying {
    Bytes(u64, usize),
    Graph(Vec<Memory>),
}

/// What a capture leaves: it owns memory until it is dropped and the device has collected.
#[derive(Debug)]
pub(crate) struct MockGraph {
    owned: Vec<Memory>,
    dying: Arc<Mutex<Vec<Dying>>>,
}

impl MockGraph {
    pub(crate) fn owned(&self) -> usize {
        self.owned.len()
    }

    /// What it owns, for a destructor that does not wait for the device to collect.
    #[cfg(loom)]
    pub(crate) fn into_owned(mut self) -> Vec<Memory> {
        std::mem::take(&mut self.owned)
    }

    pub(crate) fn duplicate(&self) -> Self {
        Self {
            owned: self.owned.clone(),
            dying: Arc::clone(&self.dying),
        }
    }
}

impl Drop for MockGraph {
    fn drop(&mut self) {
        let owned = std::mem::take(&mut self.owned);
        self.dying.lock().unwrap().push(Dying::Graph(owned));
    }
}

#[derive(Debug)]
struct Handle(StreamId, DeviceId);

// SAFETY: The identity is fresh, and there is no native stream.
unsafe impl StreamHandle for Handle {
    fn id(&self) -> StreamId {
        self.0
    }
    fn device(&self) -> DeviceId {
        self.1
    }
    fn raw(&self) -> usize {
        0
    }
}

#[derive(Debug)]
struct NoFence;

impl FenceHandle for NoFence {}

impl Mock {
    fn new() -> Self {
        Self {
            id: DeviceId::fresh(),
            log: Mutex::default(),
            captures: Mutex::default(),
            dying: Arc::default(),
            free_bytes: Arc::new(AtomicUsize::new(usize::MAX)),
            broken: Mutex::new(false),
            fenceless: AtomicBool::new(false),
        }
    }

    fn note(&self, call: Call) {
        self.log.lock().unwrap().push(call);
    }

    /// The calls since the last time.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    pub(crate) fn begin(&self, stream: &StreamRef) -> CaptureId {
        let id = CaptureId::fresh();
        let mut captures = self.captures.lock().unwrap();
        assert!(captures.insert(stream.id(), (id, Vec::new())).is_none());
        id
    }

    /// Makes `branch` part of the capture of `trunk`.
    pub(crate) fn fork(&self, trunk: &StreamRef, branch: &StreamRef) {
        let mut captures = self.captures.lock().unwrap();
        let id = captures[&trunk.id()].0;
        captures.insert(branch.id(), (id, Vec::new()));
    }

    pub(crate) fn end(&self, stream: &StreamRef) -> MockGraph {
        let (_, owned) = self.captures.lock().unwrap().remove(&stream.id()).unwrap();
        MockGraph {
            owned,
            dying: Arc::clone(&self.dying),
        }
    }
}

// SAFETY: No call touches memory, and nothing is ever in flight.
unsafe impl Device for Mock {
    fn id(&self) -> DeviceId {
        self.id
    }
    fn backend(&self) -> &'static str {
        "mock"
    }
    fn is_host(&self) -> bool {
        false
    }
    fn create_stream(&self) -> Result<Stream> {
        Ok(Stream::new(Arc::new(Handle(StreamId::fresh(), self.id))))
    }
    fn allocate(&self, _bytes: usize) -> Result<Memory> {
        Err(Error::unsupported(Unsupported::Operation(
            "allocate".to_owned(),
        )))
    }
    fn capture_state(&self, stream: &StreamRef) -> Result<Option<CaptureId>> {
        let captures = self.captures.lock().unwrap();
        Ok(captures.get(&stream.id()).map(|(id, _)| *id))
    }
    fn retain(&self, stream: &StreamRef, memory: Memory) -> Result<()> {
        self.note(Call::Retain(memory.id()));
        let mut captures = self.captures.lock().unwrap();
        match captures.get_mut(&stream.id()) {
            Some((_, owned)) => owned.push(memory),
            None => return Err(Error::capture(CaptureFault::NotCapturing)),
        }
        Ok(())
    }
    unsafe fn copy(&self, _: Addr, _: Addr, _: usize, _: &StreamRef) -> Result<()> {
        Ok(())
    }
    unsafe fn write(&self, _: Addr, _: &[u8], _: &StreamRef) -> Result<()> {
        Ok(())
    }
    unsafe fn read(&self, _: &mut [u8], _: Addr, _: &StreamRef) -> Result<()> {
        Ok(())
    }
    fn order(&self, earlier: &StreamRef, later: &StreamRef) -> Result<()> {
        self.note(Call::Order(earlier.id(), later.id()));
        Ok(())
    }
    fn create_fence(&self) -> Result<Fence> {
        if self.fenceless.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::System("no events".to_owned())));
        }
        Ok(Fence::new(Arc::new(NoFence)))
    }
    fn wait(&self, _: &Fence, stream: &StreamRef) -> Result<()> {
        self.note(Call::Wait(stream.id()));
        Ok(())
    }
    fn record(&self, _: &Fence, stream: &StreamRef) -> Result<()> {
        self.note(Call::Record(stream.id()));
        if *self.broken.lock().unwrap() {
            return Err(Error::new(ErrorKind::System("broken".to_owned())));
        }
        Ok(())
    }
    fn record_eager(&self, _: &Fence, stream: &StreamRef) -> Result<()> {
        self.note(Call::RecordEager(stream.id()));
        Ok(())
    }
    fn query(&self, _: &StreamRef) -> Result<bool> {
        Ok(true)
    }
    fn synchronize(&self, stream: &StreamRef) -> Result<()> {
        assert!(
            !self.captures.lock().unwrap().contains_key(&stream.id()),
            "a capturing stream cannot be waited for"
        );
        self.note(Call::Synchronize(stream.id()));
        Ok(())
    }
    fn collect(&self) {
        // Graphs first: they may own the last count of some bytes.
        for _ in 0..2 {
            let dying = std::mem::take(&mut *self.dying.lock().unwrap());
            for item in dying {
                match item {
                    Dying::Bytes(id, bytes) => {
                        self.free_bytes.fetch_add(bytes, Ordering::Relaxed);
                        self.note(Call::Free(id));
                    }
                    Dying::Graph(owned) => drop(owned),
                }
            }
        }
    }
    fn graphs(&self) -> Option<&dyn Graphs> {
        None
    }
}

/// One rank's communicator.
#[derive(Debug)]
pub(crate) struct MockComm {
    info: CommInfo,
    device: Arc<dyn Device>,
    pub(crate) mock: Arc<Mock>,
    capabilities: Capabilities,
    bootstrap: InProcess,
    rounds: u64,
    windows: BTreeMap<WindowId, ((usize, usize), KeepAlive)>,
    next_window: u64,
    next_addr: usize,
    /// Whether registering gives a null window.
    pub(crate) null_windows: bool,
    /// Whether there is symmetric memory at all.
    pub(crate) symmetric: bool,
    /// What an allocation that fails says it lacked; all of it otherwise.
    pub(crate) missing: Option<usize>,
    /// Bits that this rank takes to be set in the second fact of every record, which is a defect.
    pub(crate) mishears: u64,
}

/// A kernel for sums in windows.
fn all_reduce() -> PathRule {
    PathRule {
        op: OpKind::AllReduce,
        dtypes: &DType::ALL,
        reductions: &[0],
        world: 2..=64,
        bytes: 1..=usize::MAX,
        needs: Sides::Both,
        stage_from: 0,
        stage_from_captured: 0,
        kernel: "mock",
        forced: false,
    }
}

impl MockComm {
    fn new(bootstrap: InProcess) -> Self {
        let mock = Arc::new(Mock::new());
        let info = CommInfo {
            id: CommId::fresh(),
            rank: bootstrap.rank(),
            world_size: bootstrap.world_size(),
            backend: "mock",
            granule: GRANULE,
            overhead: 0,
            token: Memory::token(mock.id, || {}),
        };
        Self {
            device: Arc::<Mock>::clone(&mock),
            capabilities: Capabilities {
                symmetric: Ok(()),
                paths: PathTable(vec![all_reduce()]),
                drains: true,
                compares_calls: true,
                forces_kernels: false,
                world: 1..=64,
            },
            // Addresses differ between ranks, and go down on odd ones.
            next_addr: (1 << 40) + (bootstrap.rank().index() << 44),
            rounds: 0,
            windows: BTreeMap::new(),
            next_window: 0,
            null_windows: false,
            symmetric: true,
            missing: None,
            mishears: 0,
            info,
            mock,
            bootstrap,
        }
    }

    /// The only rank of a world.
    pub(crate) fn alone() -> Self {
        Self::new(InProcess::world(1).remove(0))
    }

    /// Has each window map so many bytes besides its granules.
    pub(crate) fn set_overhead(&mut self, bytes: usize) {
        self.info.overhead = bytes;
    }

    fn meet(&mut self, mine: &[u8], deadline: Duration) -> Result<Vec<Vec<u8>>> {
        self.rounds += 1;
        let name = self.rounds.to_string();
        self.bootstrap.all_gather(&name, mine, deadline)
    }

    pub(crate) fn rank(&self) -> usize {
        self.info.rank.index()
    }

    pub(crate) fn stream(&self) -> Stream {
        self.device.create_stream().unwrap()
    }

    /// The capture that `stream` is part of now.
    pub(crate) fn capture(&self, stream: &StreamRef) -> Option<CaptureId> {
        self.device.capture_state(stream).unwrap()
    }

    /// Publishes a failure, after every rank has come here.
    pub(crate) fn poison(&mut self, cause: &str) {
        self.meet(b"poison", Duration::from_secs(20)).unwrap();
        self.bootstrap.publish_failure(cause);
    }

    /// Makes the mock refuse granules beyond these bytes.
    pub(crate) fn leave_free(&self, bytes: usize) {
        self.mock.free_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The address range of every window.
    pub(crate) fn ranges(&self) -> BTreeMap<WindowId, (usize, usize)> {
        let windows = self.windows.iter();
        windows.map(|(id, (range, _))| (*id, *range)).collect()
    }
}

impl Drop for MockComm {
    /// A rank that panics must not leave the others waiting.
    fn drop(&mut self) {
        if thread::panicking() {
            self.bootstrap.publish_failure("a rank panicked");
        }
    }
}

impl Communicator for MockComm {
    fn info(&self) -> &CommInfo {
        &self.info
    }
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    unsafe fn enqueue(&mut self, _: &Submission<'_>) -> Result<()> {
        Ok(())
    }
    fn refused(&mut self, _: &[Collective<'_>], error: Error) -> Error {
        error
    }
    fn agree(&mut self, mine: &Record, deadline: Duration) -> Result<Vec<Record>> {
        self.mock.note(Call::Agree);
        let mut all = self.meet(&mine.encode(), deadline)?;
        if self.mishears > 0
            && let Some(after_first) = mine.facts().len().checked_sub(1)
            && after_first > 0
        {
            for record in &mut all {
                // Facts are the last words of a record.
                let second = record.len() - 8 * after_first;
                let heard = self.mishears.to_le_bytes();
                for (byte, more) in record[second..].iter_mut().zip(heard) {
                    *byte |= more;
                }
            }
        }
        all.iter().map(|bytes| Record::decode(bytes)).collect()
    }
    fn window_of(&self, _: Addr, _: usize) -> Option<WindowSlice> {
        None
    }
    fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory> {
        if self.symmetric { Some(self) } else { None }
    }
    fn split(&mut self, _: Option<u32>, _: u32) -> Result<Option<Box<dyn Communicator>>> {
        Ok(None)
    }
    fn abort_handle(&self) -> AbortHandle {
        panic!("no test aborts the mock")
    }
    fn shutdown(&mut self) -> Result<Deferred> {
        Ok(Deferred::default())
    }
}

impl SymmetricMemory for MockComm {
    fn allocate(&mut self, bytes: usize, _extend: Option<WindowId>) -> Result<Memory> {
        assert!(
            self.mock.captures.lock().unwrap().is_empty(),
            "allocated while capturing"
        );
        self.mock.note(Call::Allocate(bytes));
        let mapped = self.info.mapped(bytes);
        let take = |free: usize| free.checked_sub(mapped);
        let free = &self.mock.free_bytes;
        if free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_err()
        {
            let rank = self.info.rank;
            let bytes = self.missing.unwrap_or(bytes);
            return Err(Error::new(ErrorKind::OutOfMemory { rank, bytes }));
        }
        let addr = Addr::from_ptr(std::ptr::without_provenance_mut::<u8>(self.next_addr));
        self.next_addr = if self.rank().is_multiple_of(2) {
            self.next_addr + 2 * mapped
        } else {
            self.next_addr - 2 * mapped
        };
        let dying = Arc::clone(&self.mock.dying);
        let id = Arc::new(AtomicUsize::new(0));
        let known = Arc::clone(&id);
        // SAFETY: Nobody reads or writes mock memory.
        let memory = unsafe {
            Memory::new(self.mock.id, addr, mapped, move |_| {
                let id = known.load(Ordering::Relaxed) as u64;
                dying.lock().unwrap().push(Dying::Bytes(id, mapped));
            })
        };
        id.store(usize::try_from(memory.id()).unwrap(), Ordering::Relaxed);
        Ok(memory)
    }

    fn extensible(&mut self) -> Result<usize> {
        Err(Error::unsupported(Unsupported::Aliasing(
            "not in the mock".to_owned(),
        )))
    }

    fn register(&mut self, memory: &Memory) -> Result<WindowId> {
        assert!(
            self.mock.captures.lock().unwrap().is_empty(),
            "registered while capturing"
        );
        self.meet(b"register", Duration::from_secs(20))?;
        if self.null_windows {
            return Err(Error::unsupported(Unsupported::NullWindow));
        }
        let id = WindowId(self.next_window);
        self.next_window += 1;
        self.mock.note(Call::Register(id.0));
        let keep = memory.keep_alive();
        let range = (memory.addr().value(), memory.bytes());
        self.windows.insert(id, (range, keep));
        Ok(id)
    }

    fn retire(&mut self, window: WindowId) -> Result<()> {
        assert!(
            self.mock.captures.lock().unwrap().is_empty(),
            "retired while capturing"
        );
        self.meet(b"retire", Duration::from_secs(20))?;
        self.mock.note(Call::Retire(window.0));
        let known = self.windows.remove(&window);
        known.map(drop).ok_or_else(|| Misuse::UnknownWindow.into())
    }

    fn peer_address(&mut self, _: WindowId, _: Rank, _: usize) -> Result<Addr> {
        Ok(Addr::NULL)
    }
    fn window_count(&mut self) -> usize {
        self.windows.len()
    }
}

/// Runs `body` on every rank of a new world and returns what it returned, in rank order.
pub(crate) fn world<R: Send>(
    world_size: usize,
    body: impl Fn(&mut MockComm) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = InProcess::world(world_size)
            .into_iter()
            .map(|end| scope.spawn(move || body(&mut MockComm::new(end))))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs `body` on a world of one rank.
pub(crate) fn alone<R>(body: impl FnOnce(&mut MockComm) -> R) -> R {
    body(&mut MockComm::alone())
}
