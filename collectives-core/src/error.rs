//! One concrete error: what went wrong, in which operation, on which backend and rank, and why.
//!
//! [`ErrorKind`] holds what a caller can act on. Mistakes of the caller are [`Misuse`] and are
//! found before anything is enqueued, so the call may be repeated correctly. Whether anything had
//! moved when the error was found is [`Error::poisons`]: after such an error the communicator
//! refuses work, and others go on.

use std::fmt;
use std::time::Duration;

pub use crate::causes::with_causes;
use crate::collective::OpKind;
use crate::dtype::DType;
use crate::rank::Rank;

/// The result of everything fallible in these crates.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What went wrong, with the context it went wrong in.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    operation: Option<&'static str>,
    backend: Option<&'static str>,
    rank: Option<Rank>,
    poisons: bool,
    source: Option<Source>,
}

/// What a caller can act on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller broke the contract of the call; nothing was enqueued.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// Ranks disagree about a call; nothing was registered and no data moved.
    #[error("rank {rank} disagrees on {field}: it has {theirs}, the others have {ours}")]
    Mismatch {
        /// The rank that differs from the majority (of equals, from the lowest rank).
        rank: Rank,
        /// What differs.
        field: Field,
        /// The odd rank's value.
        theirs: String,
        /// The value it should have had.
        ours: String,
    },
    /// Some ranks did not arrive within the deadline; no rank saw success.
    #[error("rank(s) {} did not arrive within {waited:?}", RankList(.absent))]
    Timeout {
        /// The ranks that had not arrived.
        absent: Vec<Rank>,
        /// The deadline that passed.
        waited: Duration,
    },
    /// Another rank failed and published why.
    #[error("rank {rank} failed: {cause}")]
    PeerFailed {
        /// The rank that failed.
        rank: Rank,
        /// What it said.
        cause: String,
    },
    /// The communicator was aborted through its abort handle.
    #[error("the communicator was aborted: {cause}")]
    Aborted {
        /// What the aborting party said.
        cause: String,
    },
    /// An earlier failure left the communicator in an unknown state.
    #[error("the communicator is poisoned: {cause}")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// The communicator or the graph's communicator was closed.
    #[error("the communicator is closed")]
    Closed,
    /// Memory could not be had; every rank sees this for the same call.
    #[error("out of memory: rank {rank} could not get {bytes} bytes")]
    OutOfMemory {
        /// The first rank whose allocation failed.
        rank: Rank,
        /// The bytes it asked for.
        bytes: usize,
    },
    /// Scratch of this size would have to be registered, which may not happen now.
    #[error(
        "{bytes} bytes of scratch in domain {domain} are not registered and {when}: \
         reserve them first, with `reserve` and a request of {bytes} bytes"
    )]
    NeedsReserve {
        /// Bytes requested.
        bytes: usize,
        /// The domain that missed.
        domain: String,
        /// Why registering is not possible now.
        when: MissedWhen,
    },
    /// The scratch rules refuse this request for scratch or for a symmetric buffer.
    #[error("{bytes} bytes of symmetric memory are refused: {why}")]
    Refused {
        /// Bytes requested.
        bytes: usize,
        /// Which rule refused.
        why: Refusal,
    },
    /// The fallback that the call would need is forbidden.
    #[error("{op} would fall back ({why}), and fallback is forbidden")]
    FallbackForbidden {
        /// The operation.
        op: OpKind,
        /// Why the fast path is not available.
        why: String,
    },
    /// This backend, library version or platform cannot do it.
    #[error("unsupported: {0}")]
    Unsupported(Unsupported),
    /// The capture cannot go on, or what was asked for is not allowed in a capture.
    #[error("capture: {0}")]
    Capture(CaptureFault),
    /// Configuration that cannot be accepted.
    #[error("configuration: {0}")]
    Config(String),
    /// A native library returned a code; unknown codes arrive here unchanged.
    #[error("{library} returned {code} ({text})")]
    Native {
        /// The library.
        library: &'static str,
        /// Its code, whatever it is.
        code: i64,
        /// Its text for the code, if it has one.
        text: String,
    },
    /// The operating system refused.
    #[error("{0}")]
    System(String),
}

/// Mistakes of the caller. Nothing was enqueued, and the call may be repeated correctly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// `count` elements take more bytes than an address can express.
    #[error("{count} elements of {dtype} overflow the address space")]
    SizeOverflow {
        /// Elements.
        count: usize,
        /// Their type.
        dtype: DType,
    },
    /// An operand has the wrong number of elements.
    #[error("{which} holds {actual} elements, {expected} are needed")]
    WrongCount {
        /// The operand, `send` or `recv`.
        which: &'static str,
        /// What the operation needs.
        expected: usize,
        /// What the operand holds.
        actual: usize,
    },
    /// The length of an operand is no multiple of the world size.
    #[error("{count} elements cannot be divided among {world_size} ranks")]
    NotDivisible {
        /// Elements.
        count: usize,
        /// Ranks.
        world_size: usize,
    },
    /// A counts vector does not have one entry per rank.
    #[error("the counts vector has {actual} entries, the world has {expected} ranks")]
    WrongCountsLength {
        /// Ranks of the communicator.
        expected: usize,
        /// Entries given.
        actual: usize,
    },
    /// The root or peer is no rank of this communicator.
    #[error("rank {rank} is outside 0..{world_size}")]
    RankOutOfRange {
        /// The rank given.
        rank: Rank,
        /// Ranks of the communicator.
        world_size: usize,
    },
    /// Send or receive with oneself outside a group.
    #[error("rank {rank} sends to itself outside a group")]
    SelfMessage {
        /// The rank.
        rank: Rank,
    },
    /// The two operands overlap and are not the same range where the operation allows that.
    #[error("send and receive operands overlap without being an in-place call")]
    Overlap,
    /// An operand with elements has a null address.
    #[error("{which} has {bytes} bytes at a null address")]
    NullAddress {
        /// The operand.
        which: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// `address + length` leaves the address space.
    #[error("{which} runs past the end of the address space")]
    AddressOverflow {
        /// The operand.
        which: &'static str,
    },
    /// An operand claims a window slice that does not contain it.
    #[error("{which} lies outside the window slice it names")]
    OutsideWindow {
        /// The operand.
        which: &'static str,
    },
    /// Two operands have different element types.
    #[error("element types differ: {left} and {right}")]
    DTypeDiffers {
        /// The one.
        left: DType,
        /// The other.
        right: DType,
    },
    /// The reduction is not defined for this element type.
    #[error("{op} is not defined for {dtype}")]
    NoSuchReduction {
        /// The reduction's name.
        op: &'static str,
        /// The element type.
        dtype: DType,
    },
    /// Memory, stream or graph belongs to another device.
    #[error("{what} belongs to another device than the communicator")]
    WrongDevice {
        /// The object.
        what: &'static str,
    },
    /// A window of another communicator, or one that was retired.
    #[error("the window is not registered with this communicator")]
    UnknownWindow,
    /// A byte range outside the memory it should lie in.
    #[error("{offset} + {bytes} bytes exceed the {available} available")]
    OutOfBounds {
        /// Start.
        offset: usize,
        /// Length.
        bytes: usize,
        /// What there is.
        available: usize,
    },
    /// A range of elements that a buffer does not have.
    #[error("elements {start}..{end} are asked for of {count}")]
    NoSuchElements {
        /// The first.
        start: usize,
        /// The one after the last.
        end: usize,
        /// How many there are.
        count: usize,
    },
    /// A request for zero bytes of scratch.
    #[error("zero bytes of scratch were requested")]
    ZeroBytes,
    /// A symmetric buffer without elements.
    #[error("a symmetric buffer of no elements was asked for")]
    EmptyBuffer,
    /// A host slice was used while its stream captures.
    #[error("host slices cannot be captured, because a graph may outlive them")]
    HostSliceInCapture,
    /// A call that waits on the host was made on a capturing stream.
    #[error("{what} waits on the host, which a capturing stream cannot")]
    BlocksInCapture {
        /// The call.
        what: &'static str,
    },
    /// Memory that is already part of a window was registered again.
    #[error("the address range is already registered")]
    AlreadyRegistered,
    /// Reserving, growing or reconfiguring after the seal.
    #[error("the scratch allocator is sealed")]
    Sealed,
    /// A graph was launched while a lease of a slot that it owns is out, or the other way round.
    #[error("a lease and a launch of a graph use the same slot at the same time")]
    InUse,
    /// Memory that cannot be registered as symmetric memory.
    #[error("this memory cannot be registered: {why}")]
    NotRegistrable {
        /// Why not.
        why: &'static str,
    },
    /// Anything else, in words.
    #[error("{0}")]
    Other(String),
}

/// What ranks can disagree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Field {
    /// The kind of operation.
    Operation,
    /// The element type.
    DType,
    /// The reduction.
    Reduction,
    /// The number of elements.
    Count,
    /// The counts vector.
    Counts,
    /// The root rank.
    Root,
    /// The window an operand lies in, or whether it lies in one.
    Window,
    /// The offset inside the window.
    Offset,
    /// The number of operations in a group.
    GroupLength,
    /// Whether the call was captured.
    Capture,
    /// The configuration.
    Configuration,
    /// The order of collective calls.
    Order,
    /// The state of the scratch slots.
    Slots,
    /// The capacity to allocate.
    Capacity,
    /// Bytes requested.
    Bytes,
    /// The scratch domain.
    Domain,
    /// The library version.
    Version,
    /// A length of a record that was exchanged.
    RecordLength,
    /// Which kernels may be used.
    Kernel,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operation => "the operation",
            Self::DType => "the element type",
            Self::Reduction => "the reduction",
            Self::Count => "the count",
            Self::Counts => "the counts vector",
            Self::Root => "the root",
            Self::Window => "the window",
            Self::Offset => "the window offset",
            Self::GroupLength => "the length of the group",
            Self::Capture => "the capture state",
            Self::Configuration => "the configuration",
            Self::Order => "the order of calls",
            Self::Slots => "the scratch slots",
            Self::Capacity => "the capacity",
            Self::Bytes => "the bytes requested",
            Self::Domain => "the scratch domain",
            Self::Version => "the version",
            Self::RecordLength => "the record length",
            Self::Kernel => "the choice of kernels",
        })
    }
}

/// Why a miss could not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MissedWhen {
    /// A stream is capturing: the one of the request, or another that the communicator is captured on.
    #[error("a stream is capturing")]
    Capturing,
    /// The allocator is sealed.
    #[error("the allocator is sealed")]
    Sealed,
}

/// Which scratch rule refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Larger than the largest request that is staged at all.
    #[error("it exceeds the cap of {cap} bytes")]
    OverCap {
        /// The cap.
        cap: usize,
    },
    /// The communicator would keep more mapped bytes than its limit.
    #[error("{mapped} mapped bytes would exceed the limit of {limit}")]
    OverLimit {
        /// Mapped bytes there would be.
        mapped: usize,
        /// The limit.
        limit: usize,
    },
    /// The communicator would have more windows than it may.
    #[error("{windows} windows would exceed the limit of {limit}")]
    OverWindows {
        /// Windows there would be.
        windows: usize,
        /// The limit.
        limit: usize,
    },
    /// The windows of the communicator would take more addresses than there are for them.
    #[error("{addresses} bytes of addresses would exceed the {limit} there are for windows")]
    OverAddresses {
        /// Bytes of addresses that windows would take.
        addresses: usize,
        /// The least that any rank has for them.
        limit: usize,
    },
    /// The policy itself refuses.
    #[error("the policy serves no request of this size")]
    Policy,
    /// There is no scratch at all.
    #[error("no scratch allocator is in use")]
    NoScratch,
}

/// What cannot be done here, as far as a caller can act on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The backend has no symmetric memory on this platform.
    #[error("no symmetric memory: {0}")]
    SymmetricMemory(String),
    /// Registration succeeded without giving a window.
    #[error("registration gave a null window")]
    NullWindow,
    /// The library is too old or known to be wrong.
    #[error("library version: {0}")]
    Version(String),
    /// The backend cannot map the same bytes at two address ranges.
    #[error("memory cannot be mapped twice: {0}")]
    Aliasing(String),
    /// The backend has no graphs of its own.
    #[error("this backend offers no graphs of its own")]
    Graphs,
    /// The backend has no graphs inside graphs.
    #[error("this backend has no child graphs")]
    ChildGraphs,
    /// The backend cannot do this operation.
    #[error("{0}")]
    Operation(String),
}

/// What goes wrong around a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureFault {
    /// A capturing stream was made to wait for work outside its capture.
    #[error("a capturing stream cannot depend on work outside its capture")]
    Isolation,
    /// The stream is already capturing.
    #[error("the stream is already capturing")]
    AlreadyCapturing,
    /// The stream is not capturing.
    #[error("the stream is not capturing")]
    NotCapturing,
    /// An earlier fault invalidated the capture.
    #[error("the capture was invalidated")]
    Invalidated,
    /// A stream joined the capture and was not joined back.
    #[error("a stream that joined the capture was not joined back")]
    Unjoined,
    /// A window would have been made or retired while a stream captures.
    #[error("no window is made or retired while a stream captures")]
    WindowChange,
    /// A call in pieces failed after some of them were recorded.
    #[error("the capture holds a part of a call that failed: drop it")]
    Partial,
}

impl Error {
    /// An error of this kind, without context yet.
    #[must_use]
    pub fn new(kind: impl Into<ErrorKind>) -> Self {
        Self::of(kind.into())
    }

    // Whatever makes or changes an error is cold, so that compilers keep it out of the way of calls
    // that succeed.
    #[cold]
    fn of(kind: ErrorKind) -> Self {
        Self(Box::new(Inner {
            poisons: kind.poisons(),
            kind,
            operation: None,
            backend: None,
            rank: None,
            source: None,
        }))
    }

    /// A [`ErrorKind::Config`] error.
    #[must_use]
    pub fn config(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config(text.into()))
    }

    /// A [`ErrorKind::Unsupported`] error.
    #[cold]
    #[must_use]
    pub fn unsupported(what: Unsupported) -> Self {
        Self::new(ErrorKind::Unsupported(what))
    }

    /// A [`ErrorKind::Capture`] error.
    #[cold]
    #[must_use]
    pub fn capture(fault: CaptureFault) -> Self {
        Self::new(ErrorKind::Capture(fault))
    }

    /// Names the operation, unless an inner layer already did.
    #[cold]
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Names the backend, unless an inner layer already did.
    #[cold]
    #[must_use]
    pub fn on_backend(mut self, backend: &'static str) -> Self {
        self.0.backend.get_or_insert(backend);
        self
    }

    /// Names the rank that reports it, unless an inner layer already did.
    #[cold]
    #[must_use]
    pub fn on_rank(mut self, rank: Rank) -> Self {
        self.0.rank.get_or_insert(rank);
        self
    }

    /// Attaches the error below this one.
    #[cold]
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What a caller can act on.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The operation that failed, if known.
    #[must_use]
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The backend that reported it, if one did.
    #[must_use]
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }

    /// The rank that reports it.
    #[must_use]
    pub fn rank(&self) -> Option<Rank> {
        self.0.rank
    }

    /// The caller's mistake, if it is one.
    #[must_use]
    pub fn misuse(&self) -> Option<&Misuse> {
        match self.kind() {
            ErrorKind::Misuse(misuse) => Some(misuse),
            _ => None,
        }
    }

    /// Marks that something had moved, so that the communicator refuses work from now on.
    #[cold]
    #[must_use]
    pub fn poisoning(mut self) -> Self {
        self.0.poisons = true;
        self
    }

    /// Marks that nothing had moved and all ranks know, so that the call may be repeated.
    #[must_use]
    pub fn repeatable(mut self) -> Self {
        self.0.poisons = false;
        self
    }

    /// Whether the communicator refuses work after this error.
    ///
    /// `false` means that nothing had moved: every rank may repeat the call, or make another.
    #[must_use]
    pub fn poisons(&self) -> bool {
        self.0.poisons
    }
}

impl ErrorKind {
    /// What holds unless who reports it says otherwise with [`Error::poisoning`] or
    /// [`Error::repeatable`].
    fn poisons(&self) -> bool {
        match self {
            Self::PeerFailed { .. }
            | Self::Aborted { .. }
            | Self::Poisoned { .. }
            | Self::Native { .. }
            | Self::System(_) => true,
            Self::Misuse(_)
            | Self::Mismatch { .. }
            | Self::Timeout { .. }
            | Self::Closed
            | Self::OutOfMemory { .. }
            | Self::NeedsReserve { .. }
            | Self::Refused { .. }
            | Self::FallbackForbidden { .. }
            | Self::Unsupported(_)
            | Self::Capture(_)
            | Self::Config(_) => false,
        }
    }
}

impl Clone for Error {
    /// The clone carries the source's text, not the source itself.
    fn clone(&self) -> Self {
        Self(Box::new(Inner {
            kind: self.0.kind.clone(),
            operation: self.0.operation,
            backend: self.0.backend,
            rank: self.0.rank,
            poisons: self.0.poisons,
            source: self.0.source.as_ref().map(|s| s.to_string().into()),
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(operation) = self.0.operation {
            write!(f, "{operation}: ")?;
        }
        write!(f, "{}", self.0.kind)?;
        match (self.0.backend, self.0.rank) {
            (Some(backend), Some(rank)) => write!(f, " [{backend}, rank {rank}]"),
            (Some(backend), None) => write!(f, " [{backend}]"),
            (None, Some(rank)) => write!(f, " [rank {rank}]"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("operation", &self.0.operation)
            .field("backend", &self.0.backend)
            .field("rank", &self.0.rank)
            .field("source", &self.0.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<ErrorKind> for Error {
    #[cold]
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

impl From<Misuse> for Error {
    #[cold]
    fn from(misuse: Misuse) -> Self {
        Self::new(ErrorKind::Misuse(misuse))
    }
}

struct RankList<'a>(&'a [Rank]);

impl fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, rank) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{rank}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_operation_kind_backend_and_rank() {
        let error = Error::new(ErrorKind::Timeout {
            absent: vec![Rank(1), Rank(3)],
            waited: Duration::from_secs(5),
        })
        .during("all_reduce")
        .on_backend("host")
        .on_rank(Rank(0));
        assert_eq!(
            error.to_string(),
            "all_reduce: rank(s) 1, 3 did not arrive within 5s [host, rank 0]"
        );
        assert!(!error.poisons());
        let error = error.poisoning();
        assert!(error.poisons() && !error.repeatable().poisons());
    }

    #[test]
    fn the_innermost_context_wins() {
        let error = Error::from(Misuse::Overlap).during("inner").during("outer");
        assert_eq!(error.operation(), Some("inner"));
        assert_eq!(error.misuse(), Some(&Misuse::Overlap));
        assert!(!error.poisons());
    }
}
