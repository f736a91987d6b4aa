//! Why one rank cannot register or retire, so that all ranks fail alike.

use collectives_core::error::{Error, ErrorKind, Misuse, Unsupported};
use collectives_core::rank::Rank;
use collectives_core::round::Refusal;

/// Why a rank cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    WrongDevice,
    AlreadyRegistered,
    NotSymmetric,
    NullWindow,
    UnknownWindow,
}

impl Refusal for Outcome {
    const ALL: &'static [Self] = &[
        Self::WrongDevice,
        Self::AlreadyRegistered,
        Self::NotSymmetric,
        Self::NullWindow,
        Self::UnknownWindow,
    ];

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_refusal_breaks_the_communicator() {
        for refusal in Outcome::ALL {
            let error = refusal.error(Rank(1));
            assert_eq!(error.rank(), Some(Rank(1)));
            assert!(!error.poisons(), "{error}");
        }
    }
}
