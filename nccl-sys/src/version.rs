//! Versions of the library.

use std::fmt;

/// A version of NCCL, ordered as versions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
    /// The patch number.
    pub patch: u32,
}

impl Version {
    /// The version with these numbers.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// The version that `ncclGetVersion` codes like this: `X * 10000 + Y * 100 + Z` since 2.9, and
    /// `X * 1000 + Y * 100 + Z` before.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        let scale = if code < 10_000 { 1_000 } else { 10_000 };
        Self::new(code / scale, code % scale / 100, code % 100)
    }

    /// The code of the version.
    #[must_use]
    pub const fn code(self) -> u32 {
        self.major * 10_000 + self.minor * 100 + self.patch
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_in_both_schemes() {
        assert_eq!(Version::from_code(23_007), Version::new(2, 30, 7));
        assert_eq!(Version::from_code(2_804), Version::new(2, 8, 4));
        assert_eq!(Version::new(2, 32, 3).code(), 23_203);
        assert!(Version::new(2, 9, 6) < Version::new(2, 28, 0));
        assert_eq!(Version::new(2, 30, 7).to_string(), "2.30.7");
    }
}
