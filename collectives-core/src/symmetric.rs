//! Memory that every rank maps at an offset all ranks know.

use std::fmt::Debug;

use crate::addr::{Addr, WindowId};
use crate::error::Result;
use crate::memory::Memory;
use crate::rank::Rank;

/// Allocation and registration of symmetric memory, of one communicator.
///
/// Allocation is local and may fail on one rank alone, so callers agree on the outcome before
/// they register. Registering and retiring are collective, in the same order on all ranks. There is
/// one window per address range, never two over the same addresses. Nothing here may be called
/// while a stream of this rank captures.
pub trait SymmetricMemory: Debug {
    /// Memory suitable for a window, at least `bytes` bytes, in whole granules; local.
    ///
    /// With `extend`, the new memory maps the bytes of that window first, at a fresh address
    /// range, and appends physical memory to reach `bytes`: the bytes exist once.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::error::ErrorKind::OutOfMemory), and
    /// [`Unsupported::Aliasing`](crate::error::Unsupported::Aliasing) for `extend` where the
    /// backend cannot map bytes twice, or was not told by
    /// [`extensible`](SymmetricMemory::extensible) that it would have to.
    fn allocate(&mut self, bytes: usize, extend: Option<WindowId>) -> Result<Memory>;

    /// Makes the windows of memory that is allocated from now on extensible, and says how many bytes
    /// of addresses the windows of this communicator may take together; local.
    ///
    /// A byte that several windows map takes an address in each. A caller that extends windows
    /// keeps within the least that any rank was told.
    ///
    /// # Errors
    ///
    /// [`Unsupported::Aliasing`](crate::error::Unsupported::Aliasing) where the backend cannot map
    /// the same bytes twice.
    fn extensible(&mut self) -> Result<usize>;

    /// Registers memory as the next window; collective, waits for all ranks.
    ///
    /// All ranks get the same outcome. The window keeps the bytes mapped but does not own them:
    /// see [`KeepAlive`](crate::memory::KeepAlive).
    ///
    /// # Errors
    ///
    /// [`Misuse::AlreadyRegistered`](crate::error::Misuse::AlreadyRegistered),
    /// [`Misuse::NotRegistrable`](crate::error::Misuse::NotRegistrable), a mismatch of [`Field::Bytes`](crate::error::Field::Bytes), or
    /// [`Unsupported::NullWindow`](crate::error::Unsupported::NullWindow); no window exists then,
    /// on any rank.
    fn register(&mut self, memory: &Memory) -> Result<WindowId>;

    /// Deregisters a window; collective, after all work that uses it has finished on all ranks.
    ///
    /// # Errors
    ///
    /// [`Misuse::UnknownWindow`](crate::error::Misuse::UnknownWindow).
    fn retire(&mut self, window: WindowId) -> Result<()>;

    /// Where this rank can read and write `rank`'s part of a window; for kernels.
    ///
    /// Valid until the window is retired. Ordering accesses between ranks is the kernel's business.
    ///
    /// # Errors
    ///
    /// [`Misuse`](crate::error::Misuse) for an unknown window, rank or offset, and
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) where the peer cannot be reached.
    fn peer_address(&mut self, window: WindowId, rank: Rank, offset: usize) -> Result<Addr>;

    /// Windows registered now.
    fn window_count(&mut self) -> usize;
}

const _: Option<&dyn SymmetricMemory> = None;
