//! Operations: every element of every type, and nothing else.
#![forbid(unsafe_code)]

use collectives_core::buffer::Buffer;
use collectives_core::collective::OpKind;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::case::{Case, Failure, Outcome};
use crate::planted::Planted;
use crate::rig::{Handle, Rig};
use crate::values::{self, Exact};
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "E12",
        "every operation is exact for every type and any count",
        every_operation,
    )
    .catches(Planted::LastElementLost),
    Case::new(
        "E10",
        "results go to the output and out of place leaves the input",
        in_and_out,
    )
    .catches(Planted::InputClobbered),
    Case::new(
        "D2",
        "operations of a world and of its parts do not mix",
        subgroups,
    )
    .on(4)
    .catches(Planted::ColorIgnored),
];

fn every_operation(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let mut handle = rig.handle(comm, Box::new(collectives_core::no_scratch::NoScratch));
    for count in [0, 1, 7, 1000] {
        operations::<f64>(rig, &mut handle, count)?;
        operations::<f32>(rig, &mut handle, count)?;
        operations::<f16>(rig, &mut handle, count)?;
        operations::<bf16>(rig, &mut handle, count)?;
        operations::<F8E4M3>(rig, &mut handle, count)?;
        operations::<F8E5M2>(rig, &mut handle, count)?;
        operations::<i64>(rig, &mut handle, count)?;
        operations::<i32>(rig, &mut handle, count)?;
        operations::<i8>(rig, &mut handle, count)?;
        operations::<u64>(rig, &mut handle, count)?;
        operations::<u32>(rig, &mut handle, count)?;
        operations::<u8>(rig, &mut handle, count)?;
    }
    let _deferred = handle.close()?;
    Ok(())
}

fn operations<T: Exact>(rig: &Rig<'_>, handle: &mut Handle, count: usize) -> Outcome {
    let (rank, ranks, stream) = (rig.rank(), rig.ranks(), rig.stream());
    let device = rig.device();
    let what = |op: OpKind| format!("{op} of {count} {}", T::DTYPE);
    let input = |rank: usize, round| values::input::<T>(rank, ranks, count, round);
    let zeros = |count| Buffer::<T>::zeroed(&device, count, stream);

    let mut tensor = rig.tensor::<T>(count, 1)?;
    handle.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
    rig.expect_sum(&what(OpKind::AllReduce), &tensor, 1, stream)?;

    let mut tensor = rig.tensor::<T>(count, 2)?;
    handle.all_reduce(&mut tensor, ReduceOp::Max, stream)?;
    let expected = values::largest::<T>(ranks, count, 2);
    rig.expect_all("a maximum", &tensor, &expected, stream)?;

    let root = Rank::new(count % ranks);
    let mut tensor = rig.tensor::<T>(count, 3)?;
    handle.broadcast(&mut tensor, root, stream)?;
    rig.expect_all(
        &what(OpKind::Broadcast),
        &tensor,
        &input(root.index(), 3),
        stream,
    )?;

    let mut tensor = rig.tensor::<T>(count, 4)?;
    handle.reduce(&mut tensor, ReduceOp::Sum, root, stream)?;
    if rank == root.index() {
        rig.expect_sum(&what(OpKind::Reduce), &tensor, 4, stream)?;
    }

    let all: Vec<T> = (0..ranks).flat_map(|rank| input(rank, 5)).collect();
    let mut gathered = zeros(count * ranks)?;
    handle.all_gather(&rig.tensor::<T>(count, 5)?, &mut gathered, stream)?;
    rig.expect_all(&what(OpKind::AllGather), &gathered, &all, stream)?;

    let mut gathered = zeros(count * ranks)?;
    let recv = (rank == root.index()).then_some(&mut gathered);
    handle.gather(&rig.tensor::<T>(count, 5)?, recv, root, stream)?;
    if rank == root.index() {
        rig.expect_all(&what(OpKind::Gather), &gathered, &all, stream)?;
    }

    let whole = rig.tensor::<T>(count * ranks, 6)?;
    let mut part = zeros(count)?;
    handle.reduce_scatter(&whole, &mut part, ReduceOp::Sum, stream)?;
    let expected = values::sum::<T>(ranks, count * ranks, 6);
    let mine = rank * count..(rank + 1) * count;
    rig.expect_all(
        &what(OpKind::ReduceScatter),
        &part,
        &expected[mine.clone()],
        stream,
    )?;

    let mut part = zeros(count)?;
    let send = (rank == root.index()).then_some(&whole);
    handle.scatter(send, &mut part, root, stream)?;
    let of_root = values::input::<T>(root.index(), ranks, count * ranks, 6);
    rig.expect_all(
        &what(OpKind::Scatter),
        &part,
        &of_root[mine.clone()],
        stream,
    )?;

    let mut exchanged = zeros(count * ranks)?;
    handle.all_to_all(&whole, &mut exchanged, stream)?;
    let expected: Vec<T> = (0..ranks)
        .flat_map(|rank| values::input::<T>(rank, ranks, count * ranks, 6)[mine.clone()].to_vec())
        .collect();
    rig.expect_all(&what(OpKind::AllToAll), &exchanged, &expected, stream)?;

    let counts: Vec<usize> = (0..ranks).map(|rank| count + rank).collect();
    let mine = rig.tensor::<T>(count + rank, 7)?;
    let mut gathered = zeros(counts.iter().sum())?;
    handle.all_gather_v(&mine, &mut gathered, &counts, stream)?;
    let expected: Vec<T> = (0..ranks)
        .flat_map(|rank| values::input::<T>(rank, ranks, count + rank, 7))
        .collect();
    rig.expect_all("uneven parts", &gathered, &expected, stream)?;

    let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let message = rig.tensor::<T>(count, 8)?;
    let mut received = zeros(count)?;
    handle.group(stream, |group| {
        group.send(&message, Rank::new(to))?;
        group.recv(&mut received, Rank::new(from))?;
        Ok(())
    })?;
    rig.expect_all("a ring of messages", &received, &input(from, 8), stream)?;

    let mut received = zeros(count)?;
    handle.group(stream, |group| {
        group.recv(&mut received, Rank::new(rank))?;
        group.send(&message, Rank::new(rank))?;
        Ok(())
    })?;
    rig.expect_all("a message to oneself", &received, &input(rank, 8), stream)?;
    handle.barrier(stream)?;
    Ok(())
}

fn in_and_out(rig: &mut Rig<'_>) -> Outcome {
    for policy in [None, Some("geometric")] {
        let comm = rig.communicator()?;
        let scratch = match policy {
            Some(policy) if comm.capabilities().symmetric.is_ok() => {
                rig.pool(policy, rig.options())?
            }
            _ => Box::new(collectives_core::no_scratch::NoScratch),
        };
        let mut handle = rig.handle(comm, scratch);
        for count in [1, 999, 20_000] {
            let input = rig.tensor::<i32>(count, 1)?;
            let mut output = Buffer::<i32>::zeroed(&rig.device(), count, rig.stream())?;
            handle.all_reduce_into(&input, &mut output, ReduceOp::Sum, rig.stream())?;
            rig.expect_sum("the output", &output, 1, rig.stream())?;
            rig.expect_all("the input", &input, &rig.input(count, 1), rig.stream())?;
            let mut both = rig.tensor::<i32>(count, 2)?;
            handle.all_reduce(&mut both, ReduceOp::Sum, rig.stream())?;
            rig.expect_sum("in place", &both, 2, rig.stream())?;
        }
        let _deferred = handle.close()?;
    }
    Ok(())
}

fn subgroups(rig: &mut Rig<'_>) -> Outcome {
    let mut world = rig.communicator()?;
    let color = u32::try_from(rig.rank() % 2).unwrap_or(0);
    let key = u32::MAX - u32::try_from(rig.rank()).unwrap_or(0);
    let Some(part) = world.split(Some(color), key)? else {
        return Err(Failure("no communicator for a color".to_owned()));
    };
    // Ranks are ordered by key, and the keys descend.
    let members: Vec<usize> = (0..rig.ranks())
        .rev()
        .filter(|rank| rank % 2 == rig.rank() % 2)
        .collect();
    ensure_eq!(part.info().world_size, members.len(), "ranks of the part");
    let place = members.iter().position(|&rank| rank == rig.rank());
    ensure_eq!(
        Some(part.info().rank.index()),
        place,
        "the rank in the part"
    );
    ensure!(
        world.split(None, 0)?.is_none(),
        "a communicator without a color"
    );
    let mut part = Collectives::without_scratch(part);
    let mut world = Collectives::without_scratch(world);
    for round in 0..100 {
        let mut of_world = rig.tensor::<u32>(50, round)?;
        let mut of_part = rig.tensor::<u32>(50, round)?;
        if round % 3 == 0 {
            world.all_reduce(&mut of_world, ReduceOp::Sum, rig.stream())?;
            part.all_reduce(&mut of_part, ReduceOp::Sum, rig.stream())?;
        } else {
            part.all_reduce(&mut of_part, ReduceOp::Sum, rig.stream())?;
            world.all_reduce(&mut of_world, ReduceOp::Sum, rig.stream())?;
        }
        rig.expect_sum("the world", &of_world, round, rig.stream())?;
        let sum = |index| {
            let small = |&rank: &usize| values::small::<u32>(rank, rig.ranks(), index, round);
            members.iter().map(small).sum()
        };
        let expected: Vec<u32> = (0..50).map(sum).collect();
        rig.expect_all("the part", &of_part, &expected, rig.stream())?;
    }
    let _deferred = part.close()?;
    let _deferred = world.close()?;
    Ok(())
}
