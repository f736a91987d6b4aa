//! What registering or retiring came to on one rank, on the wire, so that all ranks fail alike.

use collectives_core::error::{Error, ErrorKind, Misuse, Result, Unsupported};
use collectives_core::rank::Rank;

/// Why a rank cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outcome {
    WrongDevice = 1,
    Refused,
    AlreadyRegistered,
    NotSymmetric,
    NullWindow,
    UnknownWindow,
    Unreachable,
}

const ALL: [Outcome; 7] = [
    Outcome::WrongDevice,
    Outcome::Refused,
    Outcome::AlreadyRegistered,
    Outcome::NotSymmetric,
    Outcome::NullWindow,
    Outcome::UnknownWindow,
    Outcome::Unreachable,
];

impl Outcome {
    /// The error that every rank reports because `rank` cannot go on.
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
            Self::Refused => {
                // Nothing moved, so this does not poison, unlike other failures of a system.
                let what = format!("rank {rank}: the device refused");
                ErrorKind::Unsupported(Unsupported::Operation(what))
            }
        };
        Error::new(kind).on_rank(rank)
    }
}

/// The message of one rank: its outcome, and two words.
pub(crate) fn encode(outcome: &Result<(), Outcome>, words: [u64; 2]) -> [u8; 17] {
    let mut bytes = [0; 17];
    bytes[0] = outcome.err().map_or(0, |outcome| outcome as u8);
    bytes[1..9].copy_from_slice(&words[0].to_le_bytes());
    bytes[9..].copy_from_slice(&words[1].to_le_bytes());
    bytes
}

/// The words of all ranks, or the error of the first rank that cannot go on.
pub(crate) fn decode(all: &[Vec<u8>]) -> Result<Vec<[u64; 2]>> {
    let mut words = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        let garbled = || Misuse::Other(format!("rank {rank} sent a garbled record"));
        let (code, rest) = bytes.split_first().ok_or_else(garbled)?;
        if let Some(outcome) = ALL.iter().find(|&&outcome| outcome as u8 == *code) {
            return Err(outcome.error(Rank::new(rank)));
        }
        let (first, second) = rest.split_first_chunk::<8>().ok_or_else(garbled)?;
        let second = second.first_chunk::<8>().ok_or_else(garbled)?;
        words.push([u64::from_le_bytes(*first), u64::from_le_bytes(*second)]);
    }
    Ok(words)
}
