//! 8-bit floats: what every reduction makes of every pair of them.
//!
//! The oracle knows the formats by their definition, and rounds by looking for the nearest number.

use std::cmp::Ordering;
use std::sync::LazyLock;

use collectives_core::collective::{Counts, Op};
use collectives_core::dtype::DType;
use collectives_core::reduce::{ReduceOp, Scalar};
use float8::{F8E4M3, F8E5M2};
use rstest::rstest;

use crate::common::{call, on_every_rank, operand, oracle_with, same};

/// A format with a sign, an exponent and a mantissa.
pub(crate) struct Format {
    /// The numbers that exponent and mantissa say, and one more: where the next would be. What is
    /// rounded to that one is too large.
    magnitudes: Vec<f64>,
    /// What is too large.
    overflow: u8,
}

/// No infinity: what is too large is NaN.
pub(crate) static E4M3: LazyLock<Format> = LazyLock::new(|| Format::new(3, 7, 0x7e, 0x7f));

/// As IEEE 754 has it: what is too large is infinite.
pub(crate) static E5M2: LazyLock<Format> = LazyLock::new(|| Format::new(2, 15, 0x7b, 0x7c));

impl Format {
    fn new(mantissa_bits: i32, bias: i32, largest: u8, overflow: u8) -> Self {
        let steps = 1 << mantissa_bits;
        let magnitude = |bits: u8| {
            let (exponent, mantissa) = (i32::from(bits) / steps, i32::from(bits) % steps);
            let mantissa = f64::from(mantissa) / f64::from(steps);
            match exponent {
                0 => mantissa * 2_f64.powi(1 - bias),
                _ => (1.0 + mantissa) * 2_f64.powi(exponent - bias),
            }
        };
        Self {
            magnitudes: (0..=largest + 1).map(magnitude).collect(),
            overflow,
        }
    }

    fn largest(&self) -> u8 {
        self.magnitudes.len() as u8 - 2
    }

    /// The value of an element.
    pub(crate) fn value(&self, bits: u8) -> f32 {
        let value = match bits & 0x7f {
            number if number <= self.largest() => self.magnitudes[usize::from(number)],
            0x7c => f64::INFINITY,
            _ => f64::NAN,
        };
        let value = if bits < 0x80 { value } else { -value };
        value as f32
    }

    /// The element nearest to a value; of two that are equally near, the one with the even mantissa.
    pub(crate) fn nearest(&self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        if value.is_nan() {
            return sign | 0x7f;
        }
        let beyond = self.magnitudes.len() - 1;
        let size = f64::from(value.abs()).min(self.magnitudes[beyond]);
        let above = self.magnitudes.partition_point(|number| *number < size);
        let below = above.saturating_sub(1);
        let distance = |bits: usize| (self.magnitudes[bits] - size).abs();
        let nearest = match distance(below).total_cmp(&distance(above)) {
            Ordering::Less => below,
            Ordering::Greater => above,
            Ordering::Equal => below + below % 2,
        };
        match nearest == beyond {
            true => sign | self.overflow,
            false => sign | nearest as u8,
        }
    }
}

/// All pairs: the first rank has one element 256 times each, the second all of them again and again.
fn pairs() -> [Vec<u8>; 2] {
    let all = 0..=u16::MAX;
    [
        all.clone().map(|pair| (pair >> 8) as u8).collect(),
        all.map(|pair| (pair & 0xff) as u8).collect(),
    ]
}

#[rstest]
fn every_pair_is_reduced_to_the_nearest_element(
    #[values(DType::F8E4M3, DType::F8E5M2)] dtype: DType,
) {
    let inputs = pairs();
    let scalar = |value: f32| match dtype {
        DType::F8E4M3 => Scalar::new(F8E4M3::from_f32(value)),
        _ => Scalar::new(F8E5M2::from_f32(value)),
    };
    let plain = [
        ReduceOp::Sum,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Average,
    ];
    let scaled = [(1.0, 1.0), (1.75, -0.5), (-12.0, 0.125)].map(|(first, second)| {
        let scalars = [scalar(first), scalar(second)];
        (scalars.map(ReduceOp::PreMulSum), scalars)
    });
    let ones = [scalar(1.0); 2];
    let cases: Vec<_> = plain
        .map(|op| ([op; 2], ones))
        .into_iter()
        .chain(scaled)
        .collect();
    on_every_rank(2, |rig| {
        let me = rig.rank();
        for (ops, scalars) in &cases {
            let expected = oracle_with(dtype, ops[0], &inputs, scalars);
            let mut send = inputs[me].clone();
            let mut recv = vec![0xaa; send.len()];
            let (from, to) = (operand(&mut send), operand(&mut recv));
            let counts = Counts::Even(inputs[me].len());
            rig.run(&[call(Op::AllReduce(ops[me]), dtype, from, to, counts)])
                .unwrap();
            let wrong = (0..recv.len())
                .find(|&at| !same(dtype, &recv[at..=at], &expected[at..=at]))
                .map(|at| (inputs[0][at], inputs[1][at], recv[at], expected[at]));
            assert_eq!(
                wrong, None,
                "{} of {dtype}: inputs, result, expected",
                ops[0]
            );
        }
    });
}

#[rstest]
#[case::kept(DType::F8E5M2, ReduceOp::Sum, 0x7c, 0x3c, 0x7c)]
#[case::of_its_sign(DType::F8E5M2, ReduceOp::Max, 0xfc, 0xfc, 0xfc)]
#[case::largest(DType::F8E5M2, ReduceOp::Max, 0x7c, 0x3c, 0x7c)]
#[case::times_one(DType::F8E5M2, ReduceOp::Product, 0x7c, 0xbc, 0xfc)]
#[case::halved(DType::F8E5M2, ReduceOp::Average, 0x7c, 0x3c, 0x7c)]
#[case::overflow(DType::F8E5M2, ReduceOp::Sum, 0x7b, 0x7b, 0x7c)]
#[case::just_not(DType::F8E5M2, ReduceOp::Sum, 0x7b, 0x67, 0x7b)]
#[case::averaged_before_it_is_rounded(DType::F8E5M2, ReduceOp::Average, 0x7b, 0x7b, 0x7b)]
#[case::no_infinity(DType::F8E4M3, ReduceOp::Sum, 0x7e, 0x7e, 0x7f)]
#[case::tie_to_the_largest(DType::F8E4M3, ReduceOp::Sum, 0x7e, 0x58, 0x7e)]
#[case::over_the_tie(DType::F8E4M3, ReduceOp::Sum, 0x7e, 0x59, 0x7f)]
fn what_is_too_large_is_seen(
    #[case] dtype: DType,
    #[case] op: ReduceOp,
    #[case] first: u8,
    #[case] second: u8,
    #[case] expected: u8,
) {
    on_every_rank(2, |rig| {
        let mut value = vec![[first, second][rig.rank()]];
        let both = operand(&mut value);
        rig.run(&[call(Op::AllReduce(op), dtype, both, both, Counts::Even(1))])
            .unwrap();
        assert!(same(dtype, &value, &[expected]), "{op}: {:#x}", value[0]);
    });
}

#[test]
fn the_oracle_knows_the_formats() {
    for (format, largest, smallest) in [
        (&*E4M3, 448.0, 2_f32.powi(-9)),
        (&*E5M2, 57344.0, 2_f32.powi(-16)),
    ] {
        assert_eq!(format.value(format.largest()), largest);
        assert_eq!(format.value(0x81), -smallest);
        assert_eq!(format.nearest(-0.0), 0x80);
        assert_eq!(format.nearest(f32::INFINITY), format.overflow);
    }
}
