//! Element types: what a buffer holds, and how many bytes that takes.

use std::fmt;
use std::str::FromStr;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::error::{Error, Misuse};

/// The type of one element of an operand.
///
/// The set is the one NCCL has, so that no backend has to refuse an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// OCP 8-bit float, 4 exponent and 3 mantissa bits, up to 448. It has no infinity: a reduction that is
    /// [too large](crate::reduce#what-is-too-large) is NaN.
    F8E4M3,
    /// OCP 8-bit float, 5 exponent and 2 mantissa bits, up to 57344, and infinities as in IEEE 754.
    F8E5M2,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 64-bit integer.
    U64,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 8-bit integer; also the type to move plain bytes with.
    U8,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [Self; 12] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::I64,
        Self::I32,
        Self::I8,
        Self::U64,
        Self::U32,
        Self::U8,
    ];

    /// Bytes one element takes, which is also its natural alignment.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::I8 | Self::U8 => 1,
        }
    }

    /// Bytes `count` elements take.
    ///
    /// # Errors
    ///
    /// [`Misuse::SizeOverflow`] when the product does not fit into `usize`.
    #[inline(always)]
    pub fn bytes(self, count: usize) -> Result<usize, Error> {
        count
            .checked_mul(self.size())
            .ok_or_else(|| Misuse::SizeOverflow { count, dtype: self }.into())
    }

    /// The lower-case name used in configuration, traces and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::U32 => "u32",
            Self::U8 => "u8",
        }
    }

    /// Whether elements are floating-point numbers.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F64 | Self::F32 | Self::F16 | Self::Bf16 | Self::F8E4M3 | Self::F8E5M2
        )
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == text)
            .ok_or_else(|| {
                Error::config(format!(
                    "`{text}` is no element type; known are {}",
                    Self::ALL.map(Self::name).join(", ")
                ))
            })
    }
}

/// A Rust type that is one element of a [`DType`].
///
/// # Safety
///
/// `size_of::<Self>()` must equal `Self::DTYPE.size()`, every bit pattern must be a valid value,
/// and the type must have no padding and no interior mutability, so that backends may read and
/// write elements as raw bytes from any thread.
pub unsafe trait Element: Copy + Send + Sync + fmt::Debug + PartialEq + 'static {
    /// The element type this Rust type is.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),+ $(,)?) => {$(
        const _: () = assert!(size_of::<$ty>() == DType::$dtype.size());
        // SAFETY: The size is asserted above; these are primitive numbers or transparent wrappers
        // around an unsigned integer, for which every bit pattern is valid.
        unsafe impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
        }
    )+};
}

elements! {
    f64 => F64,
    f32 => F32,
    f16 => F16,
    bf16 => Bf16,
    F8E4M3 => F8E4M3,
    F8E5M2 => F8E5M2,
    i64 => I64,
    i32 => I32,
    i8 => I8,
    u64 => U64,
    u32 => U32,
    u8 => U8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
        }
        assert!("f17".parse::<DType>().is_err());
    }

    #[test]
    fn byte_sizes_are_checked() {
        assert_eq!(DType::Bf16.bytes(5).unwrap(), 10);
        assert!(DType::F64.bytes(usize::MAX / 4).is_err());
    }
}
