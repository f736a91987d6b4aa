//! The rules of a pool that hold for every policy.

use std::time::Duration;

use collectives_core::bootstrap::DEFAULT_DEADLINE;
use collectives_core::scratch::Splitting;

use crate::digest::Digest;

/// Cap, limit, seal, domains, order and deadline of a [`Pool`](crate::pool::Pool).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The largest request that is staged at all, in bytes; `None` means any.
    pub cap: Option<usize>,
    /// Bytes of the lease that a call which needs more goes through, piece by piece; `None` means that
    /// every call is staged whole.
    pub piece: Option<usize>,
    /// Mapped bytes the communicator may keep; `None` means any.
    pub limit: Option<usize>,
    /// Windows the communicator may have, its user's symmetric buffers among them; `None` means any.
    pub max_windows: Option<usize>,
    /// When later growth becomes an error or a fallback.
    pub seal: Seal,
    /// What a miss is when sealed or capturing, and when memory is out.
    pub on_miss: OnMiss,
    /// Which uses share slots.
    pub domain: DomainMode,
    /// Who orders uses of one slot on different streams.
    pub ordering: Ordering,
    /// How long ranks wait for each other on a miss.
    pub agree_deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cap: None,
            piece: None,
            limit: None,
            max_windows: None,
            seal: Seal::Explicit,
            on_miss: OnMiss::Error,
            domain: DomainMode::Shared,
            ordering: Ordering::Events,
            agree_deadline: DEFAULT_DEADLINE,
        }
    }
}

impl Options {
    /// Which calls are staged in pieces, if any: those that need more than a piece and no more than the
    /// cap.
    #[must_use]
    pub fn splitting(&self) -> Option<Splitting> {
        self.piece.map(|piece| Splitting {
            piece,
            up_to: self.cap.unwrap_or(usize::MAX),
        })
    }

    /// Bytes of the lease for a call that needs `bytes` bytes of scratch and can be cut.
    #[must_use]
    pub fn lease_for(&self, bytes: usize) -> usize {
        match self.splitting() {
            Some(Splitting { piece, up_to }) if bytes <= up_to => bytes.min(piece),
            _ => bytes,
        }
    }

    /// A number that differs when two ranks would decide differently; the deadline is not in it.
    #[must_use]
    pub fn digest(&self) -> u64 {
        Digest::new()
            .maybe(self.cap)
            .maybe(self.piece)
            .maybe(self.limit)
            .maybe(self.max_windows)
            .word(self.seal as u64)
            .word(self.on_miss as u64)
            .word(self.domain as u64)
            .word(self.ordering as u64)
            .finish()
    }
}

/// When a pool seals itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Seal {
    /// `seal` has no effect.
    Never,
    /// When `seal` is called.
    Explicit,
    /// After the first `reserve` that succeeds, and when `seal` is called.
    AfterReserve,
}

/// What becomes of a request that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnMiss {
    /// An error that names what to reserve.
    Error,
    /// The ordinary path, counted.
    Fallback,
}

/// Which uses share slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DomainMode {
    /// All streams and captures.
    Shared,
    /// Uses on one stream.
    Stream,
    /// Eager uses together, and the uses of each capture together.
    Graph,
}

/// Who orders uses of one slot on different streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ordering {
    /// The pool, by events.
    Events,
    /// The caller, who keeps the communicator on one stream; a use on another is an error.
    Caller,
}
