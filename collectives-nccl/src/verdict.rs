//! What a step came to on one rank, on the wire, so that all ranks fail alike.

use collectives_core::error::{Error, ErrorKind, Misuse, Result, Unsupported};
use collectives_core::rank::Rank;

/// Why a rank cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outcome {
    WrongDevice = 1,
    AlreadyRegistered,
    NotSymmetric,
    NullWindow,
    UnknownWindow,
}

const ALL: [Outcome; 5] = [
    Outcome::WrongDevice,
    Outcome::AlreadyRegistered,
    Outcome::NotSymmetric,
    Outcome::NullWindow,
    Outcome::UnknownWindow,
];

impl Outcome {
    /// The error that every rank reports because `rank` cannot go on.
    fn error(self, rank: Rank) -> Error {
        let kind = match self {
            Self::WrongDevice => Misuse::WrongDevice { what: "the memory" }.into(),
            Self::AlreadyRegistered => Misuse::AlreadyRegistered.into(),
            Self::NotSymmetric => Misuse::NotRegistrable {
                why: "it is no mapped physical memory, or not aligned to 4096 bytes",
            }
            .into(),
            Self::UnknownWindow => Misuse::UnknownWindow.into(),
            Self::NullWindow => ErrorKind::Unsupported(Unsupported::NullWindow),
        };
        Error::new(kind).on_rank(rank)
    }
}

/// The message of one rank: its outcome, and a word.
pub(crate) fn encode(outcome: &Result<(), Outcome>, word: u64) -> [u8; 9] {
    let mut bytes = [0; 9];
    bytes[0] = outcome.err().map_or(0, |outcome| outcome as u8);
    bytes[1..].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// The words of all ranks, or the error of the first rank that cannot go on.
pub(crate) fn decode(all: &[Vec<u8>]) -> Result<Vec<u64>> {
    let mut words = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        let garbled = || Misuse::Other(format!("rank {rank} sent a garbled record"));
        let (code, rest) = bytes.split_first().ok_or_else(garbled)?;
        if let Some(outcome) = ALL.iter().find(|&&outcome| outcome as u8 == *code) {
            return Err(outcome.error(Rank::new(rank)));
        }
        let word = rest.first_chunk::<8>().ok_or_else(garbled)?;
        words.push(u64::from_le_bytes(*word));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_the_same_error_for_all() {
        for outcome in ALL {
            let all = [
                encode(&Ok(()), 7).to_vec(),
                encode(&Err(outcome), 7).to_vec(),
            ];
            let error = decode(&all).unwrap_err();
            assert_eq!(error.rank(), Some(Rank(1)));
            assert!(!error.poisons(), "{error}");
        }
        let all = [encode(&Ok(()), 1).to_vec(), encode(&Ok(()), 2).to_vec()];
        assert_eq!(decode(&all).unwrap(), [1, 2]);
        assert!(decode(&[vec![0, 1]]).is_err());
    }
}
