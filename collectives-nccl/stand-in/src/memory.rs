//! Memory of the device, which is memory of the process.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use crate::streams::current;
use crate::world::{Handle, INVALID_VALUE, Kind, Out, World, functions};

/// What physical memory comes in multiples of.
const GRANULE: usize = 2 << 20;
/// What ordinary memory is aligned to.
const ALIGNMENT: usize = 512;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// All the memory there is.
const TOTAL: usize = 1 << 32;

/// Allocations and reserved ranges, by address.
#[derive(Default)]
pub(crate) struct Ranges {
    layouts: BTreeMap<usize, Layout>,
    /// Mapped ranges, and what they map.
    mapped: BTreeMap<usize, (usize, Handle)>,
}

impl World {
    fn obtain(&mut self, bytes: usize, alignment: usize, kind: Kind) -> Result<usize, c_int> {
        if bytes == 0 || bytes > TOTAL {
            return Err(OUT_OF_MEMORY);
        }
        let layout = Layout::from_size_align(bytes, alignment).map_err(|_| INVALID_VALUE)?;
        // SAFETY: The layout has bytes.
        let pointer = unsafe { alloc_zeroed(layout) };
        if pointer.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        let address = pointer.expose_provenance();
        self.ranges.layouts.insert(address, layout);
        self.live.insert(address, kind);
        Ok(address)
    }

    fn give_back(&mut self, address: usize, kind: Kind) -> Result<(), c_int> {
        self.end(address, kind)?;
        if let Some(layout) = self.ranges.layouts.remove(&address) {
            let pointer = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: `obtain` made it of this layout, and `end` let it through once.
            unsafe { dealloc(pointer, layout) };
        }
        Ok(())
    }

    /// Copies at once.
    pub(crate) fn copy_bytes(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), c_int> {
        let (Ok(to), Ok(from)) = (usize::try_from(to), usize::try_from(from)) else {
            return Err(INVALID_VALUE);
        };
        let (to, from) = (
            std::ptr::with_exposed_provenance_mut::<u8>(to),
            std::ptr::with_exposed_provenance::<u8>(from),
        );
        // SAFETY: Whoever copies on the device promises that both ranges are valid.
        unsafe { std::ptr::copy(from, to, bytes) };
        Ok(())
    }
}

functions! {
    fn cuMemAlloc_v2(pointer: Out<u64>, bytes: usize) |world| {
        current()?;
        world.unsafe_in_capture()?;
        pointer.put(world.obtain(bytes, ALIGNMENT, Kind::Memory)? as u64);
        Ok(())
    }
    fn cuMemFree_v2(pointer: usize) |world| {
        world.unsafe_in_capture()?;
        world.give_back(pointer, Kind::Memory)
    }
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |_world| {
        current()?;
        free.put(TOTAL);
        total.put(TOTAL);
        Ok(())
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) |world| {
        current()?;
        world.check(stream, Kind::Stream)?;
        if world.capture_of(stream).is_some() {
            return world.add_node(stream, crate::graphs::STREAM_CAPTURES);
        }
        world.copy_bytes(to, from, bytes)
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) |world| {
        current()?;
        world.check(stream, Kind::Stream)?;
        world.copy_bytes(to, from.expose_provenance() as u64, bytes)
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) |world| {
        current()?;
        world.check(stream, Kind::Stream)?;
        world.copy_bytes(to.expose_provenance() as u64, from, bytes)
    }
    fn cuMemGetAllocationGranularity(granule: Out<usize>, _properties: *const c_void, _option: c_int) |_world| {
        granule.put(GRANULE);
        Ok(())
    }
    fn cuMemCreate(handle: Out<Handle>, bytes: usize, _properties: *const c_void, _flags: u64) |world| {
        current()?;
        if bytes > TOTAL || !bytes.is_multiple_of(GRANULE) {
            return Err(OUT_OF_MEMORY);
        }
        handle.put(world.make(Kind::Physical));
        Ok(())
    }
    fn cuMemRelease(handle: Handle) |world| {
        world.end(handle, Kind::Physical)
    }
    fn cuMemRetainAllocationHandle(_handle: Out<Handle>, _address: *mut c_void) |_world| {
        Err(INVALID_VALUE)
    }
    fn cuMemAddressReserve(pointer: Out<usize>, bytes: usize, alignment: usize, _hint: u64, _flags: u64) |world| {
        current()?;
        pointer.put(world.obtain(bytes, alignment, Kind::Range)?);
        Ok(())
    }
    fn cuMemAddressFree(pointer: usize, _bytes: usize) |world| {
        if world.ranges.mapped.contains_key(&pointer) {
            world.wrong.push("a range was freed that is mapped".to_owned());
        }
        world.give_back(pointer, Kind::Range)
    }
    fn cuMemMap(pointer: usize, bytes: usize, _offset: usize, handle: Handle, _flags: u64) |world| {
        world.check(handle, Kind::Physical)?;
        world.ranges.mapped.insert(pointer, (bytes, handle));
        Ok(())
    }
    fn cuMemUnmap(pointer: usize, bytes: usize) |world| {
        let end = pointer + bytes;
        world.ranges.mapped.retain(|&at, _| at < pointer || at >= end);
        Ok(())
    }
    fn cuMemSetAccess(_pointer: usize, _bytes: usize, _access: *const c_void, _count: usize) |_world| {
        Ok(())
    }
}
