//! Counted memory: who owns bytes, and when they may go.
//!
//! [`Memory`] counts *owners*: a slot of a pool, a user's buffer, a captured graph. When the last
//! owner is gone the memory may be retired, but never before. [`KeepAlive`] keeps the bytes mapped
//! without being an owner: a registered window holds one, so that the bytes outlive their window.
//! Dropping either only counts down; the last count runs the backend's free hook, which queues.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use crate::addr::Addr;
use crate::error::{Misuse, Result};
use crate::rank::{DeviceId, StreamId};
use crate::stream::StreamRef;
use crate::sync::{self, AtomicBool, Counted, Mutex, MutexGuard};

type FreeHook = Box<dyn FnOnce(Option<StreamRef>) + Send>;

/// A counted range of a device's memory.
///
/// A clone is one more owner. Two values are the same memory when their [`Memory::id`] is equal.
#[derive(Clone)]
pub struct Memory(Counted<Owned>);

/// Alone on its cache lines, so that owners counted on one thread do not slow another thread's. What a
/// call reads comes first, on one of them.
#[repr(C, align(128))]
struct Owned {
    last_user: Mutex<Option<StreamRef>>,
    /// Which stream `last_user` is, as a number, so that who uses the same stream again need not lock. No
    /// other has it while `last_user` holds this one.
    noted: AtomicUsize,
    id: u64,
    device: DeviceId,
    addr: Addr,
    bytes: usize,
    entered: AtomicBool,
    replays: AtomicU64,
    block: Counted<Block>,
}

struct Block {
    free: Mutex<Option<FreeHook>>,
    /// The last user of the last owner.
    freed_after: Mutex<Option<StreamRef>>,
    /// Dropped after the free hook has run.
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

/// Keeps the bytes of a [`Memory`] mapped without owning them.
#[derive(Clone)]
pub struct KeepAlive(
    #[expect(dead_code, reason = "held for its drop, which counts down")] Counted<Block>,
);

impl Memory {
    /// Counted memory at `addr`, `bytes` long, which `free` gives back.
    ///
    /// `free` runs once, when the last [`Memory`] and the last [`KeepAlive`] are gone, on whatever
    /// thread that happens. It must not block, call the device's library or panic: it queues. It
    /// is given the stream of the last use that was ordered through this crate; work that was
    /// enqueued there before may still be in flight, so the range may be reused only after it.
    ///
    /// # Safety
    ///
    /// The range must stay readable and writable by `device` until `free` runs, and nobody else
    /// may hand it out or free it until then. A token that stands for something else than bytes
    /// has a null address and no bytes.
    pub unsafe fn new(
        device: DeviceId,
        addr: Addr,
        bytes: usize,
        free: impl FnOnce(Option<StreamRef>) + Send + 'static,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Counted::new(Owned {
            last_user: Mutex::new(None),
            noted: AtomicUsize::new(0),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            device,
            addr,
            bytes,
            entered: AtomicBool::new(false),
            replays: AtomicU64::new(0),
            block: Counted::new(Block {
                free: Mutex::new(Some(Box::new(free))),
                freed_after: Mutex::new(None),
                kept: Mutex::new(Vec::new()),
            }),
        }))
    }

    /// A token without bytes, whose `last` hook runs when the last owner is gone.
    #[must_use]
    pub fn token(device: DeviceId, last: impl FnOnce() + Send + 'static) -> Self {
        // SAFETY: The range is empty.
        unsafe { Self::new(device, Addr::NULL, 0, |_| last()) }
    }

    /// A number no other memory of this process has.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The device the bytes belong to.
    #[inline]
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.device
    }

    /// The first byte.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.0.addr
    }

    /// The length in bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Keeps the bytes mapped without being an owner.
    #[must_use]
    pub fn keep_alive(&self) -> KeepAlive {
        KeepAlive(Counted::clone(&self.0.block))
    }

    /// Keeps `guard` until the bytes were given back, by the free hook, and drops it then.
    ///
    /// For what must be counted as long as the device has the bytes, whoever owns them. The drop
    /// runs on whatever thread and must not block.
    pub fn keeps(&self, guard: Arc<dyn Any + Send + Sync>) {
        let kept = self.0.block.kept.lock();
        kept.unwrap_or_else(PoisonError::into_inner).push(guard);
    }

    /// Whether this is the only owner, so that no graph and no buffer can still use the bytes.
    ///
    /// It synchronises with the drop of the other owners, which a reference count read plainly
    /// would not.
    #[must_use]
    pub fn is_sole_owner(&mut self) -> bool {
        sync::is_sole_owner(&mut self.0)
    }

    /// The stream of the last use that was ordered through this crate.
    #[must_use]
    pub fn last_stream(&self) -> Option<StreamId> {
        self.lock_last_user().as_ref().map(StreamRef::id)
    }

    /// Keeps launches of graphs that own this memory away until the guard is dropped.
    ///
    /// An allocator holds it from the moment it orders an eager use of a slot that graphs own
    /// until it has recorded the end of that use: a replay in between would be ordered with the
    /// use before. It never waits.
    ///
    /// # Errors
    ///
    /// [`Misuse::InUse`] while another guard exists.
    pub fn try_enter(&self) -> Result<Entered> {
        let entered = &self.0.entered;
        match entered.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Entered(self.clone())),
            Err(_) => Err(Misuse::InUse.into()),
        }
    }

    /// Replays that [`Executable::launch`] enqueued of graphs that own this memory, each once; those
    /// that a framework launches by itself are not seen.
    ///
    /// [`Executable::launch`]: crate::graph::Executable::launch
    #[must_use]
    pub fn replays(&self) -> u64 {
        self.0.replays.load(Ordering::Relaxed)
    }

    /// Notes that work on the memory is enqueued on a stream.
    #[inline(always)]
    pub(crate) fn note_user(&self, stream: &StreamRef) {
        if self.0.noted.load(Ordering::Relaxed) != stream.address() {
            self.note_locked(&mut self.lock_last_user(), stream);
        }
    }

    /// The same for who has locked the last user.
    #[inline(always)]
    pub(crate) fn note_locked(&self, last: &mut Option<StreamRef>, stream: &StreamRef) {
        if last.as_ref().is_none_or(|last| !last.is_same_as(stream)) {
            *last = Some(stream.clone());
            self.0.noted.store(stream.address(), Ordering::Relaxed);
        }
    }

    /// Whether this is the very memory, by the same counter.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Counted::ptr_eq(&self.0, &other.0)
    }

    #[inline(always)]
    pub(crate) fn lock_last_user(&self) -> MutexGuard<'_, Option<StreamRef>> {
        self.0
            .last_user
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The guard of [`Memory::try_enter`]; also an owner of the memory.
#[derive(Debug)]
#[must_use]
pub struct Entered(Memory);

impl Entered {
    /// Counts a replay of a graph that owns the memory.
    pub(crate) fn count_replay(&self) {
        self.0.0.replays.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.0.entered.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Memory(#{} {:?}+{:#x} on device {})",
            self.id(),
            self.addr(),
            self.bytes(),
            self.device()
        )
    }
}

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepAlive")
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let last = self.last_user.get_mut();
        let last = last.unwrap_or_else(PoisonError::into_inner).take();
        let slot = self.block.freed_after.lock();
        *slot.unwrap_or_else(PoisonError::into_inner) = last;
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let free = self.free.get_mut();
        let free = free.unwrap_or_else(PoisonError::into_inner).take();
        let after = self.freed_after.get_mut();
        let after = after.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(free) = free {
            free(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn bytes_outlive_their_owners_while_kept_alive() {
        let freed = Arc::new(AtomicBool::new(false));
        let hook = Arc::clone(&freed);
        let mut memory = Memory::token(DeviceId::fresh(), move || {
            hook.store(true, Ordering::Relaxed);
        });
        let keep = memory.keep_alive();
        assert!(memory.is_sole_owner());
        let graph = memory.clone();
        assert!(!memory.is_sole_owner());
        drop(graph);
        assert!(memory.is_sole_owner());
        let kept = Arc::new(());
        memory.keeps(Arc::<()>::clone(&kept));
        drop(memory);
        assert!(!freed.load(Ordering::Relaxed));
        assert_eq!(Arc::strong_count(&kept), 2, "the bytes are still mapped");
        drop(keep);
        assert!(freed.load(Ordering::Relaxed));
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
