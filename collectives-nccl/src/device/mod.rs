//! A GPU: streams, memory, copies and order.

mod calls;
pub(crate) mod captures;
mod children;
mod departing;
pub(crate) mod event;
pub(crate) mod garbage;
mod graph;
pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod vmm;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use collectives_core::addr::Addr;
use collectives_core::error::{Error, ErrorKind, Misuse, Result, Unsupported};
use collectives_core::memory::Memory;
use collectives_core::rank::Rank;
use collectives_core::stream::Stream;

use crate::driver::{
    Code, Context, DevicePointer, Driver, RawContext, RawStream, attribute, driver, driver_error,
};
use crate::error::BACKEND;
use garbage::Item;
use shared::Shared;
use stream::CudaStream;
use vmm::{Blocks, Chunks};

pub(crate) use graph::{capture, end_capture, kernel_names};

/// One GPU of this process, through its primary context, which other libraries share.
///
/// Calls work on any thread, leave the caller's context current and disturb no capture of another
/// thread. Once opened it lasts as long as the process, as the context does.
#[derive(Debug)]
pub struct CudaDevice {
    pub(crate) shared: Arc<Shared>,
}

impl CudaDevice {
    /// The GPU with this ordinal among those the process sees; the same device for the same
    /// ordinal.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) without a CUDA driver or with one that is too old,
    /// and [`Native`](ErrorKind::Native) when there is no such GPU.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        static OPEN: Mutex<BTreeMap<usize, Arc<CudaDevice>>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.get(&ordinal) {
            return Ok(Arc::clone(device));
        }
        let device = Arc::new(
            Self::make(ordinal).map_err(|error| error.during("open").on_backend(BACKEND))?,
        );
        open.insert(ordinal, Arc::clone(&device));
        Ok(device)
    }

    /// GPUs the process sees; none without a driver.
    #[must_use]
    pub fn count() -> usize {
        let mut count = 0;
        let counted = driver().and_then(|driver| {
            // SAFETY: `cuDeviceGetCount` (cuda.h, "Device Management") writes one number.
            unsafe { driver.device_get_count(&raw mut count) }
        });
        counted.map_or(0, |()| usize::try_from(count).unwrap_or(0))
    }

    /// A stream that somebody else made, a framework's for example.
    ///
    /// Captures may begin on it without our knowing. Each eager use of it is marked with an event,
    /// so that the first capture that claims a slot can wait for it.
    ///
    /// # Errors
    ///
    /// [`Misuse::WrongDevice`] for a stream of another context.
    ///
    /// # Safety
    ///
    /// `stream` is a valid `CUstream`, also `CU_STREAM_LEGACY` or `CU_STREAM_PER_THREAD` by its
    /// constant, which outlives its last use through the result and everything that was enqueued
    /// through it, and no capture begins on it while another thread enqueues on the result.
    pub unsafe fn stream_from_raw(&self, stream: *mut c_void) -> Result<Stream> {
        // SAFETY: By the caller.
        let stream = unsafe { CudaStream::foreign(&self.shared, RawStream(stream)) }?;
        Ok(Stream::new(Arc::new(stream)))
    }

    /// Free and total bytes of the GPU, whoever uses them.
    ///
    /// # Errors
    ///
    /// When the device has failed.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let _current = self.shared.context.enter_relaxed()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: `cuMemGetInfo` (cuda.h, "Memory Management") writes two numbers.
        unsafe { self.driver().mem_get_info(&raw mut free, &raw mut total) }?;
        Ok((free, total))
    }

    /// Bytes that symmetric memory maps on this device, in whole granules.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.shared.blocks.as_ref().map_or(0, Blocks::mapped_bytes)
    }

    /// Bytes of ordinary memory allocated through this device and not freed yet.
    #[must_use]
    pub fn ordinary_bytes(&self) -> usize {
        self.shared.ordinary.load(Ordering::Relaxed)
    }

    /// Things whose last owner is gone and that are not given back yet: because work may still use
    /// them (see [`Device::collect`](collectives_core::device::Device::collect)), or because a graph
    /// of ours owned them and the driver, which does that late and on a thread of its own, has not
    /// dropped them.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        // In the order in which things pass from one to the other.
        self.shared.captures.departing() + self.shared.garbage.len()
    }

    fn make(ordinal: usize) -> Result<Self> {
        let driver = driver()?;
        let ordinal = c_int::try_from(ordinal)
            .map_err(|_| Misuse::Other(format!("there is no GPU {ordinal}")))?;
        let (mut device, mut uuid, mut raw) = (0, [0; 16], RawContext::NULL);
        // SAFETY: `cuDeviceGet` (cuda.h, "Device Management") writes a number.
        unsafe { driver.device_get(&raw mut device, ordinal) }?;
        // SAFETY: `cuDeviceGetUuid` (same section) writes 16 bytes.
        unsafe { driver.device_get_uuid(&raw mut uuid, device) }?;
        let attribute = |which| -> Result<c_int> {
            let mut value = 0;
            // SAFETY: `cuDeviceGetAttribute` (same section) writes a number.
            unsafe { driver.device_get_attribute(&raw mut value, which, device) }?;
            Ok(value)
        };
        let compute =
            attribute(attribute::COMPUTE_MAJOR)? * 10 + attribute(attribute::COMPUTE_MINOR)?;
        let has = |which| attribute(which).is_ok_and(|value| value != 0);
        // SAFETY: `cuDevicePrimaryCtxRetain` (cuda.h, "Primary Context Management") writes a
        // handle, which stays valid because it is never released.
        unsafe { driver.primary_context_retain(&raw mut raw, device) }?;
        let context = Context { driver, raw };
        let current = context.enter_relaxed()?;
        let blocks = match has(attribute::VMM) {
            true => Blocks::new(
                context,
                device,
                has(attribute::FABRIC),
                has(attribute::RDMA_WITH_VMM),
            ),
            false => {
                let text = "this GPU has no virtual memory management".to_owned();
                Err(Error::unsupported(Unsupported::SymmetricMemory(text)))
            }
        };
        drop(current);
        let compute = u32::try_from(compute).unwrap_or(0);
        let shared = Shared::new(context, uuid, compute, blocks);
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    fn driver(&self) -> &'static Driver {
        self.shared.driver()
    }

    /// Symmetric memory of at least `bytes` bytes, mapping `first` first.
    pub(crate) fn allocate_symmetric(
        &self,
        bytes: usize,
        first: Option<Chunks>,
        rank: Rank,
    ) -> Result<Memory> {
        self.shared.collect();
        let blocks = self.shared.blocks()?;
        let _current = self.shared.context.enter_relaxed()?;
        // More than addresses can express is more than there is.
        let whole = bytes.checked_next_multiple_of(blocks.granule());
        let whole = whole.ok_or_else(|| Error::new(ErrorKind::OutOfMemory { rank, bytes }))?;
        let block = blocks
            .create(whole, first)
            .map_err(|error| out_of_memory(error, bytes, rank))?;
        let base = address(block.base());
        let length = block.bytes();
        let shared = Arc::clone(&self.shared);
        // SAFETY: The block is mapped for reading and writing until it is unmapped, which the
        // garbage does after the hook queued it, and nobody else knows the range.
        Ok(unsafe {
            Memory::new(self.shared.id, base, length, move |after| {
                if let Ok(blocks) = &shared.blocks {
                    blocks.forget(base);
                }
                shared.garbage.push(Item::Block(block), after);
            })
        })
    }
}

/// A device address as one of ours.
pub(crate) fn address(pointer: DevicePointer) -> Addr {
    let value = usize::try_from(pointer).unwrap_or(0);
    Addr::from_ptr(std::ptr::with_exposed_provenance_mut::<u8>(value))
}

fn pointer(addr: Addr) -> DevicePointer {
    addr.value() as DevicePointer
}

/// Turns the driver's "out of memory" into ours.
fn out_of_memory(error: Error, bytes: usize, rank: Rank) -> Error {
    match driver_error(&error) {
        Some(Code::OUT_OF_MEMORY) => {
            Error::new(ErrorKind::OutOfMemory { rank, bytes }).caused_by(error)
        }
        _ => error,
    }
}
