//! One block of memory, with its guards while it lives and its poison afterwards.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use collectives_core::addr::Addr;

use crate::chunk::Chunk;
use crate::region::{Addresses, PAGE, Span, map, map_shared, unmap};
use crate::space::MemoryViolation;

/// The byte that guards consist of.
const CANARY: u8 = 0xC5;
/// What ordinary memory is aligned to.
const ALIGNMENT: usize = 256;
/// The most that symmetric memory is aligned to.
const LARGEST_ALIGNMENT: usize = 2 << 20;

/// A block that the device owns until it is released.
#[derive(Debug)]
pub(crate) struct Block {
    /// The first usable byte.
    pub(crate) addr: Addr,
    /// Usable bytes.
    pub(crate) bytes: usize,
    /// What the device lost, as reports say it.
    pub(crate) charged: usize,
    backing: Backing,
}

/// What a block of a heap is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// Usable bytes.
    pub(crate) bytes: usize,
    /// What reports say that the device loses; no less than `bytes` and not nothing.
    pub(crate) charged: usize,
    /// A power of two.
    pub(crate) align: usize,
    pub(crate) symmetric: bool,
}

impl Use {
    /// As ordinary memory of so many bytes.
    pub(crate) fn ordinary(bytes: usize) -> Option<Self> {
        Some(Self {
            bytes,
            charged: bytes.max(1).checked_next_multiple_of(ALIGNMENT)?,
            align: ALIGNMENT,
            symmetric: false,
        })
    }

    /// As symmetric memory of `charged` bytes in whole granules, of which the last `overhead` are not
    /// usable.
    pub(crate) fn symmetric(charged: usize, granule: usize, overhead: usize) -> Self {
        Self {
            bytes: charged - overhead,
            charged,
            align: alignment_of(granule),
            symmetric: true,
        }
    }
}

/// What symmetric memory is aligned to.
fn alignment_of(granule: usize) -> usize {
    (1 << granule.trailing_zeros()).clamp(PAGE, LARGEST_ALIGNMENT)
}

#[derive(Debug)]
enum Backing {
    Heap {
        layout: Layout,
        symmetric: bool,
    },
    Pages {
        /// The addresses it took.
        span: Span,
        /// What of them is mapped.
        mapped: Span,
        /// The guards before and after the usable bytes.
        guards: [Span; 2],
        /// The file behind what is mapped, where other processes can map it.
        file: Option<OwnedFd>,
        /// What the usable bytes are, where other ranges may map it too.
        chunks: Vec<Arc<Chunk>>,
    },
}

/// A part of a block, as other processes find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedPiece {
    /// The file's descriptor in this process.
    pub(crate) file: i32,
    /// The piece's first byte in the file, at a page.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Block {
    /// Zeroed ordinary memory, or `None` when there is none.
    pub(crate) fn ordinary(bytes: usize) -> Option<Self> {
        Self::on_heap(Use::ordinary(bytes)?)
    }

    /// Zeroed memory of the process's heap, or `None` when there is none.
    pub(crate) fn on_heap(wanted: Use) -> Option<Self> {
        let layout = Layout::from_size_align(wanted.charged, wanted.align).ok()?;
        // SAFETY: The layout is not empty.
        let addr = unsafe { alloc_zeroed(layout) };
        (!addr.is_null()).then_some(Self {
            addr: Addr::from_ptr(addr),
            bytes: wanted.bytes,
            charged: wanted.charged,
            backing: Backing::Heap {
                layout,
                symmetric: wanted.symmetric,
            },
        })
    }

    /// Whether a block of a heap can be used for this, its owners being gone.
    pub(crate) fn has_room(&self, wanted: Use) -> bool {
        let fits = |layout: &Layout| layout.size() >= wanted.charged;
        let aligned = self.addr.value().is_multiple_of(wanted.align);
        aligned && matches!(&self.backing, Backing::Heap { layout, .. } if fits(layout))
    }

    /// The block, zeroed, for a use that it [has room](Self::has_room) for; its owners are gone.
    pub(crate) fn again(mut self, wanted: Use) -> Self {
        if let Backing::Heap { layout, symmetric } = &mut self.backing {
            // SAFETY: The layout is the block's, which has no owner.
            unsafe { fill(self.addr, layout.size(), 0) };
            *symmetric = wanted.symmetric;
        }
        (self.bytes, self.charged) = (wanted.bytes, wanted.charged);
        self
    }

    /// Zeroed symmetric memory: `charged` bytes in whole granules, of which the last `overhead`
    /// are not usable, between two guards.
    ///
    /// # Errors
    ///
    /// What this process has not enough of.
    pub(crate) fn symmetric(
        addresses: &mut Addresses,
        charged: usize,
        granule: usize,
        overhead: usize,
        guard: usize,
        shared: bool,
    ) -> io::Result<Self> {
        let align = alignment_of(granule);
        let before = guard.checked_next_multiple_of(align);
        let after = charged
            .checked_add(guard)
            .and_then(|bytes| bytes.checked_next_multiple_of(PAGE));
        let (Some(before), Some(after)) = (before, after) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let whole = before.checked_add(after);
        let span = addresses.take(whole.ok_or(io::ErrorKind::OutOfMemory)?, align)?;
        let addr = span.start.offset(before);
        let mapped_before = guard.next_multiple_of(PAGE);
        let mapped = Span {
            start: span.start.offset(before - mapped_before),
            bytes: mapped_before + after,
        };
        let done = if shared {
            // SAFETY: The range is part of what was just handed out.
            unsafe { map_shared(mapped.start, mapped.bytes) }.map(Some)
        } else {
            // SAFETY: As above.
            unsafe { map(mapped.start, mapped.bytes) }.map(|()| None)
        };
        let file = match done {
            Ok(file) => file,
            Err(error) => {
                addresses.give_back(span);
                return Err(error);
            }
        };
        let bytes = charged - overhead;
        let pad = if guard == 0 { 0 } else { overhead + guard };
        let block = Self {
            addr,
            bytes,
            charged,
            backing: Backing::Pages {
                span,
                mapped,
                guards: [
                    Span {
                        start: span.start.offset(before - guard),
                        bytes: guard,
                    },
                    Span {
                        start: addr.offset(bytes),
                        bytes: pad,
                    },
                ],
                file,
                chunks: Vec::new(),
            },
        };
        for guard in block.guards() {
            // SAFETY: The guards are mapped, and nobody knows the block yet.
            unsafe { fill(guard.start, guard.bytes, CANARY) };
        }
        Ok(block)
    }

    /// Where other processes find the block, piece by piece; nothing where they cannot.
    pub(crate) fn shared_pieces(&self) -> Vec<SharedPiece> {
        match &self.backing {
            Backing::Pages {
                mapped,
                file: Some(file),
                ..
            } => vec![SharedPiece {
                file: file.as_raw_fd(),
                offset: self.addr.value() - mapped.start.value(),
                bytes: self.bytes,
            }],
            Backing::Pages { chunks, .. } => chunks.iter().map(|chunk| chunk.piece()).collect(),
            Backing::Heap { .. } => Vec::new(),
        }
    }

    /// The block with its usable bytes in these chunks, one after another, which add up to it.
    /// Nothing is mapped where one of them cannot be.
    pub(crate) fn over(
        mut self,
        all: Vec<Arc<Chunk>>,
        addresses: &mut Addresses,
    ) -> io::Result<Self> {
        let mut start = self.addr;
        for chunk in &all {
            // SAFETY: The range is within the block, whose address nobody knows yet, and begins at
            // a page, as every chunk before it ended at one.
            if let Err(error) = unsafe { chunk.map(start) } {
                self.release(addresses);
                return Err(error);
            }
            start = start.offset(chunk.bytes);
        }
        if let Backing::Pages { chunks, .. } = &mut self.backing {
            *chunks = all;
        }
        Ok(self)
    }

    /// What the usable bytes are, where other ranges may map it too.
    pub(crate) fn chunks(&self) -> &[Arc<Chunk>] {
        match &self.backing {
            Backing::Heap { .. } => &[],
            Backing::Pages { chunks, .. } => chunks,
        }
    }

    /// What the device loses to this block alone: not what other blocks map too.
    pub(crate) fn lost(&self) -> usize {
        match self.chunks() {
            [] => self.charged,
            chunks => {
                let alone = chunks.iter().filter(|chunk| Arc::strong_count(chunk) == 1);
                alone.map(|chunk| chunk.bytes).sum()
            }
        }
    }

    pub(crate) fn is_symmetric(&self) -> bool {
        match self.backing {
            Backing::Heap { symmetric, .. } => symmetric,
            Backing::Pages { .. } => true,
        }
    }

    /// Whether the guards are as they were.
    pub(crate) fn check_guards(&self) -> Result<(), MemoryViolation> {
        for guard in self.guards() {
            // SAFETY: The guards are mapped as long as the block is, and nobody may write them.
            if let Some((offset, found)) = unsafe { first_other(guard.start, guard.bytes, CANARY) }
            {
                return Err(MemoryViolation::Guard {
                    block: self.addr,
                    bytes: self.bytes,
                    at: guard.start.offset(offset),
                    found,
                });
            }
        }
        Ok(())
    }

    /// Fills the block; nobody owns it any more. Bytes that other blocks may map are let go, and
    /// fresh ones filled in their place.
    pub(crate) fn poison(&mut self, byte: u8) {
        if let Backing::Pages { chunks, .. } = &mut self.backing
            && !chunks.is_empty()
        {
            // SAFETY: The range is this block's, and its last owner is gone.
            if let Err(error) = unsafe { map(self.addr, self.charged) } {
                tracing::error!(%error, "memory could not be mapped for poison");
                return;
            }
            chunks.clear();
        }
        // SAFETY: The block is still mapped, and its last owner is gone.
        unsafe { fill(self.addr, self.bytes, byte) };
    }

    /// Whether the poison is as it was.
    pub(crate) fn check_poison(&self, byte: u8) -> Result<(), MemoryViolation> {
        // SAFETY: A poisoned block is still mapped, and nobody may write it.
        match unsafe { first_other(self.addr, self.bytes, byte) } {
            Some((offset, found)) => Err(MemoryViolation::WrittenAfterFree {
                block: self.addr,
                bytes: self.bytes,
                at: self.addr.offset(offset),
                found,
            }),
            None => Ok(()),
        }
    }

    /// Gives the memory back; nobody may use it any more.
    pub(crate) fn release(self, addresses: &mut Addresses) {
        match self.backing {
            Backing::Heap { layout, .. } => {
                // SAFETY: It was allocated with this layout, and its last owner is gone.
                unsafe { dealloc(self.addr.as_ptr(), layout) };
            }
            Backing::Pages { span, mapped, .. } => {
                // SAFETY: The range is this block's, and its last owner is gone.
                match unsafe { unmap(mapped.start, mapped.bytes) } {
                    Ok(()) => addresses.give_back(span),
                    Err(error) => tracing::error!(%error, "memory could not be unmapped"),
                }
            }
        }
    }

    fn guards(&self) -> &[Span] {
        match &self.backing {
            Backing::Heap { .. } => &[],
            Backing::Pages { guards, .. } => guards,
        }
    }
}

/// # Safety
///
/// The range is writable and nobody else uses it.
unsafe fn fill(start: Addr, bytes: usize, byte: u8) {
    // SAFETY: As this function demands.
    unsafe { std::ptr::write_bytes(start.as_ptr::<u8>(), byte, bytes) }
}

/// The first byte that differs, and what it is.
///
/// # Safety
///
/// The range is readable and initialised, and nobody writes it meanwhile.
unsafe fn first_other(start: Addr, bytes: usize, byte: u8) -> Option<(usize, u8)> {
    // SAFETY: As this function demands.
    let range = unsafe { std::slice::from_raw_parts(start.as_ptr::<u8>(), bytes) };
    range
        .iter()
        .enumerate()
        .find(|&(_, &found)| found != byte)
        .map(|(offset, &found)| (offset, found))
}
