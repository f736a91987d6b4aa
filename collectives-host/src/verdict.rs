//! Why one rank cannot register or retire, so that all ranks fail alike.

use collectives_core::error::{Error, ErrorKind, Misuse, Unsupported};
use collectives_core::rank::Rank;
use collectives_core::round::Refusal;

/// Why a rank cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    WrongDevice,
    Refused,
    AlreadyRegistered,
    NotSymmetric,
    NullWindow,
    UnknownWindow,
    Unreachable,
    Shortage,
}

impl Refusal for Outcome {
    const ALL: &'static [Self] = &[
        Self::WrongDevice,
        Self::Refused,
        Self::AlreadyRegistered,
        Self::NotSymmetric,
        Self::NullWindow,
        Self::UnknownWindow,
        Self::Unreachable,
        Self::Shortage,
    ];

    fn error(self, rank: Rank) -> Error {
        let kind = match self {
            Self::WrongDevice => Misuse::WrongDevice { what: "the memory" }.into(),
            Self::AlreadyRegistered => Misuse::AlreadyRegistered.into(),
            Self::NotSymmetric => Misuse::NotRegistrable {
                why: "it is no whole block of symmetric memory of this device",
            }
            .into(),
            Self::UnknownWindow => Misuse::UnknownWindow.into(),
            Self::NullWindow => ErrorKind::Unsupported(Unsupported::NullWindow),
            Self::Unreachable => {
                let what = format!("rank {rank} cannot map the memory of another rank");
                ErrorKind::Unsupported(Unsupported::SymmetricMemory(what))
            }
            // Who asked knows how much.
            Self::Shortage => ErrorKind::OutOfMemory { rank, bytes: 0 },
            Self::Refused => {
                // Nothing moved, so this does not poison, unlike other failures of a system.
                let what = format!("rank {rank}: the device refused");
                ErrorKind::Unsupported(Unsupported::Operation(what))
            }
        };
        Error::new(kind).on_rank(rank)
    }
}
