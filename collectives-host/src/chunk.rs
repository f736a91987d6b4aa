//! Memory without an address of its own, which several address ranges map.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use collectives_core::addr::Addr;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::block::SharedPiece;
use crate::file;

/// Zeroed memory in a file without a name. It goes with the last range that maps it, here or in a
/// process that mapped it through this one.
#[derive(Debug)]
pub(crate) struct Chunk {
    file: OwnedFd,
    pub(crate) bytes: usize,
}

impl Chunk {
    /// Memory of `bytes` bytes, a multiple of the page. The name shows in `/proc/self/fd` and
    /// `/proc/self/maps`.
    pub(crate) fn new(name: &str, bytes: usize) -> io::Result<Self> {
        let file = file::in_memory(name, bytes)?;
        Ok(Self { file, bytes })
    }

    /// Where other processes find it.
    pub(crate) fn piece(&self) -> SharedPiece {
        SharedPiece {
            file: self.file.as_raw_fd(),
            offset: 0,
            bytes: self.bytes,
        }
    }

    /// Makes `start` one more address of this memory.
    ///
    /// # Safety
    ///
    /// The caller was handed the `bytes` bytes from `start` on, page by page, and nobody uses them.
    pub(crate) unsafe fn map(&self, start: Addr) -> io::Result<()> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: The mapping replaces what was in a range that this device reserved and that
        // nobody uses, as this function demands.
        unsafe { mmap(start.as_ptr(), self.bytes, access, flags, &self.file, 0) }?;
        Ok(())
    }
}
