//! Address space of one device, from which blocks are taken in the order the model wants.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use collectives_core::addr::Addr;

use crate::file;
use crate::model::AddressOrder;

/// What the operating system maps in multiples of, or a multiple of that.
pub(crate) const PAGE: usize = 4096;
/// Addresses reserved at once; they cost nothing until they are used.
const CHUNK: usize = 16 << 30;

/// How far a chunk's blocks are moved from where those of the chunk before are, modulo a large power
/// of two. Processors that guess a cache way from some bits of the address (AMD's do, from the bits
/// below 2^28 as measured) thrash when ranks reduce from equal places of their own chunks: an
/// all-reduce of 1 MiB took three times as long.
const STAGGER: usize = 2 << 20;
/// Chunks after which the places repeat.
const PLACES: usize = 64;

/// Reserved addresses, of which blocks are mapped and unmapped.
#[derive(Debug)]
pub(crate) struct Addresses {
    order: AddressOrder,
    random: u64,
    chunks: Vec<Chunk>,
    free: Vec<Span>,
}

/// A reserved range; everything below `low` and from `high` on was handed out once.
#[derive(Debug)]
struct Chunk {
    base: Addr,
    bytes: usize,
    low: usize,
    high: usize,
}

/// A range that was handed out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: Addr,
    pub(crate) bytes: usize,
}

impl Addresses {
    pub(crate) fn new(order: AddressOrder) -> Self {
        let random = match order {
            AddressOrder::Shuffled(seed) => seed,
            _ => 0,
        };
        Self {
            order,
            random,
            chunks: Vec::new(),
            free: Vec::new(),
        }
    }

    /// `bytes` addresses, a multiple of [`PAGE`], whose start is aligned; nothing is mapped there.
    ///
    /// A range of this size that was given back is used again before a fresh one, as drivers do.
    pub(crate) fn take(&mut self, bytes: usize, align: usize) -> io::Result<Span> {
        let again = self
            .free
            .iter()
            .position(|span| span.bytes == bytes && span.start.value().is_multiple_of(align));
        if let Some(position) = again {
            return Ok(self.free.swap_remove(position));
        }
        let upwards = self.upwards();
        if let Some(span) = self
            .chunks
            .last_mut()
            .and_then(|chunk| chunk.take(bytes, align, upwards))
        {
            return Ok(span);
        }
        let need = bytes
            .checked_add(align)
            .ok_or(io::ErrorKind::OutOfMemory)?
            .next_multiple_of(PAGE);
        let roomy = need.saturating_add(PLACES * STAGGER).max(CHUNK);
        self.chunks
            .push(Chunk::reserve(roomy, stagger()).or_else(|_| Chunk::reserve(need, 0))?);
        self.chunks
            .last_mut()
            .and_then(|chunk| chunk.take(bytes, align, upwards))
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Takes back a range in which nothing is mapped any more.
    pub(crate) fn give_back(&mut self, span: Span) {
        self.free.push(span);
    }

    fn upwards(&mut self) -> bool {
        match self.order {
            AddressOrder::Ascending => true,
            AddressOrder::Descending => false,
            AddressOrder::Shuffled(_) => scramble(&mut self.random) & 1 == 0,
        }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            // SAFETY: This device reserved the range and nobody owns a block of it any more.
            if let Err(error) = unsafe { munmap(chunk.base.as_ptr(), chunk.bytes) } {
                tracing::error!(%error, "reserved addresses could not be given back");
            }
        }
    }
}

impl Chunk {
    /// Reserves addresses, of which `stagger` bytes at both ends are not used.
    fn reserve(bytes: usize, stagger: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: A fresh mapping at an address of the kernel's choice replaces nothing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }?;
        Ok(Self {
            base: Addr::from_ptr(base),
            bytes,
            low: stagger,
            high: bytes - stagger,
        })
    }

    fn take(&mut self, bytes: usize, align: usize, upwards: bool) -> Option<Span> {
        let base = self.base.value();
        let offset = if upwards {
            (base + self.low).checked_next_multiple_of(align)? - base
        } else {
            let start = (base + self.high).checked_sub(bytes)?;
            (start - start % align).checked_sub(base)?
        };
        let end = offset.checked_add(bytes)?;
        if offset < self.low || end > self.high {
            return None;
        }
        if upwards {
            self.low = end;
        } else {
            self.high = offset;
        }
        Some(Span {
            start: self.base.offset(offset),
            bytes,
        })
    }
}

/// What the next chunk leaves out at its ends.
fn stagger() -> usize {
    static RESERVED: AtomicUsize = AtomicUsize::new(0);
    RESERVED.fetch_add(1, Ordering::Relaxed) % PLACES * STAGGER
}

/// Makes zeroed memory of reserved addresses.
///
/// # Safety
///
/// The caller was handed the range, and nothing is mapped there.
pub(crate) unsafe fn map(start: Addr, bytes: usize) -> io::Result<()> {
    // SAFETY: As this function demands.
    unsafe { remap(start, bytes, ProtFlags::READ | ProtFlags::WRITE) }
}

/// Makes zeroed memory of reserved addresses that other processes can map too: the file it is.
///
/// # Safety
///
/// As for [`map`].
pub(crate) unsafe fn map_shared(start: Addr, bytes: usize) -> io::Result<OwnedFd> {
    let file = file::in_memory("collectives-window", bytes)?;
    let (access, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED,
    );
    // SAFETY: As this function demands, the mapping replaces one of ours that nobody uses.
    unsafe { mmap(start.as_ptr(), bytes, access, flags, file.as_fd(), 0) }?;
    Ok(file)
}

/// Gives memory back and keeps the addresses reserved.
///
/// # Safety
///
/// The caller was handed the range, and nobody uses it any more.
pub(crate) unsafe fn unmap(start: Addr, bytes: usize) -> io::Result<()> {
    // SAFETY: As this function demands.
    unsafe { remap(start, bytes, ProtFlags::empty()) }
}

/// # Safety
///
/// Nobody uses the range, which the caller was handed.
unsafe fn remap(start: Addr, bytes: usize, access: ProtFlags) -> io::Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: The mapping replaces one that this device reserved and nobody uses.
    unsafe { mmap_anonymous(start.as_ptr(), bytes, access, flags) }?;
    Ok(())
}

/// The next number of a cheap sequence (SplitMix64).
pub(crate) fn scramble(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn starts(order: AddressOrder) -> Vec<usize> {
        let mut addresses = Addresses::new(order);
        (0..16)
            .map(|_| addresses.take(PAGE, PAGE).unwrap().start.value())
            .collect()
    }

    #[rstest]
    fn addresses_go_the_way_the_model_says() {
        let up = starts(AddressOrder::Ascending);
        assert!(up.is_sorted());
        let down = starts(AddressOrder::Descending);
        assert!(down.iter().rev().is_sorted());
        let shuffled = starts(AddressOrder::Shuffled(7));
        assert!(!shuffled.is_sorted() && !shuffled.iter().rev().is_sorted());
    }

    #[rstest]
    #[case(AddressOrder::Ascending)]
    #[case(AddressOrder::Descending)]
    #[case(AddressOrder::Shuffled(3))]
    fn live_ranges_never_overlap_and_a_free_one_is_used_again(#[case] order: AddressOrder) {
        let mut addresses = Addresses::new(order);
        let mut spans: Vec<_> = (1..20)
            .map(|pages| addresses.take(pages * PAGE, 1 << 16).unwrap())
            .collect();
        spans.sort_by_key(|span| span.start);
        for pair in spans.windows(2) {
            assert!(pair[0].start.offset(pair[0].bytes) <= pair[1].start);
        }
        assert!(spans.iter().all(|span| span.start.value() % (1 << 16) == 0));
        addresses.give_back(spans[0]);
        let again = addresses.take(spans[0].bytes, 1 << 16).unwrap();
        assert_eq!(again.start, spans[0].start);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let mut addresses = Addresses::new(AddressOrder::Ascending);
        assert!(addresses.take(usize::MAX - PAGE + 1, PAGE).is_err());
        assert!(addresses.take(1 << 60, PAGE).is_err());
        assert!(addresses.take(PAGE, PAGE).is_ok());
    }
}
