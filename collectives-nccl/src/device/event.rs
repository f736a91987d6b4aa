//! Events of the driver.

use std::sync::Arc;

use collectives_core::error::{Misuse, Result};
use collectives_core::rank::DeviceId;
use collectives_core::stream::{Fence, FenceHandle};

use super::garbage::Item;
use super::shared::Shared;
use crate::driver::{EVENT_DISABLE_TIMING, RawEvent};

/// An event, destroyed by the device's next collection after it is dropped.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) raw: RawEvent,
    shared: Arc<Shared>,
}

/// The handle behind a [`Fence`] of this backend. Captured graphs own it by a clone of the fence.
#[derive(Debug)]
pub(crate) struct CudaFence {
    device: DeviceId,
    pub(crate) event: Event,
}

impl FenceHandle for CudaFence {}

impl Event {
    pub(crate) fn new(shared: &Arc<Shared>) -> Result<Self> {
        let _current = shared.context.enter_relaxed()?;
        let mut raw = RawEvent::NULL;
        // SAFETY: `cuEventCreate` (cuda.h, "Event Management") writes one handle.
        unsafe {
            shared
                .driver()
                .event_create(&raw mut raw, EVENT_DISABLE_TIMING)
        }?;
        Ok(Self {
            raw,
            shared: Arc::clone(shared),
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.shared.garbage.push(Item::Event(self.raw), None);
    }
}

impl CudaFence {
    pub(crate) fn new(shared: &Arc<Shared>) -> Result<Self> {
        Ok(Self {
            device: shared.id,
            event: Event::new(shared)?,
        })
    }
}

/// The fence behind `fence`, if it is one of this backend and this device.
pub(crate) fn fence_of(device: DeviceId, fence: &Fence) -> Result<&CudaFence> {
    match fence.downcast::<CudaFence>() {
        Some(cuda) if cuda.device == device => Ok(cuda),
        _ => Err(Misuse::WrongDevice { what: "the fence" }.into()),
    }
}
