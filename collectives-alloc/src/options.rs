//! The rules of a pool that hold for every policy.

use std::time::Duration;

use collectives_core::bootstrap::DEFAULT_DEADLINE;
use collectives_core::scratch::Splitting;

use crate::bytes::ByteSize;
use crate::config::Choice;

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
    /// Whether [`Checked`](crate::checked::Checked) is around the communicator. A pool only compares it across
    /// ranks, because one that checks alone waits for the others.
    pub check: bool,
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
            check: false,
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

    /// The rules that ranks must have alike, by the keys of configuration, with their values in words; the
    /// deadline is none of them.
    #[must_use]
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let size = |size: Option<usize>| match size {
            Some(bytes) => ByteSize::new(bytes).to_string(),
            None => "none".to_owned(),
        };
        let count = |count: Option<usize>| match count {
            Some(count) => count.to_string(),
            None => "none".to_owned(),
        };
        vec![
            ("cap", size(self.cap)),
            ("piece", size(self.piece)),
            ("limit", size(self.limit)),
            ("max_windows", count(self.max_windows)),
            ("seal", self.seal.name().to_owned()),
            ("on_miss", self.on_miss.name().to_owned()),
            ("domain", self.domain.name().to_owned()),
            ("ordering", self.ordering.name().to_owned()),
            ("check", self.check.to_string()),
        ]
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
