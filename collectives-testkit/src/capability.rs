//! What a backend may lack, and says so before the cases are listed.

use std::fmt;

/// Something that a case needs and not every backend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Capability {
    /// What the backend runs on. Every case needs it; asked with
    /// [`Harness::platform`](crate::harness::Harness::platform).
    Platform,
    /// Windows of symmetric memory.
    Symmetric,
    /// Windows can be extended: bytes mapped at two address ranges.
    Aliasing,
    /// Capture and replay through [`Device::graphs`](collectives_core::device::Device::graphs).
    Graphs,
    /// An executable can be updated from another graph of the same shape.
    GraphUpdate,
    /// Graphs can be nodes of other graphs.
    ChildGraphs,
    /// A call that differs between ranks is the same typed error on all of them.
    ComparesCalls,
    /// A rank that waits for others in an operation or in a round sees in which call they are, so that ranks
    /// whose calls are out of order are told at once.
    SeesPeers,
    /// Averages, and sums of what is multiplied by a scalar first.
    Averages,
    /// Sums and products of 32 and 64-bit floats are folds in the order of ranks, bit for bit.
    RankOrder,
    /// Reductions of 8 and 16-bit floats accumulate in `f32`, in the order of ranks, and are rounded once, as
    /// the [accumulation rules](collectives_core::reduce) say.
    RoundsOnce,
    /// An abort handle ends calls that are blocked.
    Abort,
    /// [`Probe`](crate::harness::Probe) tells what the device has lost to memory.
    CountsMemory,
    /// The terrain `hostile` delays the destructors of graphs.
    DelaysDestructors,
    /// [`Probe`](crate::harness::Probe) gives ranges of more than four gibibytes, and operations on them
    /// take seconds and not minutes.
    LongRanges,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Platform,
        Self::Symmetric,
        Self::Aliasing,
        Self::Graphs,
        Self::GraphUpdate,
        Self::ChildGraphs,
        Self::ComparesCalls,
        Self::SeesPeers,
        Self::Averages,
        Self::RankOrder,
        Self::RoundsOnce,
        Self::Abort,
        Self::CountsMemory,
        Self::DelaysDestructors,
        Self::LongRanges,
    ];

    /// The name used in `COLLECTIVES_REQUIRE` and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Platform => "platform",
            Self::Symmetric => "symmetric",
            Self::Aliasing => "aliasing",
            Self::Graphs => "graphs",
            Self::GraphUpdate => "graph-update",
            Self::ChildGraphs => "child-graphs",
            Self::ComparesCalls => "compares-calls",
            Self::SeesPeers => "sees-peers",
            Self::Averages => "averages",
            Self::RankOrder => "rank-order",
            Self::RoundsOnce => "rounds-once",
            Self::Abort => "abort",
            Self::CountsMemory => "counts-memory",
            Self::DelaysDestructors => "delays-destructors",
            Self::LongRanges => "long-ranges",
        }
    }

    /// The capability of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|capability| capability.name() == name)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a backend has a capability.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no third answer")]
pub enum Support {
    /// It has: the cases that need it run.
    Yes,
    /// It has not, for this reason: they are listed as skipped.
    No(String),
}

impl Support {
    /// That the backend lacks it, for a reason.
    #[must_use]
    pub fn no(reason: impl Into<String>) -> Self {
        Self::No(reason.into())
    }
}
