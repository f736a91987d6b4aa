//! What streams, memory and graphs need of their device.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use collectives_core::error::{Error, Result};
use collectives_core::rank::DeviceId;

use super::captures::Captures;
use super::garbage::Garbage;
use super::vmm::Blocks;
use crate::driver::{Context, Driver, RawEvent, RawStream, STREAM_NON_BLOCKING};
use crate::scale::Kernels;

/// One device. It lives as long as anything made on it. What calls read comes first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Shared {
    pub(crate) id: DeviceId,
    pub(crate) context: Context,
    pub(crate) uuid: [u8; 16],
    /// Compute capability, ten times the major number and the minor.
    pub(crate) compute: u32,
    pub(crate) garbage: Garbage,
    /// Bytes of ordinary memory that were allocated and are not freed.
    pub(crate) ordinary: AtomicUsize,
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
            ordinary: AtomicUsize::new(0),
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
        if self.garbage.len() == 0 {
            return;
        }
        match self.context.enter_relaxed() {
            Ok(_current) => {
                let freed = self.garbage.collect(self.context);
                self.ordinary.fetch_sub(freed, Ordering::Relaxed);
            }
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
