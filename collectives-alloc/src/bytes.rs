//! Sizes as people write them: `80MiB`.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use collectives_core::error::{Error, Result};

/// A number of bytes, written as `4096`, `512KiB`, `80MiB`, `2GiB` or `1TiB`.
///
/// Units are powers of two. `KB`, `MB` and fractions are refused, because people disagree about
/// what they mean. It displays as the largest unit that divides it, so that what is displayed
/// parses back to the same number.
///
/// ```
/// use collectives_alloc::bytes::ByteSize;
///
/// let size: ByteSize = "80MiB".parse()?;
/// assert_eq!(size.get(), 80 << 20);
/// assert_eq!(size.to_string(), "80MiB");
/// # Ok::<(), collectives_core::error::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteSize(usize);

/// Units and their powers of two, largest first.
const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// What a size looks like, for error texts.
pub(crate) const ALLOWED: &str =
    "a whole number of bytes, or one with a unit: B, KiB, MiB, GiB or TiB (as in `80MiB`)";

impl ByteSize {
    /// This many bytes.
    #[must_use]
    pub const fn new(bytes: usize) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A power that reaches the width of `usize` cannot divide anything but zero.
        let divides = |power: u32| {
            let unit = 1_usize.checked_shl(power);
            self.0 > 0 && unit.is_some_and(|unit| self.0.is_multiple_of(unit))
        };
        match UNITS.iter().find(|(_, power)| divides(*power)) {
            Some((unit, power)) if *power > 0 => write!(f, "{}{unit}", self.0 >> power),
            _ => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |why: &str| {
            let text = text.escape_debug();
            Error::config(format!("`{text}` is no size{why}; allowed is {ALLOWED}"))
        };
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = trimmed.split_at(digits);
        let power = match unit.trim_start() {
            "" => Some(0),
            unit => UNITS.iter().find(|(name, _)| *name == unit).map(|u| u.1),
        };
        let (false, Some(power)) = (number.is_empty(), power) else {
            return Err(refuse(""));
        };
        let too_large = || refuse(" that this machine can address");
        let number: usize = number.parse().map_err(|_| too_large())?;
        1_usize
            .checked_shl(power)
            .and_then(|unit| number.checked_mul(unit))
            .map(Self)
            .ok_or_else(too_large)
    }
}

impl From<usize> for ByteSize {
    fn from(bytes: usize) -> Self {
        Self(bytes)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ALLOWED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
        self.visit_str(&bytes.to_string())
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
        self.visit_str(&bytes.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error as ValueError, I64Deserializer, U64Deserializer};

    use super::*;

    #[rstest]
    #[case("0", 0, "0")]
    #[case("4096", 4096, "4KiB")]
    #[case("4097B", 4097, "4097")]
    #[case("512KiB", 512 << 10, "512KiB")]
    #[case("1024KiB", 1 << 20, "1MiB")]
    #[case(" 80 MiB ", 80 << 20, "80MiB")]
    #[case("2GiB", 2 << 30, "2GiB")]
    #[case("18446744073709551615", usize::MAX, "18446744073709551615")]
    fn reads_and_shows(#[case] text: &str, #[case] bytes: usize, #[case] shown: &str) {
        let size: ByteSize = text.parse().unwrap();
        assert_eq!((size.get(), size.to_string().as_str()), (bytes, shown));
    }

    #[rstest]
    #[case("")]
    #[case("MiB")]
    #[case("-1")]
    #[case("+1")]
    #[case("1.5GiB")]
    #[case("80MB")]
    #[case("80 M iB")]
    #[case("0x10")]
    #[case("٣")]
    fn refuses_what_is_no_size(#[case] text: &str) {
        let error = text.parse::<ByteSize>().unwrap_err().to_string();
        assert_eq!(
            error,
            format!("configuration: `{text}` is no size; allowed is {ALLOWED}")
        );
    }

    #[rstest]
    #[case("18446744073709551616")]
    #[case("16777216TiB")]
    #[case("99999999999999999999999999KiB")]
    fn refuses_what_overflows(#[case] text: &str) {
        let error = text.parse::<ByteSize>().unwrap_err().to_string();
        assert!(error.contains("that this machine can address"), "{error}");
    }

    #[test]
    fn integers_deserialize_and_negative_ones_do_not() {
        let positive: U64Deserializer<ValueError> = 4096_u64.into_deserializer();
        assert_eq!(ByteSize::deserialize(positive).unwrap().get(), 4096);
        let negative: I64Deserializer<ValueError> = (-1_i64).into_deserializer();
        assert!(ByteSize::deserialize(negative).is_err());
    }

    proptest! {
        #[test]
        fn display_parses_back(bytes: usize, shift in 0_u32..64) {
            let size = ByteSize::new(bytes << shift);
            prop_assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size);
        }

        #[test]
        fn garbage_never_panics(text in any::<String>(), tail in "[0-9]{0,25} ?[KMGTib]{0,4}") {
            let _ = text.parse::<ByteSize>();
            let _ = tail.parse::<ByteSize>();
        }
    }
}
