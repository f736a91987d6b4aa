//! How a host device behaves, friendly or hostile.

use std::time::Duration;

use collectives_core::error::{Error, Result, Unsupported};
use collectives_core::rank::Rank;

use crate::region::PAGE;

/// Bytes of a granule unless the model says otherwise, as on NVIDIA devices.
const GRANULE: usize = 2 << 20;
/// What a granule must be a multiple of, so that every block keeps 256-byte alignment.
const GRANULE_UNIT: usize = 256;
/// Bytes of addresses for windows unless the model says otherwise: half of what NCCL reserves where
/// the largest device has 141 GB.
const ADDRESSES: usize = 72 << 30;
/// Bytes that the quarantine keeps unless the model says otherwise.
const QUARANTINE: usize = 256 << 20;

/// Where the work of a stream runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamMode {
    /// On the calling thread, at once; waits block the caller.
    #[default]
    Inline,
    /// On a worker thread of the stream, in the order it was enqueued.
    Asynchronous,
}

/// In which order successive blocks of symmetric memory get their addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressOrder {
    /// Later blocks lie higher.
    #[default]
    Ascending,
    /// Later blocks lie lower.
    Descending,
    /// Later blocks lie higher or lower than all others, as this seed says.
    Shuffled(u64),
}

/// The calls a model can refuse, each with a count of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// Allocation of ordinary memory.
    Allocate,
    /// Allocation of symmetric memory.
    AllocateSymmetric,
    /// Registration of a window.
    Register,
    /// Retirement of a window.
    Retire,
    /// Creation of a stream.
    Stream,
    /// Creation of a fence.
    Fence,
    /// The begin of a capture.
    Capture,
    /// Instantiation of a graph.
    Instantiate,
    /// Launch of an executable.
    Launch,
}

impl Call {
    /// Kinds of calls.
    pub(crate) const COUNT: usize = Self::Launch as usize + 1;

    /// The call's index into a table of [`Call::COUNT`] entries.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// The call's name in errors.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::AllocateSymmetric => "allocate_symmetric",
            Self::Register => "register",
            Self::Retire => "retire",
            Self::Stream => "create_stream",
            Self::Fence => "create_fence",
            Self::Capture => "begin_capture",
            Self::Instantiate => "instantiate",
            Self::Launch => "launch",
        }
    }
}

/// Sleeps before operations, so that ranks drift apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skew {
    pub(crate) longest: Duration,
    pub(crate) seed: u64,
}

/// A model of a device. The default is friendly; every `with_…` makes it differ from that.
///
/// Ranks of one world may have different models where the real world has different ranks: order
/// of addresses, budget, skew, refusals, delays. Granule and overhead are equal on all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceModel {
    rank: Rank,
    granule: usize,
    overhead: usize,
    budget: Option<usize>,
    address_order: AddressOrder,
    destructor_delay: Duration,
    refusals: Vec<(Call, u64)>,
    null_windows: bool,
    multicast: bool,
    skew: Option<Skew>,
    guard: usize,
    poison: Option<u8>,
    quarantine: usize,
    stream_mode: StreamMode,
    shared_memory: bool,
    heap: bool,
    addresses: Option<usize>,
}

impl Default for DeviceModel {
    fn default() -> Self {
        Self::new()
    }
}

impl DeviceModel {
    /// The friendly model: granules of 2 MiB, inline streams, ascending addresses, no limits.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            rank: Rank(0),
            granule: GRANULE,
            overhead: 0,
            budget: None,
            address_order: AddressOrder::Ascending,
            destructor_delay: Duration::ZERO,
            refusals: Vec::new(),
            null_windows: false,
            multicast: false,
            skew: None,
            guard: 0,
            poison: None,
            quarantine: QUARANTINE,
            stream_mode: StreamMode::Inline,
            shared_memory: false,
            heap: false,
            addresses: Some(ADDRESSES),
        }
    }

    /// The rank that errors of the device name.
    #[must_use]
    pub const fn with_rank(mut self, rank: Rank) -> Self {
        self.rank = rank;
        self
    }

    /// Bytes that symmetric memory is mapped in multiples of; a multiple of 256.
    #[must_use]
    pub const fn with_granule(mut self, bytes: usize) -> Self {
        self.granule = bytes;
        self
    }

    /// Bytes of every symmetric block that the backend keeps for itself, as a signal pad.
    #[must_use]
    pub const fn with_overhead(mut self, bytes: usize) -> Self {
        self.overhead = bytes;
        self
    }

    /// Bytes of memory, ordinary and symmetric, beyond which an allocation fails.
    #[must_use]
    pub const fn with_budget(mut self, bytes: usize) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// The order of the addresses of symmetric memory.
    #[must_use]
    pub const fn with_address_order(mut self, order: AddressOrder) -> Self {
        self.address_order = order;
        self
    }

    /// How long after its last owner a graph's memory is released; always on another thread.
    #[must_use]
    pub const fn with_destructor_delay(mut self, delay: Duration) -> Self {
        self.destructor_delay = delay;
        self
    }

    /// Refuses the `k`-th call of this kind, counted from one. May be given several times.
    #[must_use]
    pub fn with_refusal(mut self, call: Call, k: u64) -> Self {
        self.refusals.push((call, k));
        self
    }

    /// Whether registrations succeed without giving a window.
    #[must_use]
    pub const fn with_null_windows(mut self, null: bool) -> Self {
        self.null_windows = null;
        self
    }

    /// Whether reductions read peers at window offsets that this rank worked out alone.
    #[must_use]
    pub const fn with_multicast(mut self, multicast: bool) -> Self {
        self.multicast = multicast;
        self
    }

    /// Sleeps up to `longest` before operations, as the seed says.
    #[must_use]
    pub const fn with_skew(mut self, longest: Duration, seed: u64) -> Self {
        self.skew = Some(Skew { longest, seed });
        self
    }

    /// Guard bytes before and after every symmetric block; no report counts them.
    #[must_use]
    pub const fn with_guard(mut self, bytes: usize) -> Self {
        self.guard = bytes;
        self
    }

    /// Fills freed memory with this byte and keeps it mapped, so that stale reads see the byte and
    /// stale writes are found.
    #[must_use]
    pub const fn with_poison(mut self, byte: u8) -> Self {
        self.poison = Some(byte);
        self
    }

    /// Bytes of poisoned memory to keep before the oldest is given back.
    #[must_use]
    pub const fn with_quarantine(mut self, bytes: usize) -> Self {
        self.quarantine = bytes;
        self
    }

    /// Bytes of addresses that the windows of a communicator that extends some may take together;
    /// `None` for a device that cannot map memory twice.
    #[must_use]
    pub const fn with_addresses(mut self, bytes: Option<usize>) -> Self {
        self.addresses = bytes;
        self
    }

    /// How streams run unless they are created with a mode.
    #[must_use]
    pub const fn with_stream_mode(mut self, mode: StreamMode) -> Self {
        self.stream_mode = mode;
        self
    }

    /// Whether other processes can map symmetric memory; needed where ranks are processes.
    #[must_use]
    pub const fn with_shared_memory(mut self, shared: bool) -> Self {
        self.shared_memory = shared;
        self
    }

    /// Whether symmetric memory comes from the same heap as ordinary memory, where what was freed last
    /// is handed out again first, to either kind, as `malloc` does. Such memory has no guards, and
    /// cannot be mapped twice or by other processes.
    #[must_use]
    pub const fn with_heap(mut self, heap: bool) -> Self {
        self.heap = heap;
        self
    }

    /// The rank that errors of the device name.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// See [`DeviceModel::with_granule`].
    #[must_use]
    pub const fn granule(&self) -> usize {
        self.granule
    }

    /// See [`DeviceModel::with_overhead`].
    #[must_use]
    pub const fn overhead(&self) -> usize {
        self.overhead
    }

    /// See [`DeviceModel::with_budget`].
    #[must_use]
    pub const fn budget(&self) -> Option<usize> {
        self.budget
    }

    /// See [`DeviceModel::with_address_order`].
    #[must_use]
    pub const fn address_order(&self) -> AddressOrder {
        self.address_order
    }

    /// See [`DeviceModel::with_destructor_delay`].
    #[must_use]
    pub const fn destructor_delay(&self) -> Duration {
        self.destructor_delay
    }

    /// See [`DeviceModel::with_null_windows`].
    #[must_use]
    pub const fn null_windows(&self) -> bool {
        self.null_windows
    }

    /// See [`DeviceModel::with_multicast`].
    #[must_use]
    pub const fn multicast(&self) -> bool {
        self.multicast
    }

    /// See [`DeviceModel::with_guard`].
    #[must_use]
    pub const fn guard(&self) -> usize {
        self.guard
    }

    /// See [`DeviceModel::with_poison`].
    #[must_use]
    pub const fn poison(&self) -> Option<u8> {
        self.poison
    }

    /// See [`DeviceModel::with_quarantine`].
    #[must_use]
    pub const fn quarantine(&self) -> usize {
        self.quarantine
    }

    /// See [`DeviceModel::with_stream_mode`].
    #[must_use]
    pub const fn stream_mode(&self) -> StreamMode {
        self.stream_mode
    }

    /// See [`DeviceModel::with_shared_memory`].
    #[must_use]
    pub const fn shared_memory(&self) -> bool {
        self.shared_memory
    }

    /// See [`DeviceModel::with_heap`].
    #[must_use]
    pub const fn heap(&self) -> bool {
        self.heap
    }

    /// See [`DeviceModel::with_addresses`].
    #[must_use]
    pub const fn addresses(&self) -> Option<usize> {
        self.addresses
    }

    /// Bytes of addresses for windows that are extended, or why none can be.
    pub(crate) fn aliasing(&self) -> Result<usize> {
        let why = if self.overhead > 0 {
            "the backend keeps bytes at the end of every block, which would lie between others"
        } else if !self.granule.is_multiple_of(PAGE) {
            "granules are no whole pages"
        } else if self.heap {
            "symmetric memory comes from a heap"
        } else if let Some(addresses) = self.addresses {
            return Ok(addresses);
        } else {
            "the device model does not"
        };
        Err(Error::unsupported(Unsupported::Aliasing(why.to_owned())).on_backend("host"))
    }

    pub(crate) const fn skew(&self) -> Option<Skew> {
        self.skew
    }

    /// Whether the `k`-th call of this kind is to be refused.
    pub(crate) fn refuses(&self, call: Call, k: u64) -> bool {
        self.refusals.contains(&(call, k))
    }

    /// Checks what the builder cannot.
    pub(crate) fn check(&self) -> Result<()> {
        if self.granule == 0 || !self.granule.is_multiple_of(GRANULE_UNIT) {
            return Err(Error::config(format!(
                "a granule of {} bytes is no multiple of {GRANULE_UNIT}",
                self.granule
            )));
        }
        if self.heap && (self.guard > 0 || self.shared_memory) {
            return Err(Error::config(
                "memory of a heap has no guards, and other processes cannot map it",
            ));
        }
        if self.refusals.iter().any(|&(_, k)| k == 0) {
            return Err(Error::config("calls to refuse are counted from one"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_granule_that_breaks_alignment_is_refused() {
        assert!(DeviceModel::new().check().is_ok());
        assert!(DeviceModel::new().with_granule(0).check().is_err());
        assert!(DeviceModel::new().with_granule(100).check().is_err());
        let heap = DeviceModel::new().with_heap(true);
        assert!(heap.check().is_ok() && heap.aliasing().is_err());
        assert!(heap.clone().with_guard(1).check().is_err());
        assert!(heap.with_shared_memory(true).check().is_err());
        assert!(
            DeviceModel::new()
                .with_refusal(Call::Register, 0)
                .check()
                .is_err()
        );
    }

    #[test]
    fn only_the_named_call_is_refused() {
        let model = DeviceModel::new().with_refusal(Call::Register, 2);
        assert!(!model.refuses(Call::Register, 1));
        assert!(model.refuses(Call::Register, 2));
        assert!(!model.refuses(Call::Allocate, 2));
    }
}
