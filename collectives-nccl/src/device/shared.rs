//! What streams, memory and graphs need of their device.

use std::sync::{Mutex, OnceLock, PoisonError};

use collectives_core::error::{Error, Result};
use collectives_core::rank::DeviceId;

use super::captures::Captures;
use super::garbage::Garbage;
use super::vmm::Blocks;
use crate::driver::{Context, Driver, RawEvent, RawStream, STREAM_NON_BLOCKING};
use crate::scale::Kernels;

/// One device. It lives as long as anything made on it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: DeviceId,
    pub(crate) context: Context,
    pub(crate) uuid: [u8; 16],
    /// Compute capability, ten times the major number and the minor.
    pub(crate) compute: u32,
    pub(crate) garbage: Garbage,
    pub(crate) captures: Captures,
    /// Physical memory for windows, or why there is none.
    pub(crate) blocks: Result<Blocks>,
    pub(crate) kernels: OnceLock<Result<Kernels>>,
    /// A stream of ours that never captures, for recording events in other streams' stead.
    helper: Mutex<Option<RawStream>>,
}

impl Shared {
    pub(super) fn new(
        context: Context,
        uuid: [u8; 16],
        compute: u32,
        blocks: Result<Blocks>,
    ) -> Self {
        Self {
            id: DeviceId::fresh(),
            context,
            uuid,
            compute,
            garbage: Garbage::default(),
            captures: Captures::default(),
            blocks,
            kernels: OnceLock::new(),
            helper: Mutex::new(None),
        }
    }

    #[inline]
    pub(crate) fn driver(&self) -> &'static Driver {
        self.context.driver
    }

    /// Frees what destructors queued.
    pub(crate) fn collect(&self) {
        if self.garbage.is_empty() {
            return;
        }
        match self.context.enter_relaxed() {
            Ok(_current) => self.garbage.collect(self.context),
            Err(error) => tracing::debug!(%error, "nothing can be collected"),
        }
    }

    /// Records `event` behind `earlier`, on a stream that never captures.
    pub(crate) fn record_behind(&self, event: RawEvent, earlier: RawEvent) -> Result<()> {
        let _current = self.context.enter_relaxed()?;
        let mut helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = self.driver();
        let stream = match *helper {
            Some(stream) => stream,
            None => {
                let mut stream = RawStream::NULL;
                // SAFETY: `cuStreamCreate` (cuda.h, "Stream Management") writes one handle.
                unsafe { driver.stream_create(&raw mut stream, STREAM_NON_BLOCKING) }?;
                *helper.insert(stream)
            }
        };
        // SAFETY: `cuStreamWaitEvent` (same section): both handles are valid.
        unsafe { driver.stream_wait_event(stream, earlier, 0) }?;
        // SAFETY: `cuEventRecord` (cuda.h, "Event Management"): as above.
        unsafe { driver.event_record(event, stream) }
    }

    /// The blocks of physical memory.
    pub(crate) fn blocks(&self) -> Result<&Blocks> {
        self.blocks.as_ref().map_err(Error::clone)
    }
}
