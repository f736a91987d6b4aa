//! Physical memory, and address ranges that map it: what a window can be registered over.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use collectives_core::addr::Addr;
use collectives_core::error::Result;

use crate::driver::{
    Access, AllocationProp, Context, DevicePointer, Driver, GRANULARITY_RECOMMENDED, HANDLE_FABRIC,
    HANDLE_POSIX_FD, Location, Physical, RawDevice,
};

/// One piece of physical memory, which several address ranges may map.
#[derive(Debug)]
struct Chunk {
    handle: Physical,
    bytes: usize,
    context: Context,
}

/// An address range that maps chunks one after another, each whole.
#[derive(Debug)]
pub(crate) struct Block {
    base: DevicePointer,
    bytes: usize,
    /// Bytes mapped so far, from the start.
    mapped: usize,
    chunks: Vec<Arc<Chunk>>,
}

/// The chunks of a block that exists, so that a larger one can map them too.
#[derive(Clone, Debug)]
pub(crate) struct Chunks(Vec<Arc<Chunk>>);

/// How this device makes physical memory, and the blocks there are.
#[derive(Debug)]
pub(crate) struct Blocks {
    context: Context,
    prop: AllocationProp,
    granule: usize,
    live: Mutex<BTreeMap<DevicePointer, (usize, Chunks)>>,
}

// SAFETY: The only pointer inside is null and means nothing on this platform.
unsafe impl Send for Blocks {}
// SAFETY: As for `Send`.
unsafe impl Sync for Blocks {}

impl Blocks {
    pub(crate) fn new(
        context: Context,
        device: RawDevice,
        fabric: bool,
        rdma: bool,
    ) -> Result<Self> {
        let mut prop = AllocationProp {
            kind: 1,
            handle_types: HANDLE_POSIX_FD,
            location: Location {
                kind: 1,
                id: device,
            },
            win32: std::ptr::null_mut(),
            compression: 0,
            rdma_capable: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        };
        let granule = granularity(context.driver, &prop)?;
        if fabric {
            // The device may have it and the system not allow it, which only a try tells.
            let with_fabric = AllocationProp {
                handle_types: HANDLE_POSIX_FD | HANDLE_FABRIC,
                ..prop
            };
            let tried = granularity(context.driver, &with_fabric)
                .and_then(|granule| Chunk::create(context, &with_fabric, granule));
            match tried {
                Ok(_) => prop = with_fabric,
                Err(error) => tracing::debug!(%error, "no fabric handles on this system"),
            }
        }
        Ok(Self {
            context,
            prop,
            granule,
            live: Mutex::default(),
        })
    }

    pub(crate) fn granule(&self) -> usize {
        self.granule
    }

    /// A block that maps `first` and then new physical memory, up to `bytes`, which are whole granules.
    pub(crate) fn create(&self, bytes: usize, first: Option<Chunks>) -> Result<Block> {
        let driver = self.context.driver;
        let mut chunks = first.map_or_else(Vec::new, |chunks| chunks.0);
        let have: usize = chunks.iter().map(|chunk| chunk.bytes).sum();
        let total = bytes.max(have);
        if total > have {
            let chunk = Chunk::create(self.context, &self.prop, total - have)?;
            chunks.push(Arc::new(chunk));
        }
        let mut base = 0;
        // SAFETY: `cuMemAddressReserve` (cuda.h, "Virtual Memory Management") writes an address;
        // size and alignment are multiples of the granularity.
        unsafe { driver.mem_address_reserve(&raw mut base, total, self.granule, 0, 0) }?;
        let mut block = Block {
            base,
            bytes: total,
            mapped: 0,
            chunks,
        };
        match block.map(driver, self.prop.location) {
            Ok(()) => {
                let chunks = Chunks(block.chunks.clone());
                self.lock().insert(base, (total, chunks));
                Ok(block)
            }
            Err(error) => {
                if let Err(error) = block.unmap(driver) {
                    tracing::debug!(%error, "a block that was not made could not be undone");
                }
                Err(error)
            }
        }
    }

    /// The chunks of the block that begins at an address and is this long.
    pub(crate) fn find(&self, base: Addr, bytes: usize) -> Option<Chunks> {
        let live = self.lock();
        let (length, chunks) = live.get(&(base.value() as DevicePointer))?;
        (*length == bytes).then(|| chunks.clone())
    }

    /// Forgets a block, so that its chunks go when its range does.
    pub(crate) fn forget(&self, base: Addr) {
        self.lock().remove(&(base.value() as DevicePointer));
    }

    /// Mapped bytes of all blocks; memory that several of them map counts once.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let live = self.lock();
        let chunks = live.values().flat_map(|(_, chunks)| &chunks.0);
        let distinct: BTreeMap<_, _> = chunks
            .map(|chunk| (Arc::as_ptr(chunk), chunk.bytes))
            .collect();
        distinct.values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DevicePointer, (usize, Chunks)>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Block {
    pub(crate) fn base(&self) -> DevicePointer {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn map(&mut self, driver: &Driver, location: Location) -> Result<()> {
        for chunk in &self.chunks {
            let at = self.base + self.mapped as DevicePointer;
            // SAFETY: `cuMemMap` (cuda.h, "Virtual Memory Management"): the range is reserved and
            // not mapped yet, and the chunk is mapped whole from its start.
            unsafe { driver.mem_map(at, chunk.bytes, 0, chunk.handle, 0) }?;
            self.mapped += chunk.bytes;
        }
        let access = Access { location, flags: 3 };
        // SAFETY: `cuMemSetAccess` (same section): the whole range is mapped.
        unsafe { driver.mem_set_access(self.base, self.bytes, &raw const access, 1) }
    }

    /// Gives the addresses back, and the physical memory if nobody else maps it.
    pub(crate) fn unmap(self, driver: &Driver) -> Result<()> {
        let unmapped = match self.mapped {
            0 => Ok(()),
            // SAFETY: `cuMemUnmap` (same section): the first `mapped` bytes are mapped, whole
            // chunks, and no work uses them any more.
            mapped => unsafe { driver.mem_unmap(self.base, mapped) },
        };
        // SAFETY: `cuMemAddressFree` (same section): reserved with this length.
        let freed = unsafe { driver.mem_address_free(self.base, self.bytes) };
        unmapped.and(freed)
    }
}

impl Chunk {
    fn create(context: Context, prop: &AllocationProp, bytes: usize) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: `cuMemCreate` (cuda.h, "Virtual Memory Management") reads the properties and
        // writes a handle.
        unsafe {
            context
                .driver
                .mem_create(&raw mut handle, bytes, &raw const *prop, 0)
        }?;
        Ok(Self {
            handle,
            bytes,
            context,
        })
    }
}

impl Drop for Chunk {
    /// Runs where the last block that maps it is unmapped, which is never in a destructor.
    fn drop(&mut self) {
        let release = || {
            let _current = self.context.enter_relaxed()?;
            // SAFETY: `cuMemRelease` (cuda.h, "Virtual Memory Management"): the handle is ours,
            // and released once; mappings keep the memory.
            unsafe { self.context.driver.mem_release(self.handle) }
        };
        if let Err(error) = release() {
            tracing::debug!(%error, "physical memory could not be released");
        }
    }
}

fn granularity(driver: &Driver, prop: &AllocationProp) -> Result<usize> {
    let mut granule = 0;
    // SAFETY: `cuMemGetAllocationGranularity` (cuda.h, "Virtual Memory Management") reads the
    // properties and writes a number.
    unsafe {
        driver.mem_get_granularity(&raw mut granule, &raw const *prop, GRANULARITY_RECOMMENDED)
    }?;
    Ok(granule.max(1))
}
