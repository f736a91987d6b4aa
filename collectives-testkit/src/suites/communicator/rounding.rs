//! Rounding: sums that are not exact, and what is too large.
#![forbid(unsafe_code)]

use collectives_core::buffer::Buffer;
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::no_scratch::NoScratch;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::capability::Capability::{RankOrder, RoundsOnce};
use crate::case::{Case, Failure, Outcome};
use crate::inexact::{self, Float};
use crate::planted::Planted;
use crate::rig::{Handle, Rig, hash};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "F12",
        "sums that are not exact have the same bits on every rank",
        alike,
    )
    .catches(Planted::FoldsFromItself),
    Case::new(
        "F12",
        "sums of 32 and 64 bit floats are folded in the order of ranks",
        wide_floats,
    )
    .needs(&[RankOrder])
    .catches(Planted::FoldsBackwards),
    Case::new(
        "F12",
        "8 and 16 bit floats are folded in the order of ranks and rounded once",
        narrow_floats,
    )
    .needs(&[RoundsOnce])
    .catches(Planted::FoldsBackwards),
    Case::new(
        "E12",
        "what is too large for an 8 bit float becomes infinite or NaN",
        too_large,
    )
    .needs(&[RoundsOnce])
    .catches(Planted::EightBitsSaturate),
];

/// One element, some, and more than a backend carries in one step.
const COUNTS: [usize; 3] = [1, 700, LONGEST];
const LONGEST: usize = 34_001;

/// Runs a body without scratch, and where there are windows with all of it staged.
fn both_ways(
    rig: &mut Rig<'_>,
    mut body: impl FnMut(&mut Rig<'_>, &mut Handle) -> Outcome,
) -> Outcome {
    for is_staged in [false, true] {
        let comm = rig.communicator()?;
        let scratch = match comm.capabilities().symmetric {
            Ok(_) if is_staged => rig.pool("geometric", rig.options())?,
            _ => Box::new(NoScratch),
        };
        let mut handle = rig.handle(comm, scratch);
        body(rig, &mut handle)?;
        rig.finish(handle)?;
    }
    Ok(())
}

fn alike(rig: &mut Rig<'_>) -> Outcome {
    fn sums<T: Float>(rig: &Rig<'_>, handle: &mut Handle, said: &mut String) -> Outcome {
        let mine = inexact::inputs::<T>(rig.rank(), rig.ranks(), LONGEST);
        for count in COUNTS {
            let mut tensor = Buffer::from_slice(&rig.device(), &mine[..count], rig.stream())?;
            handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
            let bits = inexact::bits(&tensor.read(rig.stream())?);
            *said += &format!("{count} {} {:x}, ", T::DTYPE, hash(bits));
        }
        Ok(())
    }
    both_ways(rig, |rig, handle| {
        let mut said = String::new();
        sums::<f64>(rig, handle, &mut said)?;
        sums::<f32>(rig, handle, &mut said)?;
        sums::<f16>(rig, handle, &mut said)?;
        sums::<bf16>(rig, handle, &mut said)?;
        sums::<F8E4M3>(rig, handle, &mut said)?;
        sums::<F8E5M2>(rig, handle, &mut said)?;
        rig.expect_alike("a sum that is not exact", &said)
    })
}

fn wide_floats(rig: &mut Rig<'_>) -> Outcome {
    both_ways(rig, |rig, handle| {
        in_rank_order::<f64>(rig, handle)?;
        in_rank_order::<f32>(rig, handle)
    })
}

fn narrow_floats(rig: &mut Rig<'_>) -> Outcome {
    both_ways(rig, |rig, handle| {
        in_rank_order::<f16>(rig, handle)?;
        in_rank_order::<bf16>(rig, handle)?;
        in_rank_order::<F8E4M3>(rig, handle)?;
        in_rank_order::<F8E5M2>(rig, handle)
    })
}

/// Sums and products of operations that reduce, against the fold in the order of ranks.
fn in_rank_order<T: Float>(rig: &Rig<'_>, handle: &mut Handle) -> Outcome {
    let (rank, ranks, stream) = (rig.rank(), rig.ranks(), rig.stream());
    let input = |rank| inexact::inputs::<T>(rank, ranks, LONGEST);
    let inputs: Vec<_> = (0..ranks).map(input).collect();
    for op in [ReduceOp::Sum, ReduceOp::Product] {
        let folded = inexact::folded(op, &inputs);
        for count in COUNTS {
            let expected = &folded[..count];
            let what = |operation: &str| format!("{operation}, a {op} of {count} {}", T::DTYPE);
            let tensor = || Buffer::from_slice(&rig.device(), &inputs[rank][..count], stream);
            let mut all = tensor()?;
            handle.all_reduce(&mut all, op, stream)?;
            expect_bits(rig, &what("all_reduce"), &all, expected)?;

            let root = Rank::new(ranks - 1);
            let mut rooted = tensor()?;
            handle.reduce(&mut rooted, op, root, stream)?;
            if rank == root.index() {
                expect_bits(rig, &what("reduce"), &rooted, expected)?;
            }

            // The last rank has what does not divide.
            let parts: Vec<_> = (0..ranks).map(|rank| part(rank, ranks, count)).collect();
            let counts: Vec<_> = parts.iter().map(ExactSizeIterator::len).collect();
            let mut mine = Buffer::<T>::zeroed(&rig.device(), counts[rank], stream)?;
            handle.reduce_scatter_v(&tensor()?, &mut mine, &counts, op, stream)?;
            let expected = &expected[parts[rank].clone()];
            expect_bits(rig, &what("reduce_scatter_v"), &mine, expected)?;
        }
    }
    Ok(())
}

fn part(rank: usize, ranks: usize, count: usize) -> std::ops::Range<usize> {
    let each = count / ranks;
    let end = if rank + 1 == ranks {
        count
    } else {
        each * (rank + 1)
    };
    each * rank..end
}

fn expect_bits<T: Float>(rig: &Rig<'_>, what: &str, found: &Buffer<T>, expected: &[T]) -> Outcome {
    let found = found.read(rig.stream())?;
    let (found, expected) = (inexact::bits(&found), inexact::bits(expected));
    match found.iter().zip(&expected).position(|(a, b)| a != b) {
        None if found.len() == expected.len() => Ok(()),
        None => Err(Failure(format!("{what}: {} elements", found.len()))),
        Some(index) => Err(Failure(format!(
            "{what}: element {index} has the bits {:#x} and should have {:#x}",
            found[index], expected[index]
        ))),
    }
}

/// What the first rank has, the second, and every other one, and what is right, by their bits.
type Reduced = (ReduceOp, [u8; 3], u8);

const OF_E5M2: [Reduced; 9] = [
    (ReduceOp::Sum, [0x7c, 0x3c, 0], 0x7c),
    (ReduceOp::Sum, [0x3c, 0xfc, 0], 0xfc),
    (ReduceOp::Sum, [0x7b, 0x7b, 0], 0x7c),
    (ReduceOp::Sum, [0xfb, 0xe8, 0], 0xfb),
    (ReduceOp::Sum, [0xfb, 0xec, 0], 0xfc),
    (ReduceOp::Product, [0x7c, 0xbc, 0x3c], 0xfc),
    (ReduceOp::Product, [0x78, 0x44, 0x3c], 0x7c),
    (ReduceOp::Max, [0x7c, 0x3c, 0x3c], 0x7c),
    (ReduceOp::Min, [0x3c, 0xfc, 0x3c], 0xfc),
];

const OF_E4M3: [Reduced; 4] = [
    (ReduceOp::Sum, [0x7e, 0x7e, 0], 0x7f),
    (ReduceOp::Sum, [0x7e, 0x58, 0], 0x7e),
    (ReduceOp::Sum, [0x7e, 0x59, 0], 0x7f),
    (ReduceOp::Product, [0x78, 0x40, 0x38], 0x7f),
];

fn too_large(rig: &mut Rig<'_>) -> Outcome {
    fn all<T: Float>(rig: &Rig<'_>, handle: &mut Handle, cases: &[Reduced]) -> Outcome {
        for &(op, inputs, expected) in cases {
            let mine = T::from_bits(inputs[rig.rank().min(2)].into());
            let mut tensor = Buffer::from_slice(&rig.device(), &[mine; 40], rig.stream())?;
            handle.all_reduce(&mut tensor, op, rig.stream())?;
            let nan = T::DTYPE == DType::F8E4M3 && expected == 0x7f;
            for element in tensor.read(rig.stream())? {
                // The sign of NaN is nothing.
                let found = match element.bits() {
                    bits if nan => bits & 0x7f,
                    bits => bits,
                };
                if found != u64::from(expected) {
                    let [first, second, others] = inputs;
                    return Err(Failure(format!(
                        "the {op} of {first:#x}, {second:#x} and {others:#x} in {} is {found:#x} and \
                         should be {expected:#x}",
                        T::DTYPE
                    )));
                }
            }
        }
        Ok(())
    }
    both_ways(rig, |rig, handle| {
        all::<F8E5M2>(rig, handle, &OF_E5M2)?;
        all::<F8E4M3>(rig, handle, &OF_E4M3)
    })
}
