//! How many addresses windows may take when they are extended.
//!
//! NCCL reserves, for each communicator and peer, as many addresses as the largest device has memory
//! (`dev_runtime.cc`), and every window takes some, whatever memory it shares with others. Half of
//! them are left to windows that are not extended.

use std::env;

use collectives_core::error::{Error, Result, Unsupported};
use nccl_sys::Version;

/// The first version in which a window of several pieces of memory is right: 2.28 silently used the
/// first piece only, 2.29 refuses, and earlier versions of 2.30 count memory that is mapped twice
/// in ways that we have not tried.
const SEVERAL_PIECES: Version = Version::new(2, 30, 7);
/// Overrides what NCCL reserves.
const STRIDE: &str = "NCCL_WIN_STRIDE";
/// What NCCL rounds to.
const UNIT: usize = 4 << 30;

/// Whether this version can register what [`extend`] needs.
///
/// [`extend`]: collectives_core::symmetric::SymmetricMemory::allocate
pub(crate) fn check(version: Version) -> Result<()> {
    if version >= SEVERAL_PIECES {
        return Ok(());
    }
    let text = format!(
        "NCCL {version} cannot register a window of several pieces of memory; {SEVERAL_PIECES} can"
    );
    Err(Error::unsupported(Unsupported::Version(text)))
}

/// Bytes of addresses for windows on a device with `memory` bytes.
pub(crate) fn budget(memory: usize) -> usize {
    of(memory, env::var(STRIDE).ok().as_deref())
}

fn of(memory: usize, stride: Option<&str>) -> usize {
    let told = stride.and_then(|stride| stride.trim().parse::<usize>().ok());
    let reserved = told.filter(|&bytes| bytes > 0);
    reserved.unwrap_or_else(|| memory.next_multiple_of(UNIT)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_reserved_is_for_windows() {
        assert_eq!(of(141 << 30, None), 72 << 30);
        assert_eq!(of(141 << 30, Some("8589934592")), 4 << 30);
        assert_eq!(of(80 << 30, Some("")), 40 << 30);
        assert_eq!(of(1, Some("none")), 2 << 30);
    }

    #[test]
    fn a_version_that_takes_the_first_piece_only_is_refused() {
        assert!(check(Version::new(2, 28, 9)).is_err());
        assert!(check(Version::new(2, 30, 6)).is_err());
        assert!(check(Version::new(2, 30, 7)).is_ok());
        let error = check(Version::new(2, 29, 2)).unwrap_err();
        assert!(error.to_string().contains("2.30.7 can"), "{error}");
    }
}
