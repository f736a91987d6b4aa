//! Keeps freed symmetric memory while a bug is planted.
//!
//! A bug may free memory that work in flight or a peer still uses. Where the backend gives freed memory
//! back at once, that would end the process, and the case would say nothing. So the backend's memory
//! stays here until the case has ended and its streams are idle, and for ever where it failed. Everybody
//! else gets a memory of the same bytes, whose owners and windows are counted as always; what is kept
//! here is left out of [`Rig::mapped_bytes`](crate::rig::Rig::mapped_bytes).

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use collectives_core::addr::WindowId;
use collectives_core::communicator::{Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::layered::{Layer, symmetric_of};
use collectives_core::memory::{KeepAlive, Memory};
use collectives_core::rank::CommId;
use collectives_core::stream::StreamRef;

/// What one rank's case has freed.
#[derive(Debug, Default)]
pub(crate) struct Quarantine(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// All memory that was allocated, by its number.
    blocks: Vec<Block>,
    /// The block behind every window.
    windows: HashMap<(CommId, WindowId), usize>,
}

#[derive(Debug)]
struct Block {
    /// The first block of the bytes: generations of an arena share them.
    first: usize,
    /// Bytes that the device loses to it.
    mapped: usize,
    /// What everybody else has.
    id: u64,
    backend: Option<Memory>,
    /// The stream of its last use, once its owners are gone.
    freed: Option<Option<StreamRef>>,
}

impl Quarantine {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the device that would be free without this.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let state = self.lock();
        let largest = |wanted: &dyn Fn(&Block) -> bool| {
            let mut largest: HashMap<usize, usize> = HashMap::new();
            for block in state.blocks.iter().filter(|block| wanted(block)) {
                let bytes = largest.entry(block.first).or_default();
                *bytes = block.mapped.max(*bytes);
            }
            largest.into_values().sum::<usize>()
        };
        largest(&|block| block.backend.is_some()) - largest(&|block| block.freed.is_none())
    }

    /// Gives the backend what was freed, behind its last use.
    pub(crate) fn release(&self, device: &dyn Device) {
        let freed: Vec<_> = self
            .lock()
            .blocks
            .iter_mut()
            .filter(|block| block.freed.is_some())
            .filter_map(|block| Some((block.backend.take()?, block.freed.clone().flatten())))
            .collect();
        for (memory, last) in freed {
            match last.map_or(Ok(()), |last| device.synchronize(&last)) {
                Ok(()) => drop(memory),
                // It may still be in use.
                Err(_) => mem::forget(memory),
            }
        }
    }

    /// A memory of the same bytes, whose backend's memory stays here.
    fn keep(
        self: &Arc<Self>,
        memory: Memory,
        mapped: usize,
        extended: Option<(CommId, WindowId)>,
    ) -> Memory {
        let mut state = self.lock();
        let index = state.blocks.len();
        let old = extended.and_then(|window| state.windows.get(&window));
        let first = old.map_or(index, |&old| state.blocks[old].first);
        let quarantine = Arc::clone(self);
        let free = move |last| quarantine.lock().blocks[index].freed = Some(last);
        let (device, addr, bytes) = (memory.device(), memory.addr(), memory.bytes());
        // SAFETY: The backend's memory keeps the range, and this keeps that beyond the hook.
        let shown = unsafe { Memory::new(device, addr, bytes, free) };
        state.blocks.push(Block {
            first,
            mapped,
            id: shown.id(),
            backend: Some(memory),
            freed: None,
        });
        shown
    }
}

impl Drop for Quarantine {
    /// What was not released may be in use for ever: the case has failed.
    fn drop(&mut self) {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let kept = state.blocks.iter_mut();
        kept.filter_map(|block| block.backend.take())
            .for_each(mem::forget);
    }
}

/// Has the symmetric memory of a communicator kept.
#[derive(Debug)]
pub(crate) struct Quarantined {
    quarantine: Arc<Quarantine>,
    /// Windows keep bytes mapped.
    windows: HashMap<WindowId, KeepAlive>,
}

impl Quarantined {
    pub(crate) fn new(quarantine: &Arc<Quarantine>) -> Self {
        Self {
            quarantine: Arc::clone(quarantine),
            windows: HashMap::new(),
        }
    }
}

impl Layer for Quarantined {
    fn allocate(
        &mut self,
        inner: &mut dyn Communicator,
        bytes: usize,
        extend: Option<WindowId>,
    ) -> Result<Memory> {
        let memory = symmetric_of(inner)?.allocate(bytes, extend)?;
        let info = inner.info();
        let mapped = info.mapped(memory.bytes());
        let extended = extend.map(|window| (info.id, window));
        Ok(self.quarantine.keep(memory, mapped, extended))
    }

    fn register(&mut self, inner: &mut dyn Communicator, memory: &Memory) -> Result<WindowId> {
        let find = |block: &Block| block.id == memory.id();
        let index = self.quarantine.lock().blocks.iter().position(find);
        let Some(index) = index else {
            return symmetric_of(inner)?.register(memory);
        };
        let backend = self.quarantine.lock().blocks[index].backend.clone();
        let window = symmetric_of(inner)?.register(backend.as_ref().unwrap_or(memory))?;
        let name = (inner.info().id, window);
        self.quarantine.lock().windows.insert(name, index);
        self.windows.insert(window, memory.keep_alive());
        Ok(window)
    }

    fn retire(&mut self, inner: &mut dyn Communicator, window: WindowId) -> Result<()> {
        symmetric_of(inner)?.retire(window)?;
        self.windows.remove(&window);
        Ok(())
    }

    fn shutdown(&mut self, inner: &mut dyn Communicator) -> Result<Deferred> {
        let deferred = inner.shutdown()?;
        self.windows.clear();
        Ok(deferred)
    }

    fn for_child(&self) -> Self {
        Self::new(&self.quarantine)
    }
}
