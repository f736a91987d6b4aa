//! What NCCL makes of 8-bit floats that are too large, of infinities and of NaN.
//!
//! It is not what `collectives_core::reduce` says, and the backend documents that it is not: halves are
//! converted back as CUDA does it, which saturates. Each line has both results, so that a version
//! that changes its mind is told from one that is wrong.

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::dtype::Element;
use collectives_core::reduce::ReduceOp;
use float8::{F8E4M3, F8E5M2};

use crate::rank::Ctx;
use crate::{Outcome, Said, ensure};

/// An element type of eight bits.
trait Byte: Element {
    fn of(bits: u8) -> Self;
    fn bits(self) -> u8;
}

macro_rules! bytes {
    ($($ty:ty),+) => {$(
        impl Byte for $ty {
            fn of(bits: u8) -> Self {
                Self::from_bits(bits)
            }
            fn bits(self) -> u8 {
                self.to_bits()
            }
        }
    )+};
}

bytes!(F8E4M3, F8E5M2);

/// One reduction, by bits.
struct Line {
    op: ReduceOp,
    /// What the first rank has, the second, and every other one.
    inputs: [u8; 3],
    /// What the contract says, and a backend that rounds once.
    contract: u8,
    /// What NCCL's kernels say.
    nccl: u8,
}

const fn line(op: ReduceOp, inputs: [u8; 3], contract: u8, nccl: u8) -> Line {
    Line {
        op,
        inputs,
        contract,
        nccl,
    }
}

const OF_E5M2: [Line; 11] = [
    // An infinity and one.
    line(ReduceOp::Sum, [0x7c, 0x3c, 0], 0x7c, 0x7b),
    line(ReduceOp::Max, [0x7c, 0x3c, 0x3c], 0x7c, 0x7b),
    line(ReduceOp::Product, [0x7c, 0x3c, 0x3c], 0x7c, 0x7b),
    line(ReduceOp::Min, [0xfc, 0x3c, 0x3c], 0xfc, 0xfb),
    // The largest number, twice; with what is lost beside it; with what makes a tie.
    line(ReduceOp::Sum, [0x7b, 0x7b, 0], 0x7c, 0x7b),
    line(ReduceOp::Sum, [0x7b, 0x68, 0], 0x7b, 0x7b),
    line(ReduceOp::Sum, [0xfb, 0xec, 0], 0xfc, 0xfb),
    // 32768 times 4.
    line(ReduceOp::Product, [0x78, 0x44, 0x3c], 0x7c, 0x7b),
    // NaN: of opposite infinities, and given.
    line(ReduceOp::Sum, [0x7c, 0xfc, 0], 0x7f, 0x7f),
    line(ReduceOp::Sum, [0x7f, 0x3c, 0], 0x7f, 0x7f),
    // A largest element need not propagate it.
    line(ReduceOp::Max, [0x7f, 0x3c, 0x3c], 0x7f, 0x3c),
];

const OF_E4M3: [Line; 4] = [
    line(ReduceOp::Sum, [0x7e, 0x7e, 0], 0x7f, 0x7e),
    line(ReduceOp::Sum, [0x7e, 0x58, 0], 0x7e, 0x7e),
    line(ReduceOp::Product, [0x78, 0x40, 0x38], 0x7f, 0x7e),
    line(ReduceOp::Sum, [0x7f, 0x38, 0], 0x7f, 0x7f),
];

/// The first bits of magnitude that are NaN.
const fn first_nan(is_e4m3: bool) -> u8 {
    if is_e4m3 { 0x7f } else { 0x7d }
}

fn all<T: Byte>(ctx: &mut Ctx, lines: &[Line], wrong: &mut Vec<String>) -> Outcome {
    let mut handle = Collectives::without_scratch(ctx.connect()?);
    let nan = first_nan(T::DTYPE == F8E4M3::DTYPE);
    for line in lines {
        let count = 333;
        let mine = [T::of(line.inputs[ctx.rank.min(2)]); 333];
        let mut tensor = Buffer::from_slice(&ctx.device, &mine, &ctx.stream).said("from_slice")?;
        let what = format!("the {} of {:#04x?} in {}", line.op, line.inputs, T::DTYPE);
        handle
            .all_reduce(&mut tensor, line.op, &ctx.stream)
            .said(&what)?;
        // On one rank nothing is converted.
        let expected = if ctx.ranks == 1 {
            line.inputs[0]
        } else {
            line.nccl
        };
        // Any NaN is like any other.
        let same = |bits: u8| match expected & 0x7f >= nan {
            true => bits & 0x7f >= nan,
            false => bits == expected,
        };
        let found = tensor.read(&ctx.stream).said("read")?;
        ensure(found.len() == count, || format!("{} elements", found.len()))?;
        if let Some(other) = found.iter().map(|x| x.bits()).find(|&bits| !same(bits)) {
            wrong.push(format!(
                "{what} is {other:#04x}; expected of NCCL {expected:#04x}, by the contract {:#04x}",
                line.contract
            ));
        }
    }
    let _left = handle.close().said("close")?;
    Ok(())
}

/// Every line that is not as expected is told, not the first alone.
pub(crate) fn too_large(ctx: &mut Ctx) -> Outcome {
    let mut wrong = Vec::new();
    all::<F8E5M2>(ctx, &OF_E5M2, &mut wrong)?;
    all::<F8E4M3>(ctx, &OF_E4M3, &mut wrong)?;
    ensure(wrong.is_empty(), || wrong.join("; "))
}
