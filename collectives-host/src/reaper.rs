//! Releases what graphs owned, on a thread that is nobody's, as CUDA's user objects are.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::memory::Memory;

/// What one graph owned, and from when on it may be released.
type Parcel = (Instant, Vec<Memory>);

/// The thread, started when it is first needed; it ends after the last reference to this.
#[derive(Debug)]
pub(crate) struct Reaper {
    delay: Duration,
    sender: Mutex<Option<Sender<Parcel>>>,
    pending: Arc<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    parcels: Mutex<usize>,
    changed: Condvar,
}

/// Memory that a graph owns; the drop hands it to the reaper.
#[derive(Debug)]
pub(crate) struct Owned {
    memories: Vec<Memory>,
    reaper: Arc<Reaper>,
}

impl Reaper {
    pub(crate) fn new(delay: Duration) -> Self {
        Self {
            delay,
            sender: Mutex::new(None),
            pending: Arc::default(),
        }
    }

    /// Waits until everything handed over so far and meanwhile is released.
    pub(crate) fn settle(&self) {
        let mut parcels = self.pending.lock();
        while *parcels > 0 {
            parcels = self
                .pending
                .changed
                .wait(parcels)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn release(&self, memories: Vec<Memory>) {
        if memories.is_empty() {
            return;
        }
        *self.pending.lock() += 1;
        let parcel = (Instant::now() + self.delay, memories);
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.is_none() {
            *sender = start(&self.pending);
        }
        let unsent = match &*sender {
            Some(sender) => sender.send(parcel).err().map(|unsent| unsent.0),
            None => Some(parcel),
        };
        drop(sender);
        if let Some(parcel) = unsent {
            tracing::warn!("no thread to release a graph's memory on; releasing it in place");
            drop(parcel);
            self.pending.done();
        }
    }
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.parcels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self) {
        *self.lock() -= 1;
        self.changed.notify_all();
    }
}

impl Owned {
    pub(crate) fn new(memories: Vec<Memory>, reaper: Arc<Reaper>) -> Self {
        Self { memories, reaper }
    }

    pub(crate) fn memories(&self) -> &[Memory] {
        &self.memories
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.reaper.release(std::mem::take(&mut self.memories));
    }
}

fn start(pending: &Arc<Pending>) -> Option<Sender<Parcel>> {
    let (sender, parcels) = channel::<Parcel>();
    let pending = Arc::clone(pending);
    let spawned = thread::Builder::new()
        .name("graph-reaper".to_owned())
        .spawn(move || {
            for (due, memories) in parcels {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                drop(memories);
                pending.done();
            }
        });
    spawned.is_ok().then_some(sender)
}

#[cfg(test)]
mod tests {
    use std::thread::ThreadId;

    use collectives_core::rank::DeviceId;

    use super::*;

    #[test]
    fn memory_is_released_late_and_on_another_thread() {
        let delay = Duration::from_millis(30);
        let reaper = Arc::new(Reaper::new(delay));
        let seen: Arc<Mutex<Option<(ThreadId, Instant)>>> = Arc::default();
        let hook = Arc::clone(&seen);
        let memory = Memory::token(DeviceId::fresh(), move || {
            *hook.lock().unwrap() = Some((thread::current().id(), Instant::now()));
        });
        let before = Instant::now();
        drop(Owned::new(vec![memory], Arc::clone(&reaper)));
        assert!(seen.lock().unwrap().is_none());
        reaper.settle();
        let (on, at) = seen.lock().unwrap().unwrap();
        assert_ne!(on, thread::current().id());
        assert!(at >= before + delay);
    }
}
