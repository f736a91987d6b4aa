//! The devices that the embedded backend's ranks are tried on.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use collectives_core::addr::Addr;
use collectives_core::device::Device;
use collectives_core::memory::Memory;
use collectives_core::rank::{DeviceId, Rank};
use collectives_host::device::HostDevice;
use collectives_host::model::{AddressOrder, DeviceModel, StreamMode};
use collectives_testkit::harness::{Probe, Terrain};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Small, so that cases that count in granules are quick.
pub const GRANULE: usize = 64 << 10;

/// As hostile as the terrain says.
pub fn model(rank: Rank, terrain: Terrain) -> DeviceModel {
    let order = if rank.0.is_multiple_of(2) {
        AddressOrder::Descending
    } else {
        AddressOrder::Shuffled(u64::from(rank.0))
    };
    let model = DeviceModel::new()
        .with_rank(rank)
        .with_granule(GRANULE)
        .with_address_order(order)
        .with_guard(4096)
        .with_poison(0xdb)
        .with_quarantine(32 << 20)
        .with_destructor_delay(Duration::from_millis(u64::from(rank.0)));
    match terrain {
        Terrain::Concurrent => model
            .with_stream_mode(StreamMode::Asynchronous)
            .with_skew(Duration::from_micros(100), u64::from(rank.0)),
        _ => model,
    }
}

/// What the device tells.
#[derive(Debug)]
pub struct HostProbe {
    pub device: Arc<HostDevice>,
    /// Whether long ranges are tried; where bytes travel through copies, they take too long.
    pub has_long_ranges: bool,
}

impl Probe for HostProbe {
    fn mapped_bytes(&self) -> Option<usize> {
        self.device.collect();
        Some(self.device.mapped_bytes())
    }

    fn ordinary_bytes(&self) -> Option<usize> {
        self.device.collect();
        Some(self.device.memory_report().ordinary_bytes)
    }

    fn long_range(&self, bytes: usize) -> Option<Memory> {
        if !self.has_long_ranges {
            return None;
        }
        fold(self.device.id(), bytes)
            .inspect_err(|error| eprintln!("no range of {bytes} bytes: {error}"))
            .ok()
    }

    fn settle(&self) {
        self.device.wait_for_destructors();
    }

    fn check_memory(&self) -> Result<(), String> {
        self.device
            .check_memory()
            .map_err(|violation| format!("{violation:?}"))
    }
}

/// Bytes of memory behind all of a folded range but its end, and behind that.
const FOLD: usize = 4 << 20;

/// A long range of addresses: one piece of memory over and over, and another one at its end.
fn fold(device: DeviceId, bytes: usize) -> rustix::io::Result<Memory> {
    let file = memfd_create("folded", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, 2 * FOLD as u64)?;
    let reserved = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: A fresh range, that nobody touches before it is mapped over.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), reserved) }?;
    let first = Addr::from_ptr(base.cast::<u8>());
    let unmap = move || {
        // SAFETY: The range is this function's own, and nobody has it any more.
        let unmapped = unsafe { munmap(first.as_ptr::<c_void>(), bytes) };
        unmapped.expect("a whole range that was mapped");
    };
    for start in (0..bytes).step_by(FOLD) {
        let offset = if start + FOLD >= bytes { FOLD } else { 0 };
        let at = base.wrapping_byte_add(start);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let over = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: It replaces a part of the range that was reserved.
        let mapped = unsafe { mmap(at, FOLD, rights, over, &file, offset as u64) };
        if let Err(error) = mapped {
            unmap();
            return Err(error);
        }
    }
    // SAFETY: The whole range is mapped for reading and writing until the hook runs.
    Ok(unsafe { Memory::new(device, first, bytes, move |_| unmap()) })
}
