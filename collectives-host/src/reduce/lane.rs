//! How each element type is read into its accumulator and written back.

use collectives_core::eight_bits::{f8e4m3, f8e5m2};

use super::number::Number;

/// An element type: its bytes in memory, at any alignment, and the type it accumulates in.
///
/// The conversions of the 8 and 16-bit types are integer arithmetic and selections, because those
/// vectorise. What is too large for a type becomes its infinity, or NaN where it has none.
pub(super) trait Lane {
    type Bytes: Copy;
    type Acc: Number;
    fn widen(bytes: Self::Bytes) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self::Bytes;
}

macro_rules! native {
    ($($ty:ty),+) => {$(
        impl Lane for $ty {
            type Bytes = [u8; size_of::<$ty>()];
            type Acc = $ty;
            #[inline(always)]
            fn widen(bytes: Self::Bytes) -> Self {
                Self::from_ne_bytes(bytes)
            }
            #[inline(always)]
            fn narrow(acc: Self) -> Self::Bytes {
                acc.to_ne_bytes()
            }
        }
    )+};
}

native!(f64, f32, i64, i32, i8, u64, u32, u8);

/// bfloat16.
pub(super) struct Bf16;

impl Lane for Bf16 {
    type Bytes = [u8; 2];
    type Acc = f32;

    #[inline(always)]
    fn widen(bytes: [u8; 2]) -> f32 {
        f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)
    }

    #[inline(always)]
    fn narrow(acc: f32) -> [u8; 2] {
        let bits = acc.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let kept = if acc.is_nan() {
            bits | 0x0040_0000
        } else {
            rounded
        };
        upper_half(kept).to_ne_bytes()
    }
}

/// IEEE binary16.
pub(super) struct F16;

impl Lane for F16 {
    type Bytes = [u8; 2];
    type Acc = f32;

    #[inline(always)]
    fn widen(bytes: [u8; 2]) -> f32 {
        widen_f16(u16::from_ne_bytes(bytes))
    }

    #[inline(always)]
    fn narrow(acc: f32) -> [u8; 2] {
        let bits = acc.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        let special = if magnitude > 0x7f80_0000 {
            0x7e00
        } else {
            0x7c00
        };
        // Adding one half moves the bits of a subnormal result to the end of the mantissa, rounded.
        let subnormal = (f32::from_bits(magnitude) + 0.5)
            .to_bits()
            .wrapping_sub(0.5_f32.to_bits());
        let normal = magnitude
            .wrapping_add(0xfff + ((magnitude >> 13) & 1))
            .wrapping_sub(112 << 23)
            >> 13;
        let finite = if magnitude < 113 << 23 {
            subnormal
        } else {
            normal
        };
        let kept = if magnitude >= 143 << 23 {
            special
        } else {
            finite
        };
        lower_half(kept | sign).to_ne_bytes()
    }
}

/// OCP 8-bit float with 4 exponent bits.
pub(super) struct F8E4;

impl Lane for F8E4 {
    type Bytes = [u8; 1];
    type Acc = f32;

    #[inline(always)]
    fn widen([byte]: [u8; 1]) -> f32 {
        let magnitude = u32::from(byte & 0x7f);
        let sign = u32::from(byte & 0x80) << 24;
        // Two to the power of 120 moves the exponent from the bias 7 to 127, subnormals included.
        let scaled = f32::from_bits(magnitude << 20) * f32::from_bits(247 << 23);
        let value = if magnitude == 0x7f { f32::NAN } else { scaled };
        f32::from_bits(value.to_bits() | sign)
    }

    #[inline(always)]
    fn narrow(acc: f32) -> [u8; 1] {
        [f8e4m3(acc).to_bits()]
    }
}

/// OCP 8-bit float with 5 exponent bits: the upper byte of a binary16.
pub(super) struct F8E5;

impl Lane for F8E5 {
    type Bytes = [u8; 1];
    type Acc = f32;

    #[inline(always)]
    fn widen([byte]: [u8; 1]) -> f32 {
        widen_f16(u16::from(byte) << 8)
    }

    #[inline(always)]
    fn narrow(acc: f32) -> [u8; 1] {
        [f8e5m2(acc).to_bits()]
    }
}

#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let sign = u32::from(bits & 0x8000) << 16;
    // Two to the power of 112 moves the exponent from the bias 15 to 127, subnormals included.
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits(239 << 23);
    let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | sign)
}

#[inline(always)]
fn upper_half(bits: u32) -> u16 {
    (bits >> 16) as u16
}

#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "only the lower half is asked for"
)]
fn lower_half(bits: u32) -> u16 {
    bits as u16
}

#[cfg(test)]
mod tests {
    use float8::{F8E4M3, F8E5M2};
    use half::{bf16, f16};

    use super::*;

    fn same(left: f32, right: f32) -> bool {
        left.to_bits() == right.to_bits() || (left.is_nan() && right.is_nan())
    }

    #[test]
    fn every_16_bit_pattern_widens_as_the_half_crate_does_and_comes_back() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_ne_bytes();
            let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
            assert!(same(Bf16::widen(bytes), b.to_f32()), "bf16 {bits:#x}");
            assert!(same(F16::widen(bytes), h.to_f32()), "f16 {bits:#x}");
            if !b.is_nan() {
                assert_eq!(Bf16::narrow(b.to_f32()), bytes);
            }
            if !h.is_nan() {
                assert_eq!(F16::narrow(h.to_f32()), bytes);
            }
        }
    }

    #[test]
    fn every_8_bit_pattern_widens_as_the_float8_crate_does_and_comes_back() {
        for bits in 0..=u8::MAX {
            let (e4, e5) = (F8E4M3::from_bits(bits), F8E5M2::from_bits(bits));
            assert!(same(F8E4::widen([bits]), e4.to_f32()), "e4m3 {bits:#x}");
            assert!(same(F8E5::widen([bits]), e5.to_f32()), "e5m2 {bits:#x}");
            if !e4.to_f32().is_nan() {
                assert_eq!(F8E4::narrow(e4.to_f32()), [bits]);
            }
            if !e5.to_f32().is_nan() {
                assert_eq!(F8E5::narrow(e5.to_f32()), [bits]);
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even_as_the_half_crate_does() {
        // Every 8191st pattern, which meets all exponents, signs, infinities and NaNs.
        for bits in (0..=u32::MAX).step_by(8191) {
            let value = f32::from_bits(bits);
            let (b, h) = (bf16::from_f32(value), f16::from_f32(value));
            let ours = bf16::from_ne_bytes(Bf16::narrow(value));
            assert!(
                ours == b || (ours.is_nan() && b.is_nan()),
                "bf16 of {value:e}"
            );
            let ours = f16::from_ne_bytes(F16::narrow(value));
            assert!(
                ours == h || (ours.is_nan() && h.is_nan()),
                "f16 of {value:e}"
            );
        }
    }
}
