//! Reductions of every kind, in worlds of every size, and the splits that make those.
#![forbid(unsafe_code)]

use collectives_core::buffer::Buffer;
use collectives_core::communicator::Communicator;
use collectives_core::no_scratch::NoScratch;
use collectives_core::rank::Rank;
use collectives_core::reduce::{ReduceOp, Scalar};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::capability::Capability::Averages;
use crate::case::{Case, Failure, Outcome};
use crate::planted::Planted;
use crate::rig::{Handle, Rig};
use crate::values::{self, Exact};
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "E12",
        "every reduction is exact for every type, in place and out of place",
        every_reduction,
    )
    .needs(&[Averages])
    .catches(Planted::AverageOnlyInPlace),
    Case::new(
        "E12",
        "ranks that one split leaves out are in the next",
        left_out,
    )
    .catches(Planted::LeftOutForGood),
];

/// What one rank of a world gives to a reduction, and what comes of all of it.
type Numbers<T> = (
    fn(usize, usize, usize) -> Vec<T>,
    fn(usize, usize) -> Vec<T>,
);

fn every_reduction(rig: &mut Rig<'_>) -> Outcome {
    let mut world = rig.communicator()?;
    // One rank alone, and the others.
    let color = u32::from(rig.rank() > 0);
    let part = world.split(Some(color), 0)?;
    let part = part.ok_or_else(|| Failure("no communicator for a color".to_owned()))?;
    for comm in [part, world] {
        let mut handle = rig.handle(comm, Box::new(NoScratch));
        for count in [1, 300] {
            reductions::<f64>(rig, &mut handle, count)?;
            reductions::<f32>(rig, &mut handle, count)?;
            reductions::<f16>(rig, &mut handle, count)?;
            reductions::<bf16>(rig, &mut handle, count)?;
            reductions::<F8E4M3>(rig, &mut handle, count)?;
            reductions::<F8E5M2>(rig, &mut handle, count)?;
            reductions::<i64>(rig, &mut handle, count)?;
            reductions::<i32>(rig, &mut handle, count)?;
            reductions::<i8>(rig, &mut handle, count)?;
            reductions::<u64>(rig, &mut handle, count)?;
            reductions::<u32>(rig, &mut handle, count)?;
            reductions::<u8>(rig, &mut handle, count)?;
        }
        let _deferred = handle.close()?;
    }
    Ok(())
}

fn reductions<T: Exact>(rig: &Rig<'_>, handle: &mut Handle, count: usize) -> Outcome {
    let sums: Numbers<T> = (
        |rank, ranks, count| values::input(rank, ranks, count, 1),
        |ranks, count| values::sum(ranks, count, 1),
    );
    let products: Numbers<T> = (
        |rank, ranks, count| values::factors(rank, ranks, count, 2),
        |ranks, count| values::product(ranks, count, 2),
    );
    let least: Numbers<T> = (sums.0, |ranks, count| values::smallest(ranks, count, 1));
    let largest: Numbers<T> = (sums.0, |ranks, count| values::largest(ranks, count, 1));
    // All ranks give the same, which is what the average is then, and not what the sum is.
    let averages: Numbers<T> = (|_, ranks, count| even(ranks, count), even::<T>);
    reduction(rig, handle, ReduceOp::Sum, sums, count)?;
    reduction(rig, handle, ReduceOp::Product, products, count)?;
    reduction(rig, handle, ReduceOp::Min, least, count)?;
    reduction(rig, handle, ReduceOp::Max, largest, count)?;
    reduction(rig, handle, ReduceOp::Average, averages, count)?;
    if handle.world_size() > 1 {
        let twice = ReduceOp::PreMulSum(Scalar::new(<T as Exact>::of(2)));
        reduction::<T>(rig, handle, twice, (halves, doubled), count)?;
    }
    Ok(())
}

/// Numbers that are exact when as many ranks as there are give the same.
fn even<T: Exact>(ranks: usize, count: usize) -> Vec<T> {
    let ranks = u32::try_from(ranks).unwrap_or(u32::MAX).max(1);
    let limit = (T::EXACT_TO / ranks).clamp(1, 1009);
    let numbers = (0..limit).cycle().map(|number| T::of(number + 1));
    numbers.take(count).collect()
}

/// Numbers whose sum is exact when it is doubled.
fn halves<T: Exact>(rank: usize, ranks: usize, count: usize) -> Vec<T> {
    values::input(rank, 2 * ranks, count, 3)
}

fn doubled<T: Exact>(ranks: usize, count: usize) -> Vec<T> {
    let half = |rank, index| values::small::<T>(rank, 2 * ranks, index, 3);
    let sum = |index| (0..ranks).map(|rank| half(rank, index)).sum::<u32>();
    (0..count).map(|index| T::of(2 * sum(index))).collect()
}

/// One reduction by every operation that reduces.
fn reduction<T: Exact>(
    rig: &Rig<'_>,
    handle: &mut Handle,
    op: ReduceOp,
    (mine, all): Numbers<T>,
    count: usize,
) -> Outcome {
    let (stream, device) = (rig.stream(), rig.device());
    let (rank, ranks) = (handle.rank().index(), handle.world_size());
    let what = |how: &str| format!("{op:?} of {count} {} on {ranks} ranks, {how}", T::DTYPE);
    let (input, expected) = (mine(rank, ranks, count), all(ranks, count));

    let mut tensor = Buffer::from_slice(&device, &input, stream)?;
    handle.all_reduce(&mut tensor, op, stream)?;
    rig.expect_all(&what("in place"), &tensor, &expected, stream)?;

    let send = Buffer::from_slice(&device, &input, stream)?;
    let mut recv = Buffer::<T>::zeroed(&device, count, stream)?;
    handle.all_reduce_into(&send, &mut recv, op, stream)?;
    rig.expect_all(&what("out of place"), &recv, &expected, stream)?;
    rig.expect_all(&what("the input"), &send, &input, stream)?;

    let root = Rank::new(count % ranks);
    let mut tensor = Buffer::from_slice(&device, &input, stream)?;
    handle.reduce(&mut tensor, op, root, stream)?;
    if rank == root.index() {
        rig.expect_all(&what("at the root"), &tensor, &expected, stream)?;
    }

    let whole = Buffer::from_slice(&device, &mine(rank, ranks, count * ranks), stream)?;
    let mut part = Buffer::<T>::zeroed(&device, count, stream)?;
    handle.reduce_scatter(&whole, &mut part, op, stream)?;
    let expected = all(ranks, count * ranks);
    let expected = &expected[rank * count..(rank + 1) * count];
    rig.expect_all(&what("scattered"), &part, expected, stream)
}

fn left_out(rig: &mut Rig<'_>) -> Outcome {
    let mut world = rig.communicator()?;
    for round in 0..rig.ranks() {
        let out = rig.rank() == round;
        let part = world.split((!out).then_some(7), 0)?;
        ensure!(part.is_none() == out, "round {round}: {part:?}");
        if let Some(mut part) = part {
            let others = rig.ranks() - 1;
            ensure_eq!(
                part.info().world_size,
                others,
                "ranks that are not left out"
            );
            let _deferred = part.shutdown()?;
        }
        // A child's own split, in which nobody is left out.
        let child = world.split(Some(3), 0)?;
        let mut child = child.ok_or_else(|| Failure("no communicator for a color".to_owned()))?;
        ensure_eq!(child.info().world_size, rig.ranks(), "ranks of a child");
        let grandchild = child.split(Some(0), 0)?;
        let grandchild = grandchild.ok_or_else(|| Failure("no child of a child".to_owned()))?;
        let mut handle = rig.handle(grandchild, Box::new(NoScratch));
        let mut tensor = rig.tensor::<i32>(10, round)?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        rig.expect_sum("a child of a child", &tensor, round, rig.stream())?;
        let _deferred = handle.close()?;
        let _deferred = child.shutdown()?;
    }
    let _deferred = world.shutdown()?;
    Ok(())
}
