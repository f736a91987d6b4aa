//! What a lease keeps of its slot.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard, atomic::AtomicBool};

use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::memory::{Entered, KeepAlive};
use collectives_core::scratch::{LeaseHold, SlotId};
use collectives_core::stream::{Fence, StreamRef};
#[cfg(loom)]
use collectives_core::sync::{AtomicBool, Mutex, MutexGuard};

/// The part of a slot that its lease gives back, from whatever thread.
///
/// It keeps the bytes mapped, so that a lease may outlive its pool. It is alone on its cache lines,
/// so that pools on different threads write none that they share.
#[repr(align(128))]
pub(super) struct Hold {
    id: SlotId,
    busy: AtomicBool,
    /// Whether the use has to be recorded at its end. Written before the lease is handed out.
    records: AtomicBool,
    /// How the use ends; locked only by uses that record.
    end: Mutex<Option<End>>,
    pub(super) fence: Fence,
    pub(super) device: Arc<dyn Device>,
    _bytes: KeepAlive,
}

/// What the end of a use has to do.
struct End {
    stream: StreamRef,
    _entered: Option<Entered>,
}

impl Hold {
    pub(super) fn new(
        id: SlotId,
        fence: Fence,
        device: Arc<dyn Device>,
        bytes: KeepAlive,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            busy: AtomicBool::new(false),
            records: AtomicBool::new(false),
            end: Mutex::new(None),
            fence,
            device,
            _bytes: bytes,
        })
    }

    /// Whether a lease is out. What its holder did before giving it back happened before this.
    #[inline]
    pub(super) fn is_leased(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Marks the slot leased. Only the pool does, through `&mut`, so that nobody else can between
    /// it and [`Hold::is_leased`].
    #[inline]
    pub(super) fn take(&self) {
        self.busy.store(true, Ordering::Relaxed);
    }

    /// Makes the end of the coming use record the fence on `stream`, and let launches of graphs in
    /// again after that.
    pub(super) fn record_at_end(&self, stream: &StreamRef, entered: Option<Entered>) {
        *self.lock() = Some(End {
            stream: stream.clone(),
            _entered: entered,
        });
        self.records.store(true, Ordering::Relaxed);
    }

    /// Ends the use, and the lease with it.
    #[inline]
    pub(super) fn give_back(&self) -> Result<()> {
        let recorded = if self.records.load(Ordering::Relaxed) {
            self.record()
        } else {
            Ok(())
        };
        self.busy.store(false, Ordering::Release);
        recorded
    }

    #[inline(never)]
    fn record(&self) -> Result<()> {
        self.records.store(false, Ordering::Relaxed);
        match self.lock().take() {
            Some(end) => self.device.record(&self.fence, &end.stream),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<End>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseHold for Hold {
    #[inline]
    fn complete(&self) -> Result<()> {
        self.give_back()
    }

    fn abandon(&self) {
        if let Err(error) = self.give_back() {
            tracing::warn!(slot = self.id.0, %error, "an abandoned lease could not be ordered");
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("slot", &self.id.0)
            .field("leased", &self.is_leased())
            .finish_non_exhaustive()
    }
}
