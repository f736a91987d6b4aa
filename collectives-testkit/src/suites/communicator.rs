//! Operations: every element, every type, every path, and what is reported of it.
#![forbid(unsafe_code)]

use collectives_core::buffer::Buffer;
use collectives_core::collective::{Collective, Counts, Op, OpKind};
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::ErrorKind;
use collectives_core::layered::Layered;
use collectives_core::path::{Path, Reason, Staging};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::tensor::Tensor;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::capability::Capability::Symmetric;
use crate::case::{Case, Failure, Outcome, refused};
use crate::decorators::{NullWindows, WithoutSymmetric};
use crate::planted::Planted;
use crate::rig::{Handle, Rig};
use crate::values::{self, Exact};
use crate::{ensure, ensure_eq};

/// The cases.
pub const CASES: &[Case] = &[
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
        "F12",
        "staged and direct calls of every policy are equal",
        policies_agree,
    )
    .needs(&[Symmetric])
    .catches(Planted::StagedSumIsMaximum),
    Case::new(
        "E9",
        "a staged operation reads the lease and not the tensor",
        reads_the_lease,
    )
    .needs(&[Symmetric])
    .catches(Planted::OriginalPointer),
    Case::new("E17", "the path reported is the path taken", paths)
        .needs(&[Symmetric])
        .catches(Planted::WindowsStripped),
    Case::new(
        "D2",
        "operations of a world and of its parts do not mix",
        subgroups,
    )
    .on(4)
    .catches(Planted::ColorIgnored),
    Case::new(
        "F6",
        "without symmetric memory every call takes the ordinary path",
        without,
    )
    .catches(Planted::LastElementLost),
    Case::new(
        "F6",
        "registrations that give no window send calls the ordinary way",
        null_windows,
    )
    .needs(&[Symmetric])
    .catches(Planted::FallbackUndeclared),
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

fn policies_agree(rig: &mut Rig<'_>) -> Outcome {
    let mut results = Vec::new();
    for policy in ["exact", "replace", "geometric", "geometric-class", "none"] {
        let comm = rig.communicator()?;
        let scratch = match policy {
            "none" => Box::new(collectives_core::no_scratch::NoScratch),
            policy => rig.pool(policy, rig.options())?,
        };
        let mut handle = rig.handle(comm, scratch);
        handle.set_staging(match policy {
            "none" => Staging::Never,
            _ => Staging::Forced,
        });
        // Inexact on purpose: one order of additions everywhere.
        let values: Vec<f32> = (0..3001_u16)
            .map(|index| (f32::from(index) + 0.1) / (f32::from(index % 7) + 1.7))
            .collect();
        let mut found = Vec::new();
        for count in [1, 500, 3001] {
            let mut tensor = Buffer::from_slice(&rig.device(), &values[..count], rig.stream())?;
            handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
            let bits = tensor.read(rig.stream())?;
            found.extend(bits.into_iter().map(f32::to_bits));
        }
        results.push((policy, found));
        let _deferred = handle.close()?;
    }
    let (_, first) = &results[0];
    for (policy, found) in &results {
        ensure!(found == first, "the bits of `{policy}` differ");
    }
    let hash = crate::rig::hash(first);
    rig.expect_alike("the bits", &hash.to_string())
}

fn reads_the_lease(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    rig.eager(&mut handle, 3 * rig.granule(), rig.stream())?;
    for bytes in [4, 4000, 2 * rig.granule()] {
        rig.witness().forget();
        rig.eager(&mut handle, bytes, rig.stream())?;
        let seen = rig.witness().seen();
        let [op] = seen.as_slice() else {
            return Err(Failure(format!("{} operations for one call", seen.len())));
        };
        for side in [op.send, op.recv] {
            ensure_eq!(side.bytes, bytes, "bytes of the operand");
            let found = handle_window(&handle, side);
            ensure_eq!(
                side.window,
                found,
                "the window the operand names, and the one it is in"
            );
            ensure!(side.window.is_some(), "a staged operand lies in no window");
        }
    }
    let _deferred = handle.close()?;
    Ok(())
}

fn handle_window(
    handle: &Handle,
    side: collectives_core::addr::Operand,
) -> Option<collectives_core::addr::WindowSlice> {
    use collectives_core::communicator::Communicator;
    handle.communicator().window_of(side.addr, side.bytes)
}

fn paths(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    handle.set_staging(Staging::Auto);
    let count = 4096;
    for staging in [Staging::Auto, Staging::Forced, Staging::Never] {
        handle.set_staging(staging);
        let mut ordinary = rig.tensor::<i32>(count, 1)?;
        let mut window = handle.symmetric_buffer::<i32>(count)?;
        window.write(&rig.input(count, 1), rig.stream())?;
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Average] {
            path_of(rig, &mut handle, &mut ordinary, op)?;
            path_of(rig, &mut handle, &mut window, op)?;
        }
        let mut slice = window.slice(8..1000)?;
        path_of(rig, &mut handle, &mut slice, ReduceOp::Sum)?;
        drop((slice, window));
        let _trimmed = handle.trim()?;
    }
    let _deferred = handle.close()?;
    Ok(())
}

/// Runs an all-reduce and compares the report with what reached the backend and with its table.
fn path_of(rig: &Rig<'_>, handle: &mut Handle, tensor: &mut Buffer<i32>, op: ReduceOp) -> Outcome {
    use collectives_core::communicator::Communicator;
    rig.witness().forget();
    let report = handle.all_reduce(tensor, op, rig.stream())?;
    let seen = rig.witness().seen();
    let [reached] = seen.as_slice() else {
        return Err(Failure(format!("{} operations for one call", seen.len())));
    };
    let in_windows = reached.send.window.is_some() && reached.recv.window.is_some();
    let own = reached.recv.same_range(tensor.operand());
    let taken = match (in_windows, own) {
        (true, true) => [Path::ZeroCopy, Path::ZeroCopy],
        (true, false) => [Path::Staged, Path::Staged],
        (false, _) => [Path::Direct, Path::Fallback],
    };
    // A buffer in a window keeps it also on the ordinary path.
    let ordinary = matches!(report.path, Path::Direct | Path::Fallback);
    let agrees = taken.contains(&report.path) || ordinary && own;
    ensure!(
        agrees,
        "reported {report:?}, reached the backend: {reached:?}"
    );
    let call = Collective {
        op: Op::AllReduce(op),
        dtype: DType::I32,
        send: tensor.operand(),
        recv: tensor.operand(),
        counts: Counts::Even(tensor.len()),
    };
    let table = &handle.communicator().capabilities().paths;
    let ruled = table
        .rule(&call, Rank::new(rig.rank()), rig.ranks())
        .is_ok();
    let symmetric = matches!(report.path, Path::ZeroCopy | Path::Staged);
    ensure!(
        ruled || !symmetric,
        "a symmetric path without a kernel: {report:?}"
    );
    ensure!(
        !ruled || tensor.window().is_none() || symmetric,
        "a buffer in a window took the ordinary path: {report:?}"
    );
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

fn without(rig: &mut Rig<'_>) -> Outcome {
    let none = WithoutSymmetric::around(rig.communicator()?);
    ordinary(rig, Box::new(none))
}

/// The capability is there, and what it promises turns out not to work.
fn null_windows(rig: &mut Rig<'_>) -> Outcome {
    let broken = Layered::new(NullWindows, rig.communicator()?);
    ordinary(rig, Box::new(broken))
}

/// Every call takes the ordinary path, for a reason that says so, and is right.
fn ordinary(rig: &mut Rig<'_>, comm: Box<dyn Communicator>) -> Outcome {
    let scratch = rig.pool("geometric", rig.options())?;
    let mut handle = rig.handle(comm, scratch);
    for round in 0..3 {
        let mut tensor = rig.tensor::<i32>(5000, round)?;
        let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        let ordinary = matches!(report.path, Path::Fallback | Path::Direct);
        ensure!(ordinary, "the path without symmetric memory: {report:?}");
        ensure!(
            matches!(
                report.reason,
                Reason::NoSymmetricMemory | Reason::NoKernelForOperation | Reason::NoKernelForType
            ),
            "the reason: {report:?}"
        );
        rig.expect_sum("the ordinary path", &tensor, round, rig.stream())?;
    }
    let error = refused("a symmetric buffer", handle.symmetric_buffer::<u8>(1))?;
    let typed = matches!(
        error.kind(),
        ErrorKind::Unsupported(_) | ErrorKind::OutOfMemory { .. }
    );
    ensure!(typed, "a symmetric buffer: {error}");
    rig.finish(handle)
}
