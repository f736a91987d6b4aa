//! Bugs, each of which breaks one thing, and the cases must catch.
//!
//! They are kept and run: a case whose bug survives proves nothing. Some live in the policy, some in
//! the allocator, some in the communicator's layer and some in the device.

pub(crate) mod allocator;
pub(crate) mod communicator;
pub(crate) mod device;
mod fold;
pub(crate) mod policy;
pub(crate) mod quarantine;
mod rough;

macro_rules! planted {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// One thing that is broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Planted {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Planted {
            /// Every bug there is.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }

            /// What is broken, in a sentence.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),+),)+
                }
            }
        }
    };
}

planted! {
    /// Communicator: an operation leaves out its last element.
    LastElementLost,
    /// Communicator: an operation on more than four gibibytes runs on what 32 bits can say.
    BytesCut,
    /// Communicator: every rank adds up floats beginning with its own.
    FoldsFromItself,
    /// Communicator: floats are added up from the last rank to the first.
    FoldsBackwards,
    /// Communicator: what is too large for an 8-bit float becomes the largest number.
    EightBitsSaturate,
    /// Communicator: an out-of-place operation writes into its input.
    InputClobbered,
    /// Communicator: a sum of operands in windows is a maximum.
    StagedSumIsMaximum,
    /// Communicator: a reduce-scatter that averages sums.
    AverageDropped,
    /// Communicator: an average out of place is a sum.
    AverageOnlyInPlace,
    /// Communicator: a shard in a window is taken for the one a granule further on.
    ShardOffByAGranule,
    /// Communicator: gathers and scatters lose the window of the side that must lie in one.
    WrongSideStaged,
    /// Communicator: odd ranks lose the windows of gathers and scatters.
    WindowOnSomeRanks,
    /// Communicator: `split` ignores the color.
    ColorIgnored,
    /// Communicator: a rank that one split leaves out is left out of all that follow.
    LeftOutForGood,
    /// Communicator: a staged operation reads the original tensor.
    OriginalPointer,
    /// Communicator: an operation on a slice of a slot runs on twice as much of the slot.
    WholeSlotReduced,
    /// Communicator: operands lose the windows they lie in.
    WindowsStripped,
    /// Communicator: a timeout does not name the absent ranks.
    TimeoutNamesNobody,
    /// Communicator: a window that is gone can be retired again.
    StaleWindowAccepted,
    /// Communicator: memory can be registered twice.
    DoubleRegisterAllowed,
    /// Communicator: looking an address up gives the start of its window.
    WindowOffsetLost,
    /// Communicator: looking an address up finds nothing.
    WindowsNotFound,
    /// Communicator: of a call that is split, the second piece's operation is left out.
    PieceSkipped,
    /// Communicator: of a call that is split, operations after the first run further on in the slot.
    PieceMisplaced,
    /// Communicator: operands in windows are rounded down to 16 bytes.
    OffsetRoundedDown,
    /// Communicator: windows are numbered by each rank alone.
    WindowsNumberedLocally,
    /// Communicator: windows are never deregistered.
    RetireForgotten,
    /// Communicator: aborting does nothing.
    AbortIgnored,
    /// Communicator: `shutdown` does nothing.
    ShutdownForgotten,
    /// Communicator: dropping one without a shutdown tells the others nothing.
    DroppedUnheard,
    /// Communicator: symmetric memory is handed out twice.
    AllocatedTwice,
    /// Communicator: symmetric memory is never freed.
    AllocationLeaks,
    /// Communicator: memory that extends a window has bytes of its own.
    ExtensionsCopy,
    /// Communicator: the addresses for windows have no end.
    AddressesEndless,
    /// Communicator: a window that is retired is cleared first.
    RetireClears,
    /// Communicator: an agreement returns this rank's own record for all ranks.
    AgreementEchoes,
    /// Communicator: an agreement that timed out is a success.
    TimeoutIsSuccess,
    /// Communicator: that calls are out of order after a timeout is no error.
    MissedCallForgotten,
    /// Communicator: ranks in different calls wait until a deadline.
    CrossedCallsWait,
    /// Communicator: one that is dropped by a panic does not say so.
    PanicUnsaid,
    /// Communicator: odd ranks do not see that ranks disagree.
    MismatchSwallowed,
    /// Communicator: ranks agree while a stream captures.
    AgreesInCapture,
    /// Communicator: joining without a rank fails without a type.
    JoinErrorUntyped,
    /// Communicator: a message to oneself outside a group is dropped.
    OwnMessagesAccepted,
    /// Communicator: barriers are left out.
    BarriersLeftOut,
    /// Communicator: the check mode compares nothing.
    CheckModeOff,
    /// Communicator: the check mode does not hear of calls that are refused.
    RefusalsUntold,

    /// Device: a captured graph does not own what it uses.
    RetainForgotten,
    /// Device: what a captured graph owned is never released.
    RetainForever,
    /// Device: executables do not own what their graph does.
    ExecutableOwnsNothing,
    /// Device: copies of a graph do not own what it does.
    CopyOwnsNothing,
    /// Device: an updated executable owns what it did before.
    UpdateKeepsOldOwners,
    /// Device: a graph does not own what its child graphs do.
    ChildOwnsNothing,
    /// Device: child graphs are left out of their parents.
    ChildLeftOut,
    /// Device: an update that must be refused is a success.
    UpdateNeverRefused,
    /// Device: a branch whose body panics stays in the capture.
    PanicsLeaveBranches,
    /// Device: launches do nothing.
    LaunchDoesNothing,
    /// Device: every sixteenth launch does nothing.
    LaunchesAreFlaky,
    /// Device: an executable works twice.
    LaunchesTwice,
    /// Device: the errors of launches are lost.
    LaunchErrorsSwallowed,
    /// Device: every launch leaks memory.
    LaunchesLeak,
    /// Device: a captured copy allocates.
    AllocatesInCapture,
    /// Device: a captured copy waits on the host.
    WaitsInCapture,
    /// Device: of the streams that a call comes after, only the first is waited for.
    SecondOrderDropped,
    /// Device: waits for fences are left out.
    WaitsDropped,
    /// Device: waits for fences are left out of graphs.
    CapturedWaitsDropped,
    /// Device: every generation of an arena has a fence of its own.
    FencePerGeneration,
    /// Device: records of fences are left out of graphs.
    CapturedRecordsDropped,
    /// Device: no stream seems to capture.
    CaptureHidden,
    /// Device: captured copies leave out the last element.
    CapturedCopiesShort,

    /// Policy: slots are exactly as large as the request.
    NeverGrowsAhead,
    /// Policy: a new slot is eight times as large as it should be.
    GrowsEightfold,
    /// Policy: what is known of the largest request is not used.
    ReservesNothing,
    /// Policy: a granule more than needed.
    GranuleTooMany,
    /// Policy: every request registers a slot.
    NeverHits,
    /// Policy: the largest slot is used, and not the smallest that fits.
    WorstFit,
    /// Policy: an arena begins anew where it should grow.
    ArenaBeginsAnew,
    /// Policy: capacities depend on what one rank alone knows.
    LocalSizes,

    /// Allocator: the cap on requests is not kept.
    CapIgnored,
    /// Allocator: the limit on mapped bytes is not kept.
    LimitIgnored,
    /// Allocator: a request of exactly the cap is refused.
    CapOffByOne,
    /// Allocator: what to do on a miss is taken the other way round.
    OnMissFlipped,
    /// Allocator: the seal has no effect.
    SealIgnored,
    /// Allocator: every stream has slots of its own.
    SlotsPerStream,
    /// Allocator: streams and graphs that should have slots of their own share them.
    DomainsShared,
    /// Allocator: slots of streams that are gone serve no other stream.
    GoneStreamsKeepSlots,
    /// Allocator: ranks whose slots once lay in different domains are told so for ever.
    MismatchRemains,
    /// Allocator: `trim` gives nothing back.
    TrimDoesNothing,
    /// Allocator: `trim` does not say what is held.
    TrimHidesHeld,
    /// Allocator: statistics lack a granule of every slot.
    StatsUndercount,
    /// Allocator: hits are not counted.
    HitsUncounted,
    /// Allocator: replays count only as long as there is the slot that they used.
    ReplaysForgotten,
    /// Allocator: a plan prices half of the slots.
    PlanHalves,
    /// Allocator: a plan says that nothing will be refused.
    PlanHopes,
    /// Allocator: `reserve` registers what it can before it refuses the rest.
    ReservesOneByOne,
    /// Allocator: the bound on windows is for slots alone.
    BuffersUnbounded,
    /// Allocator: only captures that scratch was lent to are known.
    CapturesUnheard,
    /// Allocator: a request for nothing is served.
    ZeroBytesServed,
    /// Allocator: a lease ends when it begins.
    LeasesEndAtOnce,
    /// Allocator: a slot comes back only if no later lease is out.
    ReleasedInStackOrder,
    /// Allocator: a lease that comes back while a later one is out stays out.
    ReleasedOutOfOrderLost,
    /// Allocator: a hit asks the other ranks.
    HitAgrees,
    /// Allocator: a hit records an event that nobody needs.
    HitRecords,
    /// Allocator: a miss in a capture is another error on odd ranks.
    MissDiffersByRank,
    /// Allocator: a miss in a capture does not say what to do.
    MissTextLost,
    /// Allocator: a miss in a capture grows.
    GrowsInCapture,
    /// Allocator: what cannot be staged has no fallback.
    FallbackUndeclared,
    /// Allocator: large calls are staged whole, although a piece is configured.
    PieceIgnored,
    /// Allocator: pieces are not counted.
    PiecesUncounted,
    /// Allocator: ranks ask for what they need themselves.
    PartSizedRequests,
    /// Allocator: any configuration is accepted.
    ConfigLenient,
    /// Allocator: a slot is replaced at once, whatever graphs use it.
    ReplaceWithoutClaims,
    /// Allocator: of equal slots the one at the lowest address is used.
    TiesByAddress,
    /// Allocator: a slot changes its address while it lives.
    SlotsMove,
    /// Allocator: after an allocation that failed nothing is served.
    FailureSticks,
    /// Allocator: leases begin where each rank likes.
    UnevenOffsets,
}

impl Planted {
    /// Controls that the bug touches too, so that they prove nothing about it.
    #[must_use]
    pub const fn touches(self) -> &'static [&'static str] {
        match self {
            Self::LastElementLost => &["D2", "D6"],
            Self::WindowsNumberedLocally
            | Self::AllocationLeaks
            | Self::GrowsEightfold
            | Self::StatsUndercount
            | Self::UnevenOffsets
            | Self::LocalSizes => &["I5"],
            Self::PartSizedRequests => &["I5", "B3"],
            Self::AgreementEchoes | Self::TimeoutIsSuccess | Self::AbortIgnored => &["D6"],
            Self::OnMissFlipped
            | Self::GrowsInCapture
            | Self::SlotsPerStream
            | Self::CaptureHidden
            | Self::MissDiffersByRank => &["B3"],
            _ => &[],
        }
    }
}
