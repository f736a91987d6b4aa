//! The memory of one device: budget, granules, guards, poison, and what is lost at the moment.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use collectives_core::addr::Addr;
use collectives_core::error::{Error, ErrorKind, Result, Unsupported};
use collectives_core::memory::Memory;
use collectives_core::rank::DeviceId;

use crate::block::{Block, SharedPiece, Use};
use crate::chunk::Chunk;
use crate::event::Event;
use crate::heap::Heap;
use crate::model::DeviceModel;
use crate::queue::any_queue;
use crate::region::Addresses;

/// Somebody wrote where nobody may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryViolation {
    /// A byte just before or after a block of symmetric memory was overwritten.
    Guard {
        /// The block's first byte.
        block: Addr,
        /// The block's usable bytes.
        bytes: usize,
        /// The first byte that was overwritten.
        at: Addr,
        /// What it holds.
        found: u8,
    },
    /// A byte of a block was written after its last owner was gone.
    WrittenAfterFree {
        /// The block's first byte.
        block: Addr,
        /// The block's usable bytes.
        bytes: usize,
        /// The first byte that was overwritten.
        at: Addr,
        /// What it holds.
        found: u8,
    },
}

/// What a device has lost to memory at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// Bytes of symmetric memory, in whole granules and without guards, each once.
    pub mapped_bytes: usize,
    /// Bytes of addresses that map symmetric memory; a byte with two addresses counts twice.
    pub address_bytes: usize,
    /// Bytes of ordinary memory.
    pub ordinary_bytes: usize,
    /// Blocks of symmetric memory.
    pub symmetric_blocks: usize,
    /// Blocks of ordinary memory.
    pub ordinary_blocks: usize,
    /// The most bytes, symmetric and ordinary, that were lost at once.
    pub peak_bytes: usize,
    /// Freed bytes that are kept poisoned; the budget does not count them.
    pub quarantined_bytes: usize,
}

/// The memory of a device. It lives as long as any of its blocks.
pub(crate) struct Space {
    device: DeviceId,
    model: DeviceModel,
    /// Blocks whose last owner is gone. Free hooks only touch this.
    freed: Mutex<Vec<Freed>>,
    state: Mutex<State>,
}

/// A block without owners, and the work that may still use it.
struct Freed {
    key: u64,
    after: Option<Event>,
}

struct State {
    addresses: Addresses,
    /// Where all memory comes from, if it is one heap.
    heap: Option<Heap>,
    next: u64,
    live: HashMap<u64, Block>,
    quarantine: VecDeque<Block>,
    violation: Option<MemoryViolation>,
    report: MemoryReport,
}

impl Space {
    pub(crate) fn new(device: DeviceId, model: &DeviceModel) -> Self {
        Self {
            device,
            model: model.clone(),
            freed: Mutex::new(Vec::new()),
            state: Mutex::new(State::new(model)),
        }
    }

    /// Ordinary memory of `bytes` bytes.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Memory> {
        let mut state = self.collected(bytes, bytes)?;
        let block = match &mut state.heap {
            Some(heap) => Use::ordinary(bytes).and_then(|wanted| heap.take(wanted)),
            None => Block::ordinary(bytes),
        };
        self.own(state, block.ok_or_else(none), bytes)
    }

    /// Symmetric memory of at least `bytes` bytes, in whole granules.
    pub(crate) fn allocate_symmetric(self: &Arc<Self>, bytes: usize) -> Result<Memory> {
        let (granule, overhead) = (self.model.granule(), self.model.overhead());
        let charged = bytes
            .max(1)
            .checked_add(overhead)
            .and_then(|charged| charged.checked_next_multiple_of(granule))
            .ok_or_else(|| self.out_of_memory(bytes))?;
        let mut state = self.collected(charged, bytes)?;
        if let Some(heap) = &mut state.heap {
            let block = heap.take(Use::symmetric(charged, granule, overhead));
            return self.own(state, block.ok_or_else(none), bytes);
        }
        let guard = self.model.guard();
        let shared = self.model.shared_memory();
        let block = Block::symmetric(
            &mut state.addresses,
            charged,
            granule,
            overhead,
            guard,
            shared,
        );
        self.own(state, block, bytes)
    }

    /// Symmetric memory of at least `bytes` bytes that maps the memory of the block at `first`, if
    /// that is given, and then new memory, all of which later blocks can map again.
    pub(crate) fn allocate_arena(
        self: &Arc<Self>,
        bytes: usize,
        first: Option<Addr>,
    ) -> Result<Memory> {
        let whole = bytes
            .max(1)
            .checked_next_multiple_of(self.model.granule())
            .ok_or_else(|| self.out_of_memory(bytes))?;
        let chunks = self.lock().chunks_at(first)?;
        let have = chunks.iter().map(|chunk| chunk.bytes).sum();
        let charged = whole.max(have);
        let mut state = self.collected(charged - have, bytes)?;
        let block = self.map_arena(&mut state, chunks, charged, charged - have);
        self.own(state, block, bytes)
    }

    /// A block of `charged` bytes over these chunks and one of `more` bytes.
    fn map_arena(
        &self,
        state: &mut State,
        mut chunks: Vec<Arc<Chunk>>,
        charged: usize,
        more: usize,
    ) -> io::Result<Block> {
        if more > 0 {
            let name = format!("collectives-{}", self.device);
            chunks.push(Arc::new(Chunk::new(&name, more)?));
        }
        let (granule, guard) = (self.model.granule(), self.model.guard());
        let block = Block::symmetric(&mut state.addresses, charged, granule, 0, guard, false)?;
        block.over(chunks, &mut state.addresses)
    }

    /// The error of a request that cannot be met.
    pub(crate) fn out_of_memory(&self, bytes: usize) -> Error {
        Error::new(ErrorKind::OutOfMemory {
            rank: self.model.rank(),
            bytes,
        })
        .on_backend("host")
    }

    /// Frees what has no owner any more.
    pub(crate) fn collect(&self) {
        self.collect_into(&mut self.lock());
    }

    /// Whether nobody wrote where nobody may, now or when anything was freed.
    pub(crate) fn check(&self) -> Result<(), MemoryViolation> {
        let state = self.lock();
        if let Some(violation) = state.violation {
            return Err(violation);
        }
        state.live.values().try_for_each(Block::check_guards)?;
        if let Some(byte) = self.model.poison() {
            state
                .quarantine
                .iter()
                .try_for_each(|block| block.check_poison(byte))?;
        }
        Ok(())
    }

    /// Whether the memory is a block of symmetric memory of this device.
    pub(crate) fn is_symmetric(&self, memory: &Memory) -> bool {
        let state = self.lock();
        let mut live = state.live.values();
        memory.device() == self.device
            && live.any(|block| block.is_symmetric() && block.addr == memory.addr())
    }

    /// Where other processes find a block of symmetric memory; nothing where they cannot.
    pub(crate) fn shared_pieces(&self, memory: &Memory) -> Vec<SharedPiece> {
        let state = self.lock();
        let block = state
            .live
            .values()
            .find(|block| block.is_symmetric() && block.addr == memory.addr());
        block.map_or_else(Vec::new, Block::shared_pieces)
    }

    pub(crate) fn report(&self) -> MemoryReport {
        self.lock().report
    }

    /// Frees what can be freed and checks the budget for `more` bytes.
    fn collected(&self, more: usize, bytes: usize) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        self.collect_into(&mut state);
        let lost = state.report.mapped_bytes + state.report.ordinary_bytes;
        match self.model.budget() {
            Some(budget) if lost.checked_add(more).is_none_or(|sum| sum > budget) => {
                Err(self.out_of_memory(bytes))
            }
            _ => Ok(state),
        }
    }

    /// Counts a fresh block and hands it out.
    fn own(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        block: io::Result<Block>,
        bytes: usize,
    ) -> Result<Memory> {
        // To the ranks it is one of them that got no memory; it may be for want of descriptors.
        let block = block.map_err(|error| {
            tracing::warn!(%error, bytes, "no memory");
            self.out_of_memory(bytes).caused_by(error)
        })?;
        let key = state.next;
        state.next += 1;
        state.report.add(&block);
        let space = Arc::clone(self);
        // SAFETY: The block stays mapped and is handed to nobody else until `collect` finds its
        // key among the freed ones, which only this hook puts there.
        let memory = unsafe {
            Memory::new(self.device, block.addr, block.bytes, move |last| {
                let after = last.as_ref().and_then(any_queue).and_then(Event::of);
                space.lock_freed().push(Freed { key, after });
            })
        };
        state.live.insert(key, block);
        Ok(memory)
    }

    fn collect_into(&self, state: &mut State) {
        let freed = {
            let mut all = self.lock_freed();
            let (freed, in_use) = std::mem::take(&mut *all)
                .into_iter()
                .partition::<Vec<_>, _>(Freed::is_unused);
            *all = in_use;
            freed
        };
        for Freed { key, .. } in freed {
            let Some(mut block) = state.live.remove(&key) else {
                continue;
            };
            state.report.subtract(&block);
            state.note(block.check_guards());
            match self.model.poison() {
                Some(byte) => {
                    block.poison(byte);
                    state.report.quarantined_bytes += block.bytes;
                    state.quarantine.push_back(block);
                }
                None => state.release(block),
            }
        }
        while state.report.quarantined_bytes > self.model.quarantine()
            && let Some(oldest) = state.quarantine.pop_front()
        {
            state.leave_quarantine(oldest, self.model.poison());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_freed(&self) -> MutexGuard<'_, Vec<Freed>> {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the heap says, which knows no more of it.
fn none() -> io::Error {
    io::ErrorKind::OutOfMemory.into()
}

impl Freed {
    /// Whether the work that was enqueued when the last owner went has finished.
    fn is_unused(&self) -> bool {
        self.after.as_ref().is_none_or(Event::is_complete)
    }
}

impl State {
    fn new(model: &DeviceModel) -> Self {
        Self {
            addresses: Addresses::new(model.address_order()),
            heap: model.heap().then(Heap::default),
            next: 0,
            live: HashMap::new(),
            quarantine: VecDeque::new(),
            violation: None,
            report: MemoryReport::default(),
        }
    }

    /// What the block at this address consists of, so that another can map it too.
    fn chunks_at(&self, first: Option<Addr>) -> Result<Vec<Arc<Chunk>>> {
        let Some(addr) = first else {
            return Ok(Vec::new());
        };
        let block = self.live.values().find(|block| block.addr == addr);
        match block.map(Block::chunks) {
            Some(chunks) if !chunks.is_empty() => Ok(chunks.to_vec()),
            _ => {
                let text = "the window was not made extensible when its memory was allocated";
                Err(Error::unsupported(Unsupported::Aliasing(text.to_owned())).on_backend("host"))
            }
        }
    }

    /// Gives everything back; nobody uses any of it any more.
    fn end(mut self, poison: Option<u8>) {
        for (_, block) in std::mem::take(&mut self.live) {
            self.note(block.check_guards());
            block.release(&mut self.addresses);
        }
        while let Some(block) = self.quarantine.pop_front() {
            self.leave_quarantine(block, poison);
        }
        let freed = self.heap.take().map(Heap::into_blocks);
        for block in freed.into_iter().flatten() {
            block.release(&mut self.addresses);
        }
    }

    /// Gives the memory of a block back, which nobody uses any more.
    fn release(&mut self, block: Block) {
        match &mut self.heap {
            Some(heap) => heap.give_back(block),
            None => block.release(&mut self.addresses),
        }
    }

    /// Remembers the first violation.
    fn note(&mut self, checked: Result<(), MemoryViolation>) {
        if let Err(violation) = checked {
            tracing::error!(%violation, "memory was violated");
            self.violation.get_or_insert(violation);
        }
    }

    fn leave_quarantine(&mut self, block: Block, poison: Option<u8>) {
        self.report.quarantined_bytes -= block.bytes;
        if let Some(byte) = poison {
            self.note(block.check_poison(byte));
        }
        self.release(block);
    }
}

impl MemoryReport {
    fn add(&mut self, block: &Block) {
        if block.is_symmetric() {
            self.address_bytes += block.charged;
        }
        let (bytes, blocks) = self.kind(block);
        *bytes += block.lost();
        *blocks += 1;
        self.peak_bytes = self.peak_bytes.max(self.mapped_bytes + self.ordinary_bytes);
    }

    fn subtract(&mut self, block: &Block) {
        if block.is_symmetric() {
            self.address_bytes -= block.charged;
        }
        let (bytes, blocks) = self.kind(block);
        *bytes -= block.lost();
        *blocks -= 1;
    }

    fn kind(&mut self, block: &Block) -> (&mut usize, &mut usize) {
        if block.is_symmetric() {
            (&mut self.mapped_bytes, &mut self.symmetric_blocks)
        } else {
            (&mut self.ordinary_bytes, &mut self.ordinary_blocks)
        }
    }
}

impl Drop for Space {
    /// No owner of any block is left, because each of them keeps the space; but work that is in
    /// flight may still use some. It is waited for on another thread, because this one may be the
    /// thread that runs that work.
    fn drop(&mut self) {
        self.collect();
        let poison = self.model.poison();
        let freed = self.freed.get_mut().unwrap_or_else(PoisonError::into_inner);
        let freed = std::mem::take(freed);
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let state = std::mem::replace(state, State::new(&self.model));
        if freed.is_empty() {
            state.end(poison);
            return;
        }
        // Where the thread cannot be started, nothing may be given back.
        let state = ManuallyDrop::new(state);
        let waiting = thread::Builder::new()
            .name("last-free".to_owned())
            .spawn(move || {
                let events = freed.iter().filter_map(|freed| freed.after.as_ref());
                events.for_each(Event::wait);
                ManuallyDrop::into_inner(state).end(poison);
            });
        if let Err(error) = waiting {
            tracing::error!(%error, "memory that work in flight uses is leaked");
        }
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for MemoryViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, block, bytes, at, found) = match self {
            Self::Guard {
                block,
                bytes,
                at,
                found,
            } => ("a guard byte", block, bytes, at, found),
            Self::WrittenAfterFree {
                block,
                bytes,
                at,
                found,
            } => ("a freed byte", block, bytes, at, found),
        };
        write!(
            f,
            "{what} at {at:?} of the block {block:?}+{bytes:#x} was overwritten with {found:#04x}"
        )
    }
}

impl std::error::Error for MemoryViolation {}

#[cfg(test)]
#[path = "space/tests.rs"]
mod tests;
