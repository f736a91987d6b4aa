//! Newtypes for the numbers that are easily confused.

use std::fmt;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// A rank of one communicator, `0..world_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank with this index.
    ///
    /// # Panics
    ///
    /// When `index` exceeds `u32::MAX`; no world is that large.
    #[must_use]
    pub fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a rank fits into 32 bits"))
    }

    /// The rank as an index into per-rank tables.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The process that something belongs to.
///
/// A fork has copies of everything that its parent owns. What it drops of that is no end of the parent's,
/// of whom the others must not be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process(u32);

impl Process {
    /// This process.
    #[must_use]
    pub fn this() -> Self {
        Self(process::id())
    }

    /// Whether it is this process, and not one that this is a fork of.
    #[must_use]
    pub fn is_this(self) -> bool {
        self == Self::this()
    }
}

macro_rules! process_unique {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u64);

        impl $name {
            /// A number no other call in this process returns.
            #[must_use]
            pub fn fresh() -> Self {
                static NEXT: AtomicU64 = AtomicU64::new(1);
                Self(NEXT.fetch_add(1, Ordering::Relaxed))
            }

            /// The identity a native library gave; it must never be reused in this process.
            #[must_use]
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// The number itself, for logs and for hashing.
            #[must_use]
            pub const fn as_raw(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

process_unique! {
    /// The identity of a device; local to the process, equal for nobody else.
    DeviceId
}
process_unique! {
    /// The identity of a stream, never reused; local to the rank.
    StreamId
}
process_unique! {
    /// The identity of one capture, never reused; local to the rank.
    CaptureId
}
process_unique! {
    /// The identity of one communicator on this rank, never reused.
    CommId
}
