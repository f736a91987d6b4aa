//! What destructors leave to be freed later, after the last work that used it.

use std::any::Any;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use collectives_core::error::Result;
use collectives_core::stream::StreamRef;

use super::stream::{CudaStream, Settled};
use super::vmm::Block;
use crate::driver::{Code, Context, DevicePointer, Driver, RawEvent, RawStream, driver_error};

/// Something to be given back.
pub(crate) enum Item {
    Stream(RawStream),
    Event(RawEvent),
    /// Ordinary memory, and how many bytes of it.
    Memory(DevicePointer, usize),
    Block(Block),
    /// Only kept until the work has finished.
    Hold(#[expect(dead_code, reason = "held for its drop")] Box<dyn Any + Send>),
}

struct Pending {
    item: Item,
    after: Option<StreamRef>,
    /// Recorded behind the last work on `after`.
    event: Option<RawEvent>,
}

/// The queue. Pushing takes a lock that is never held across a call of the driver.
#[derive(Default)]
pub(crate) struct Garbage(Mutex<Vec<Pending>>);

impl Garbage {
    /// Queues something that work enqueued on `after` may still use.
    pub(crate) fn push(&self, item: Item, after: Option<StreamRef>) {
        self.lock().push(Pending {
            item,
            after,
            event: None,
        });
    }

    /// How much there is to do.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Frees what no work uses any more, and gives the bytes of ordinary memory among it; never
    /// waits.
    ///
    /// The caller has made the context current, in relaxed mode.
    pub(crate) fn collect(&self, context: Context) -> usize {
        let taken = std::mem::take(&mut *self.lock());
        let mut left = Vec::new();
        let mut freed = 0;
        for mut pending in taken {
            match pending.is_settled(context.driver) {
                Ok(true) => freed += pending.free(context.driver),
                Ok(false) => left.push(pending),
                Err(error) => {
                    // The device has failed, so nothing runs on it any more.
                    tracing::debug!(%error, "freeing without knowing whether work has finished");
                    freed += pending.free(context.driver);
                }
            }
        }
        self.lock().append(&mut left);
        freed
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn is_settled(&mut self, driver: &'static Driver) -> Result<bool> {
        if let Some(event) = self.event {
            // SAFETY: `CudaStream::settled_or_event` made the event, and `free` destroys it once.
            return ready(unsafe { driver.event_query(event) });
        }
        let Some(stream) = self
            .after
            .as_ref()
            .and_then(StreamRef::downcast::<CudaStream>)
        else {
            return Ok(true);
        };
        match stream.settled_or_event()? {
            Settled::Yes => Ok(true),
            Settled::NotYet => Ok(false),
            Settled::When(event) => {
                self.event = Some(event);
                Ok(false)
            }
        }
    }

    /// Frees it, and gives its bytes if it is ordinary memory.
    fn free(self, driver: &'static Driver) -> usize {
        if let Some(event) = self.event {
            // SAFETY: Made for this entry, and nobody else has it.
            report(unsafe { driver.event_destroy(event) });
        }
        match self.item {
            // SAFETY: The handle's owner is gone, and each is queued once.
            Item::Stream(stream) => report(unsafe { driver.stream_destroy(stream) }),
            // SAFETY: As above.
            Item::Event(event) => report(unsafe { driver.event_destroy(event) }),
            Item::Memory(pointer, bytes) => {
                // SAFETY: As above, and the last user's work has finished.
                report(unsafe { driver.mem_free(pointer) });
                return bytes;
            }
            Item::Block(block) => report(block.unmap(driver)),
            Item::Hold(_) => {}
        }
        0
    }
}

/// Whether a query says that something has finished.
pub(crate) fn ready(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if driver_error(&error) == Some(Code::NOT_READY) => Ok(false),
        Err(error) => Err(error),
    }
}

fn report(result: Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "something could not be given back to the driver");
    }
}

impl fmt::Debug for Garbage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Garbage({})", self.len())
    }
}
