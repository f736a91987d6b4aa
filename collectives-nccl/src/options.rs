//! How a communicator is set up.

use std::env;
use std::ffi::CStr;
use std::time::Duration;

use collectives_core::bootstrap::DEFAULT_DEADLINE;
use collectives_core::collective::OpKind;
use collectives_core::error::{Error, Result, Unsupported};
use nccl_sys::Version;

/// The environment variable that lists defects which are allowed nevertheless, by name and
/// separated by commas; see [`DEFECTS`](crate::known_bad::DEFECTS).
pub const ALLOW_VARIABLE: &str = "COLLECTIVES_NCCL_ALLOW";

/// The first version in which a call can choose its kernel.
pub(crate) const SELECTION: Version = Version::new(2, 31, 2);

/// Which of the library's symmetric kernels calls on windows use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// The library chooses, and may choose an ordinary kernel.
    #[default]
    Auto,
    /// The library chooses among its symmetric kernels, or fails before anything moves.
    Symmetric,
    /// Every rank reads all peers' inputs and reduces them itself.
    OneShot,
    /// Every rank reduces its part and writes it to all peers.
    TwoShot,
    /// Multicast in the switch. Not for GPUs that ranks share.
    Multimem,
}

/// How a communicator is set up; equal on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How long ranks wait for each other in set-up, registration and shutdown.
    pub deadline: Duration,
    /// How long enqueued work may make no progress before the communicator is aborted. A peer that
    /// was killed shows in nothing else. Work that waits for a peer which is merely idle looks the
    /// same, so a server whose ranks may wait for requests for longer sets a longer time, or
    /// `Duration::MAX` to switch this off.
    pub work_deadline: Duration,
    /// Defects that are allowed nevertheless.
    pub allow: Vec<String>,
    /// Which kernels calls on windows use.
    pub algorithm: Algorithm,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: DEFAULT_DEADLINE,
            work_deadline: DEFAULT_DEADLINE,
            allow: Vec::new(),
            algorithm: Algorithm::Auto,
        }
    }
}

impl Options {
    /// The defaults, with the defects that the environment allows.
    #[must_use]
    pub fn from_env() -> Self {
        let listed = env::var(ALLOW_VARIABLE).unwrap_or_default();
        let names = listed.split(',').map(str::trim);
        Self {
            allow: names
                .filter(|name| !name.is_empty())
                .map(ToOwned::to_owned)
                .collect(),
            ..Self::default()
        }
    }
}

impl Algorithm {
    /// Whether the version can be told.
    pub(crate) fn check(self, version: Version) -> Result<()> {
        if self == Self::Auto || version >= SELECTION {
            return Ok(());
        }
        let text = format!("NCCL {version} cannot be told which kernel to use; {SELECTION} can");
        Err(Error::unsupported(Unsupported::Version(text)))
    }

    /// The library's selection for an operation; `None` where it has no say.
    pub(crate) fn selection(self, op: OpKind) -> Option<&'static CStr> {
        let kernels = match op {
            OpKind::AllReduce => [
                c"SYMK_AGxLL_R",
                c"SYMK_RSxLD_AGxST",
                c"SYMK_RSxLDMC_AGxSTMC",
            ],
            OpKind::AllGather => [c"SYMK_LL", c"SYMK_ST", c"SYMK_STMC"],
            OpKind::ReduceScatter => [c"SYMK_LL", c"SYMK_LD", c"SYMK_LDMC"],
            _ => return None,
        };
        match self {
            Self::Auto => None,
            Self::Symmetric => Some(c"SYMK"),
            Self::OneShot => Some(kernels[0]),
            Self::TwoShot => Some(kernels[1]),
            Self::Multimem => Some(kernels[2]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_cannot_choose_refuses() {
        assert!(Algorithm::Auto.check(Version::new(2, 30, 7)).is_ok());
        let error = Algorithm::TwoShot
            .check(Version::new(2, 30, 7))
            .unwrap_err();
        assert!(error.to_string().contains("2.30.7"), "{error}");
        assert!(Algorithm::TwoShot.check(Version::new(2, 32, 3)).is_ok());
    }

    #[test]
    fn only_operations_with_symmetric_kernels_are_told() {
        assert_eq!(Algorithm::OneShot.selection(OpKind::Broadcast), None);
        assert_eq!(Algorithm::Auto.selection(OpKind::AllReduce), None);
        let two_shot = Algorithm::TwoShot.selection(OpKind::AllReduce);
        assert_eq!(two_shot, Some(c"SYMK_RSxLD_AGxST"));
    }
}
