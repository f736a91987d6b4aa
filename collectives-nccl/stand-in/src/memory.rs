//! Memory of devices, which is memory of the process.
//!
//! Physical memory is a part of one file in memory, so that several ranges can map it. What is not
//! mapped cannot be touched.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::OwnedFd;
use std::ptr;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::devices::{CAPTURE_UNSUPPORTED, current};
use crate::work::{Local, Task};
use crate::world::{Handle, INVALID_VALUE, Kind, Out, World, functions};

/// What physical memory comes in multiples of; small, so that tests that count in it are quick.
const GRANULE: usize = 64 << 10;
/// What ordinary memory is aligned to.
const ALIGNMENT: usize = 512;
/// What ordinary memory holds at first.
const GARBAGE: u8 = 0xa5;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// All the memory that a device has.
const TOTAL: usize = 1 << 32;

/// What there is, by address.
#[derive(Default)]
pub(crate) struct Ranges {
    /// What may be touched: allocations, and pieces of ranges that are mapped.
    spans: BTreeMap<usize, Span>,
    layouts: BTreeMap<usize, Layout>,
    /// Reserved ranges: where the mapping begins and how long it is, with room for the alignment.
    reserved: BTreeMap<usize, (usize, usize)>,
    physical: BTreeMap<Handle, Physical>,
    file: Option<OwnedFd>,
    /// The end of the file.
    end: usize,
    /// Bytes in use, by device.
    used: BTreeMap<usize, usize>,
}

#[derive(Clone, Copy)]
struct Span {
    bytes: usize,
    /// What it maps, if it maps something.
    physical: Option<Handle>,
}

struct Physical {
    offset: usize,
    bytes: usize,
    device: usize,
    /// Ranges that map it.
    mapped: usize,
    /// Whether the handle was given back.
    released: bool,
}

impl Ranges {
    fn spend(&mut self, device: usize, bytes: usize) -> Result<(), c_int> {
        let used = self.used.entry(device).or_default();
        let after = used.checked_add(bytes).filter(|after| *after <= TOTAL);
        *used = after.ok_or(OUT_OF_MEMORY)?;
        Ok(())
    }

    fn earn(&mut self, device: usize, bytes: usize) {
        if let Some(used) = self.used.get_mut(&device) {
            *used = used.saturating_sub(bytes);
        }
    }

    /// Whether all of a range may be touched.
    pub(crate) fn has(&self, address: usize, bytes: usize) -> bool {
        let (mut at, Some(end)) = (address, address.checked_add(bytes)) else {
            return false;
        };
        while at < end {
            let Some((start, span)) = self.spans.range(..=at).next_back() else {
                return false;
            };
            if at - start >= span.bytes {
                return false;
            }
            at = start + span.bytes;
        }
        true
    }

    /// The file, grown by this much, and where that begins.
    fn grow(&mut self, bytes: usize) -> rustix::io::Result<usize> {
        let file = match self.file.take() {
            Some(file) => file,
            None => memfd_create("physical", MemfdFlags::CLOEXEC)?,
        };
        let grown = ftruncate(&file, (self.end + bytes) as u64);
        self.file = Some(file);
        grown?;
        self.end += bytes;
        Ok(self.end - bytes)
    }

    /// Gives physical memory back that nobody has any more.
    fn settle(&mut self, handle: Handle) {
        let Some(physical) = self.physical.get(&handle) else {
            return;
        };
        if !physical.released || physical.mapped > 0 {
            return;
        }
        let (offset, bytes, device) = (physical.offset, physical.bytes, physical.device);
        self.physical.remove(&handle);
        self.earn(device, bytes);
        if let Some(file) = &self.file {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Otherwise the pages go with the process.
            let _ = fallocate(file, hole, offset as u64, bytes as u64);
        }
    }
}

impl World {
    fn obtain(&mut self, bytes: usize) -> Result<usize, c_int> {
        let device = current()?;
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| OUT_OF_MEMORY)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        self.ranges.spend(device, bytes)?;
        // SAFETY: The layout has bytes.
        let pointer = unsafe { alloc(layout) };
        if pointer.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: The allocation has room for all of it.
        unsafe { pointer.write_bytes(GARBAGE, bytes) };
        let address = pointer.expose_provenance();
        self.ranges.layouts.insert(address, layout);
        let span = Span {
            bytes,
            physical: None,
        };
        self.ranges.spans.insert(address, span);
        self.live.insert(address, Kind::Memory);
        Ok(address)
    }

    fn give_back(&mut self, address: usize) -> Result<(), c_int> {
        self.end(address, Kind::Memory)?;
        let device = current()?;
        if let Some(layout) = self.ranges.layouts.remove(&address) {
            self.ranges.spans.remove(&address);
            self.ranges.earn(device, layout.size());
            self.check_unused("freed", address, layout.size());
            // SAFETY: `obtain` made it of this layout, and `end` let it through once.
            unsafe { dealloc(ptr::with_exposed_provenance_mut(address), layout) };
        }
        Ok(())
    }

    /// Notes memory that goes while work is queued that touches it.
    fn check_unused(&mut self, what: &str, address: usize, bytes: usize) {
        if let Some(work) = self.work_on(address, bytes) {
            let text = format!("{bytes} bytes at {address:#x} were {what} under {work}");
            self.wrong.push(text);
        }
    }

    /// The bytes of a range, to be read and written; `None`, which is noted, where they are not there.
    pub(crate) fn bytes_at(&mut self, address: usize, bytes: usize) -> Option<&'static mut [u8]> {
        if bytes > 0 && !self.ranges.has(address, bytes) {
            let text = format!("work touches {bytes} bytes at {address:#x}, which are not there");
            self.wrong.push(text);
            return None;
        }
        if bytes == 0 {
            return Some(&mut []);
        }
        let pointer = ptr::with_exposed_provenance_mut(address);
        // SAFETY: The bytes are there, and whoever touches them holds the lock of the world and lets
        // go of the slice before it gives that up or frees anything.
        Some(unsafe { std::slice::from_raw_parts_mut(pointer, bytes) })
    }

    fn reserve(&mut self, bytes: usize, alignment: usize) -> Result<usize, c_int> {
        let room = bytes.checked_add(alignment.max(GRANULE));
        let room = room.ok_or(OUT_OF_MEMORY)?;
        // SAFETY: A fresh mapping.
        let base = unsafe { untouchable(ptr::null_mut(), room, MapFlags::empty()) };
        let base = base.map_err(|_| OUT_OF_MEMORY)?.expose_provenance();
        let address = base.next_multiple_of(alignment.max(GRANULE));
        self.ranges.reserved.insert(address, (base, room));
        self.live.insert(address, Kind::Range);
        Ok(address)
    }

    fn map(&mut self, address: usize, bytes: usize, handle: Handle) -> Result<(), c_int> {
        self.check(handle, Kind::Physical)?;
        let Ranges {
            reserved,
            physical,
            spans,
            file,
            ..
        } = &mut self.ranges;
        let range = reserved.range(..=address).next_back();
        let fits = range.is_some_and(|(_, (base, room))| address + bytes <= base + room);
        let overlaps = spans.range(..address + bytes).next_back();
        let overlaps = overlaps.is_some_and(|(start, span)| start + span.bytes > address);
        let (Some(physical), Some(file)) = (physical.get_mut(&handle), file) else {
            return Err(INVALID_VALUE);
        };
        if !fits || overlaps || physical.bytes != bytes {
            return Err(INVALID_VALUE);
        }
        let at = ptr::with_exposed_provenance_mut(address);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let over = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: It replaces a part of a reserved range that maps nothing.
        let mapped = unsafe { mmap(at, bytes, rights, over, file, physical.offset as u64) };
        mapped.map_err(|_| OUT_OF_MEMORY)?;
        physical.mapped += 1;
        spans.insert(
            address,
            Span {
                bytes,
                physical: Some(handle),
            },
        );
        Ok(())
    }

    fn unmap(&mut self, address: usize, bytes: usize) -> Result<(), c_int> {
        let pieces = self.ranges.spans.range(address..address + bytes);
        let pieces: Vec<_> = pieces.map(|(start, span)| (*start, *span)).collect();
        let whole: usize = pieces.iter().map(|(_, span)| span.bytes).sum();
        if whole != bytes {
            self.wrong
                .push("other bytes were unmapped than were mapped".to_owned());
            return Err(INVALID_VALUE);
        }
        self.check_unused("unmapped", address, bytes);
        for (start, span) in pieces {
            self.ranges.spans.remove(&start);
            let Some(handle) = span.physical else {
                continue;
            };
            if let Some(physical) = self.ranges.physical.get_mut(&handle) {
                physical.mapped -= 1;
            }
            self.ranges.settle(handle);
        }
        let at = ptr::with_exposed_provenance_mut(address);
        // SAFETY: It replaces what `map` mapped, which no work touches any more.
        unsafe { untouchable(at, bytes, MapFlags::FIXED) }.map_err(|_| INVALID_VALUE)?;
        Ok(())
    }
}

/// Addresses that nobody can touch.
///
/// # Safety
///
/// As of `mmap`: with `FIXED`, nothing may use what is mapped there.
unsafe fn untouchable(
    at: *mut c_void,
    bytes: usize,
    flags: MapFlags,
) -> rustix::io::Result<*mut c_void> {
    let flags = flags | MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: By the caller.
    unsafe { mmap_anonymous(at, bytes, ProtFlags::empty(), flags) }
}

functions! {
    fn cuMemAlloc_v2(pointer: Out<u64>, bytes: usize) |world| {
        current()?;
        world.unsafe_in_capture()?;
        pointer.put(world.obtain(bytes)? as u64);
        Ok(())
    }
    fn cuMemFree_v2(pointer: usize) |world| {
        world.unsafe_in_capture()?;
        world.give_back(pointer)
    }
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |world| {
        let used = world.ranges.used.get(&current()?).copied();
        free.put(TOTAL - used.unwrap_or(0));
        total.put(TOTAL);
        Ok(())
    }
    fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) |world| {
        current()?;
        world.check(stream, Kind::Stream)?;
        if to < from + bytes && from < to + bytes {
            world.wrong.push("a copy between ranges that overlap".to_owned());
        }
        world.submit(stream, Task::Local(Local::Copy { to, from, bytes }), ptr::null())
    }
    fn cuMemcpyHtoDAsync_v2(to: usize, from: *const c_void, bytes: usize, stream: Handle) |world| {
        current()?;
        world.check(stream, Kind::Stream)?;
        if world.capture_of(stream).is_some() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        // SAFETY: The header has the caller pass this many bytes. They are taken at the call, as the
        // driver takes those of pageable memory.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
        world.submit(stream, Task::Local(Local::Write { to, bytes }), ptr::null())
    }
    fn cuMemGetAllocationGranularity(granule: Out<usize>, _properties: *const c_void, _option: c_int) |_world| {
        granule.put(GRANULE);
        Ok(())
    }
    fn cuMemCreate(handle: Out<Handle>, bytes: usize, _properties: *const c_void, _flags: u64) |world| {
        let device = current()?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(INVALID_VALUE);
        }
        world.ranges.spend(device, bytes)?;
        let offset = world.ranges.grow(bytes).map_err(|_| OUT_OF_MEMORY)?;
        let made = world.make(Kind::Physical);
        let physical = Physical { offset, bytes, device, mapped: 0, released: false };
        world.ranges.physical.insert(made, physical);
        handle.put(made);
        Ok(())
    }
    fn cuMemRelease(handle: Handle) |world| {
        world.end(handle, Kind::Physical)?;
        if let Some(physical) = world.ranges.physical.get_mut(&handle) {
            physical.released = true;
        }
        world.ranges.settle(handle);
        Ok(())
    }
    fn cuMemRetainAllocationHandle(_handle: Out<Handle>, _address: *mut c_void) |_world| {
        Err(INVALID_VALUE)
    }
    fn cuMemAddressReserve(pointer: Out<usize>, bytes: usize, alignment: usize, _hint: u64, _flags: u64) |world| {
        current()?;
        pointer.put(world.reserve(bytes, alignment)?);
        Ok(())
    }
    fn cuMemAddressFree(pointer: usize, bytes: usize) |world| {
        world.end(pointer, Kind::Range)?;
        let mut mapped = world.ranges.spans.range(pointer..pointer + bytes);
        if mapped.next().is_some() {
            world.wrong.push("a range was freed that is mapped".to_owned());
        } else if let Some((base, room)) = world.ranges.reserved.remove(&pointer) {
            // SAFETY: `reserve` mapped it, and nothing in it is mapped to be touched.
            let unmapped = unsafe { munmap(ptr::with_exposed_provenance_mut(base), room) };
            unmapped.map_err(|_| INVALID_VALUE)?;
        }
        Ok(())
    }
    fn cuMemMap(pointer: usize, bytes: usize, offset: usize, handle: Handle, _flags: u64) |world| {
        if offset != 0 {
            return Err(INVALID_VALUE);
        }
        world.map(pointer, bytes, handle)
    }
    fn cuMemUnmap(pointer: usize, bytes: usize) |world| {
        world.unmap(pointer, bytes)
    }
    fn cuMemSetAccess(pointer: usize, bytes: usize, _access: *const c_void, _count: usize) |world| {
        if world.ranges.has(pointer, bytes) { Ok(()) } else { Err(INVALID_VALUE) }
    }
}

functions! { waits
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: usize, bytes: usize, stream: Handle) |world| {
        current()?;
        world.check(stream, Kind::Stream)?;
        if world.capture_of(stream).is_some() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        // As the driver does where the host's memory is pageable.
        if !world.is_idle(stream) {
            return Ok(None);
        }
        let from = world.bytes_at(from, bytes).ok_or(INVALID_VALUE)?;
        // SAFETY: The header has the caller pass room for this many bytes, which are its own.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.cast::<u8>(), bytes) };
        Ok(Some(()))
    }
}
