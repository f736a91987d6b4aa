//! Fences: the latest record, whichever stream it was on.

use std::sync::{Arc, Mutex, PoisonError};

use collectives_core::error::{Misuse, Result};
use collectives_core::rank::DeviceId;
use collectives_core::stream::{Fence, FenceHandle};

use crate::event::Event;
use crate::queue::Queue;

/// The handle behind a [`Fence`] of this backend.
#[derive(Debug)]
pub(crate) struct HostFence {
    device: DeviceId,
    /// `None` when there is no record, or one that was complete when it was made.
    latest: Mutex<Option<Event>>,
}

impl FenceHandle for HostFence {}

impl HostFence {
    pub(crate) fn new(device: DeviceId) -> Self {
        Self {
            device,
            latest: Mutex::new(None),
        }
    }

    /// Makes `event` the latest record.
    pub(crate) fn record(&self, event: Option<Event>) {
        let previous = std::mem::replace(&mut *self.lock(), event);
        drop(previous);
    }

    /// What a wait on `queue` has to wait for now.
    pub(crate) fn latest_for(&self, queue: &Arc<Queue>) -> Option<Event> {
        self.lock()
            .as_ref()
            .filter(|event| !event.is_before(queue))
            .cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Event>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fence behind `fence`, if it is one of this backend and this device.
pub(crate) fn fence_of(device: DeviceId, fence: &Fence) -> Result<&HostFence> {
    match fence.downcast::<HostFence>() {
        Some(host) if host.device == device => Ok(host),
        _ => Err(Misuse::WrongDevice { what: "the fence" }.into()),
    }
}
