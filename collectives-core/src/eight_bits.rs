//! Rounding to 8-bit floats, as the [accumulation rules](crate::reduce) have it.
//!
//! To nearest even, and what is too large is not made smaller: it becomes infinite, as it does in the wider
//! types, or NaN in the type that has no infinity. An infinity stays one, so that a look for
//! overflow finds it. The conversions of the `float8` crate and of CUDA saturate instead.
//!
//! Both are integer arithmetic and selections, because those vectorise.

use float8::{F8E4M3, F8E5M2};

/// The nearest `f8e4m3`; NaN from 464 on, half-way to where the number after the largest would be.
#[inline(always)]
#[must_use]
pub fn f8e4m3(value: f32) -> F8E4M3 {
    let magnitude = value.to_bits() & 0x7fff_ffff;
    // Adding 2^14 moves the bits of a subnormal result to the end of the mantissa, rounded.
    let subnormal = (f32::from_bits(magnitude) + 16384.0)
        .to_bits()
        .wrapping_sub(16384.0_f32.to_bits());
    let normal = magnitude
        .wrapping_add(0x7_ffff + ((magnitude >> 20) & 1))
        .wrapping_sub(120 << 23)
        >> 20;
    let finite = if magnitude < 121 << 23 {
        subnormal
    } else {
        normal
    };
    // What rounds up to 480 becomes NaN by itself.
    let kept = if magnitude >= 480.0_f32.to_bits() {
        0x7f
    } else {
        finite
    };
    F8E4M3::from_bits(with_sign(kept, value))
}

/// The nearest `f8e5m2`; infinite from 61440 on, half-way to where the number after the largest would be.
#[inline(always)]
#[must_use]
pub fn f8e5m2(value: f32) -> F8E5M2 {
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let special = if magnitude > 0x7f80_0000 { 0x7e } else { 0x7c };
    // Adding 2^7 moves the bits of a subnormal result to the end of the mantissa, rounded.
    let subnormal = (f32::from_bits(magnitude) + 128.0)
        .to_bits()
        .wrapping_sub(128.0_f32.to_bits());
    // What rounds up to 2^16 becomes the infinity by itself.
    let normal = magnitude
        .wrapping_add(0xf_ffff + ((magnitude >> 21) & 1))
        .wrapping_sub(112 << 23)
        >> 21;
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
    F8E5M2::from_bits(with_sign(kept, value))
}

/// The bits of this magnitude with the sign of `value`.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a magnitude has seven bits, and the sign is the eighth"
)]
fn with_sign(magnitude: u32, value: f32) -> u8 {
    (magnitude | (value.to_bits() >> 24) & 0x80) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    type Round = fn(f32) -> u8;
    type Value = fn(u8) -> f32;

    const E4M3: (Round, Value) = (
        |value| f8e4m3(value).to_bits(),
        |bits| F8E4M3::from_bits(bits).to_f32(),
    );
    const E5M2: (Round, Value) = (
        |value| f8e5m2(value).to_bits(),
        |bits| F8E5M2::from_bits(bits).to_f32(),
    );

    #[test]
    fn every_number_and_infinity_comes_back() {
        for bits in 0..=u8::MAX {
            for (round, value) in [E4M3, E5M2] {
                match value(bits) {
                    nan if nan.is_nan() => assert!(value(round(nan)).is_nan(), "{bits:#x}"),
                    number => assert_eq!(round(number), bits),
                }
            }
        }
    }

    #[test]
    fn halves_go_to_even_and_what_is_too_large_is_seen() {
        // `next` is where the number after the largest would be.
        for ((round, value), largest, next) in [(E4M3, 0x7e, 480.0), (E5M2, 0x7b, 65536.0)] {
            for below in 0..=largest {
                let above = if below == largest {
                    next
                } else {
                    value(below + 1)
                };
                let half = f32::midpoint(value(below), above);
                let even = below + (below & 1);
                for (sign, bit) in [(1.0, 0), (-1.0, 0x80)] {
                    assert_eq!(round(sign * half.next_down()), below | bit, "under {half}");
                    assert_eq!(round(sign * half), even | bit, "{half}");
                    assert_eq!(
                        round(sign * half.next_up()),
                        (below + 1) | bit,
                        "over {half}"
                    );
                }
            }
            for large in [next, 1e30, f32::MAX, f32::INFINITY] {
                assert_eq!(
                    [round(large), round(-large)],
                    [largest + 1, (largest + 1) | 0x80]
                );
            }
            for nan in [0x7f80_0001, 0x7fff_ffff, 0xffc0_0000] {
                assert!(value(round(f32::from_bits(nan))).is_nan());
            }
        }
    }
}
