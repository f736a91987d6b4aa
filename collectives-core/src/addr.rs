//! Device addresses and the operands made of them.

use std::fmt;

use crate::error::{Error, Misuse, Result};
use crate::rank::CommId;

/// An address in a device's memory.
///
/// It wraps a pointer rather than a number so that a backend whose device is the host keeps
/// provenance. An address alone gives no right to read or write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Addr(*mut u8);

// SAFETY: An address is a value; using it is `unsafe` and carries its own obligations.
unsafe impl Send for Addr {}
// SAFETY: As for `Send`.
unsafe impl Sync for Addr {}

impl Addr {
    /// The null address.
    pub const NULL: Self = Self(std::ptr::null_mut());

    /// The address of `pointer`.
    #[must_use]
    pub const fn from_ptr<T>(pointer: *mut T) -> Self {
        Self(pointer.cast())
    }

    /// The address as a pointer.
    #[must_use]
    pub const fn as_ptr<T>(self) -> *mut T {
        self.0.cast()
    }

    /// The address as a number.
    #[must_use]
    pub fn value(self) -> usize {
        self.0.addr()
    }

    /// Whether this is the null address.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address `bytes` further on; wraps, so that computing it is always defined.
    #[must_use]
    pub fn offset(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.value())
    }
}

/// A window of symmetric memory: its ordinal in the order of registration, equal on all ranks of
/// the communicator and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowId(pub u64);

impl fmt::Display for WindowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "window {}", self.0)
    }
}

/// A place inside a window. All ranks pass the same window and offset to one collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowSlice {
    /// The communicator on this rank that the window is registered with.
    pub comm: CommId,
    /// The window.
    pub window: WindowId,
    /// Bytes from the window's start.
    pub offset: usize,
}

impl WindowSlice {
    /// The place `bytes` further on.
    #[must_use]
    pub fn advance(self, bytes: usize) -> Self {
        Self {
            offset: self.offset + bytes,
            ..self
        }
    }
}

/// One side of a collective on this rank: a byte range, and where it lies in symmetric memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The first byte; may be null when `bytes` is zero.
    pub addr: Addr,
    /// The length in bytes, exactly what the operation reads or writes.
    pub bytes: usize,
    /// The window and offset, if the whole range lies in one.
    pub window: Option<WindowSlice>,
}

impl Operand {
    /// No bytes at all: the side an operation does not have on this rank.
    pub const EMPTY: Self = Self {
        addr: Addr::NULL,
        bytes: 0,
        window: None,
    };

    /// A range of ordinary memory.
    #[must_use]
    pub const fn new(addr: Addr, bytes: usize) -> Self {
        Self {
            addr,
            bytes,
            window: None,
        }
    }

    /// The same range, which lies in a window.
    #[must_use]
    pub const fn in_window(self, window: WindowSlice) -> Self {
        Self {
            window: Some(window),
            ..self
        }
    }

    /// `bytes` bytes of this range from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Misuse::OutOfBounds`] when that leaves the range.
    #[inline(always)]
    pub fn slice(self, offset: usize, bytes: usize) -> Result<Self> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(self.too_short(offset, bytes));
        }
        Ok(Self {
            addr: self.addr.offset(offset),
            bytes,
            window: self.window.map(|slice| slice.advance(offset)),
        })
    }

    #[cold]
    fn too_short(self, offset: usize, bytes: usize) -> Error {
        let available = self.bytes;
        Misuse::OutOfBounds {
            offset,
            bytes,
            available,
        }
        .into()
    }

    /// Whether the two ranges share a byte.
    #[inline]
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let (a, b) = (self.addr.value(), other.addr.value());
        self.bytes > 0
            && other.bytes > 0
            && a < b.saturating_add(other.bytes)
            && b < a.saturating_add(self.bytes)
    }

    /// Whether the two are the same range.
    #[inline]
    #[must_use]
    pub fn same_range(self, other: Self) -> bool {
        self.addr == other.addr && self.bytes == other.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(value: usize, bytes: usize) -> Operand {
        Operand::new(
            Addr::from_ptr(std::ptr::without_provenance_mut::<u8>(value)),
            bytes,
        )
    }

    #[test]
    fn touching_ranges_do_not_overlap() {
        assert!(!at(0x1000, 16).overlaps(at(0x1010, 16)));
        assert!(at(0x1000, 17).overlaps(at(0x1010, 16)));
        assert!(!at(0x1000, 0).overlaps(at(0x1000, 16)));
        assert!(at(usize::MAX - 4, 16).overlaps(at(usize::MAX - 2, 1)));
    }

    #[test]
    fn a_slice_carries_its_window_offset() {
        let whole = at(0x1000, 64).in_window(WindowSlice {
            comm: CommId::from_raw(1),
            window: WindowId(3),
            offset: 4096,
        });
        let part = whole.slice(16, 32).unwrap();
        assert_eq!(part.window.unwrap().offset, 4112);
        assert_eq!(part.addr.value(), 0x1010);
        assert!(whole.slice(60, 8).is_err());
        assert!(whole.slice(usize::MAX, 8).is_err());
    }
}
