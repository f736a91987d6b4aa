//! What can go wrong between here and the library.

use std::fmt;

use crate::types::Code;
use crate::version::Version;

/// Why a call could not be made, or what it returned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// No library could be loaded.
    NotFound {
        /// What was tried, and why each failed.
        tried: Vec<String>,
    },
    /// The file is no NCCL: it does not tell its version.
    NoVersion {
        /// The file.
        library: String,
    },
    /// The library lacks a symbol.
    MissingSymbol {
        /// The symbol.
        name: &'static str,
        /// The library's version.
        version: Version,
    },
    /// The call returned a code.
    Failed {
        /// The symbol.
        name: &'static str,
        /// The code, which may be one that this crate does not know.
        code: Code,
        /// The library's text for the code, and for what happened last.
        text: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { tried } => write!(
                f,
                "no NCCL library was found; name one with {}. Tried: {}",
                crate::LIBRARY_VARIABLE,
                tried.join("; ")
            ),
            Self::NoVersion { library } => {
                write!(f, "{library} is no NCCL library: it has no ncclGetVersion")
            }
            Self::MissingSymbol { name, version } => write!(f, "NCCL {version} has no {name}"),
            Self::Failed { name, code, text } => write!(f, "{name} returned {}: {text}", code.0),
        }
    }
}

impl std::error::Error for Error {}
