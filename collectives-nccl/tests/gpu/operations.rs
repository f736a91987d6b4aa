//! Every operation, on every element type, against the oracle.

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::rank::Rank;
use collectives_core::reduce::{ReduceOp, Scalar};
use collectives_nccl::communicator::NcclCommunicator;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::rank::Ctx;
use crate::values::{Small, input, inputs, same, sums as sums_of};
use crate::{Outcome, Said, ensure};

type Plain = Collectives<NcclCommunicator>;

fn handle(ctx: &mut Ctx) -> Result<Plain, String> {
    Ok(Collectives::without_scratch(ctx.connect()?))
}

fn finish(handle: Plain) -> Outcome {
    let left = handle.close().said("close")?;
    ensure(!left.communicator, || format!("{left:?}"))
}

macro_rules! for_each_type {
    ($call:ident($($arg:expr),*)) => {{
        $call::<f64>($($arg),*)?; $call::<f32>($($arg),*)?; $call::<f16>($($arg),*)?;
        $call::<bf16>($($arg),*)?; $call::<F8E4M3>($($arg),*)?; $call::<F8E5M2>($($arg),*)?;
        $call::<i64>($($arg),*)?; $call::<i32>($($arg),*)?; $call::<i8>($($arg),*)?;
        $call::<u64>($($arg),*)?; $call::<u32>($($arg),*)?; $call::<u8>($($arg),*)?;
    }};
}

fn put<T: Small>(ctx: &Ctx, values: &[T]) -> Result<Buffer<T>, String> {
    Buffer::from_slice(&ctx.device, values, &ctx.stream).said("from_slice")
}

pub(crate) fn sums(ctx: &mut Ctx) -> Outcome {
    fn one<T: Small>(ctx: &Ctx, handle: &mut Plain) -> Outcome {
        for count in [1, 5, 1000, 70_000] {
            let mut tensor = put(ctx, &inputs::<T>(ctx.rank, count, 0))?;
            handle
                .all_reduce(&mut tensor, ReduceOp::Sum, &ctx.stream)
                .said(&format!("{} x {count}", T::DTYPE))?;
            let expected = sums_of::<T>(ctx.ranks, 0, count, 0);
            let found = tensor.read(&ctx.stream).said("read")?;
            same(&format!("{} x {count}", T::DTYPE), &found, &expected)?;
        }
        Ok(())
    }
    let mut handle = handle(ctx)?;
    for_each_type!(one(ctx, &mut handle));
    finish(handle)
}

pub(crate) fn reductions(ctx: &mut Ctx) -> Outcome {
    fn one<T: Small>(ctx: &Ctx, handle: &mut Plain) -> Outcome {
        let scalar = ReduceOp::PreMulSum(Scalar::new(T::of(if ctx.rank == 0 { 2 } else { 1 })));
        for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Product, scalar] {
            let what = format!("{op} of {}", T::DTYPE);
            let count = 333;
            let mut tensor = put(ctx, &inputs::<T>(ctx.rank, count, 1))?;
            let small_sum = T::MOST > 1 || ctx.ranks < 8;
            if matches!(op, ReduceOp::PreMulSum(_)) && !small_sum {
                continue;
            }
            if matches!(op, ReduceOp::PreMulSum(_)) && ctx.ranks == 1 && T::MOST == 1 {
                let refused = handle.all_reduce(&mut tensor, op, &ctx.stream).err();
                let typed = refused.is_some_and(|error| {
                    matches!(
                        error.kind(),
                        collectives_core::error::ErrorKind::Unsupported(_)
                    )
                });
                ensure(typed, || format!("{what} was not refused"))?;
                continue;
            }
            handle
                .all_reduce(&mut tensor, op, &ctx.stream)
                .said(&what)?;
            let fold = |index: usize| -> i32 {
                let all = (0..ctx.ranks).map(|rank| input(T::MOST, rank, index, 1));
                match op {
                    ReduceOp::Min => all.min().unwrap_or(0),
                    ReduceOp::Max => all.max().unwrap_or(0),
                    ReduceOp::Product => all.map(|value| value % 3).product(),
                    _ => all
                        .enumerate()
                        .map(|(rank, value)| if rank == 0 { 2 * value } else { value })
                        .sum(),
                }
            };
            if matches!(op, ReduceOp::Product) {
                // Threes would leave what some types hold exactly.
                let values: Vec<_> = (0..count)
                    .map(|index| T::of(input(T::MOST, ctx.rank, index, 1) % 3))
                    .collect();
                let powers = ctx.ranks < 7 || !matches!(T::DTYPE.size(), 1);
                if !powers {
                    continue;
                }
                tensor = put(ctx, &values)?;
                handle
                    .all_reduce(&mut tensor, op, &ctx.stream)
                    .said(&what)?;
            }
            let expected: Vec<_> = (0..count).map(|index| T::of(fold(index))).collect();
            let found = tensor.read(&ctx.stream).said("read")?;
            same(&what, &found, &expected)?;
        }
        Ok(())
    }
    let mut handle = handle(ctx)?;
    for_each_type!(one(ctx, &mut handle));
    finish(handle)
}

pub(crate) fn movement(ctx: &mut Ctx) -> Outcome {
    fn one<T: Small>(ctx: &Ctx, handle: &mut Plain) -> Outcome {
        let (count, n, me) = (129, ctx.ranks, ctx.rank);
        let stream = &ctx.stream;
        let what = |op: &str| format!("{op} of {}", T::DTYPE);
        let mine = inputs::<T>(me, count, 2);
        let whole: Vec<T> = (0..n)
            .flat_map(|rank| inputs::<T>(rank, count, 2))
            .collect();

        let send = put(ctx, &mine)?;
        let mut recv = Buffer::<T>::zeroed(&ctx.device, count * n, stream).said("zeroed")?;
        handle
            .all_gather(&send, &mut recv, stream)
            .said(&what("all_gather"))?;
        same(
            &what("all_gather"),
            &recv.read(stream).said("read")?,
            &whole,
        )?;

        let send = put(ctx, &inputs::<T>(me, count * n, 3))?;
        let mut part = Buffer::<T>::zeroed(&ctx.device, count, stream).said("zeroed")?;
        handle
            .reduce_scatter(&send, &mut part, ReduceOp::Sum, stream)
            .said(&what("reduce_scatter"))?;
        let expected = sums_of::<T>(n, me * count, count, 3);
        same(
            &what("reduce_scatter"),
            &part.read(stream).said("read")?,
            &expected,
        )?;

        let root = Rank::new(n - 1);
        let mut tensor = put(ctx, &mine)?;
        handle
            .broadcast(&mut tensor, root, stream)
            .said(&what("broadcast"))?;
        let expected = inputs::<T>(n - 1, count, 2);
        same(
            &what("broadcast"),
            &tensor.read(stream).said("read")?,
            &expected,
        )?;

        let mut tensor = put(ctx, &mine)?;
        handle
            .reduce(&mut tensor, ReduceOp::Sum, root, stream)
            .said(&what("reduce"))?;
        if me == n - 1 {
            let expected = sums_of::<T>(n, 0, count, 2);
            same(
                &what("reduce"),
                &tensor.read(stream).said("read")?,
                &expected,
            )?;
        }

        let send = put(ctx, &inputs::<T>(me, count * n, 4))?;
        let mut recv = Buffer::<T>::zeroed(&ctx.device, count * n, stream).said("zeroed")?;
        handle
            .all_to_all(&send, &mut recv, stream)
            .said(&what("all_to_all"))?;
        let expected: Vec<T> = (0..n)
            .flat_map(|rank| {
                let all = inputs::<T>(rank, count * n, 4);
                all[me * count..(me + 1) * count].to_vec()
            })
            .collect();
        same(
            &what("all_to_all"),
            &recv.read(stream).said("read")?,
            &expected,
        )?;

        let root = Rank::new(0);
        let send = put(ctx, &mine)?;
        let mut all = Buffer::<T>::zeroed(&ctx.device, count * n, stream).said("zeroed")?;
        let recv = (me == 0).then_some(&mut all);
        handle
            .gather(&send, recv, root, stream)
            .said(&what("gather"))?;
        if me == 0 {
            same(&what("gather"), &all.read(stream).said("read")?, &whole)?;
        }

        let source = put(ctx, &whole)?;
        let mut recv = Buffer::<T>::zeroed(&ctx.device, count, stream).said("zeroed")?;
        let send = (me == 0).then_some(&source);
        handle
            .scatter(send, &mut recv, root, stream)
            .said(&what("scatter"))?;
        same(&what("scatter"), &recv.read(stream).said("read")?, &mine)?;
        handle.barrier(stream).said("barrier").map(drop)
    }
    let mut handle = handle(ctx)?;
    for_each_type!(one(ctx, &mut handle));
    finish(handle)
}

pub(crate) fn uneven(ctx: &mut Ctx) -> Outcome {
    let (n, me) = (ctx.ranks, ctx.rank);
    let mut handle = handle(ctx)?;
    let stream = &ctx.stream;
    // The second rank has nothing.
    let counts: Vec<_> = (0..n)
        .map(|rank| if rank == 1 { 0 } else { 40 + 3 * rank })
        .collect();
    let total: usize = counts.iter().sum();
    let before: usize = counts[..me].iter().sum();

    let send = put(ctx, &inputs::<f32>(me, counts[me], 5))?;
    let mut recv = Buffer::<f32>::zeroed(&ctx.device, total, stream).said("zeroed")?;
    handle
        .all_gather_v(&send, &mut recv, &counts, stream)
        .said("all_gather_v")?;
    let expected: Vec<_> = (0..n)
        .flat_map(|rank| inputs::<f32>(rank, counts[rank], 5))
        .collect();
    same("all_gather_v", &recv.read(stream).said("read")?, &expected)?;

    let send = put(ctx, &inputs::<i32>(me, total, 6))?;
    let mut recv = Buffer::<i32>::zeroed(&ctx.device, counts[me], stream).said("zeroed")?;
    handle
        .reduce_scatter_v(&send, &mut recv, &counts, ReduceOp::Sum, stream)
        .said("reduce_scatter_v")?;
    let expected = sums_of::<i32>(n, before, counts[me], 6);
    same(
        "reduce_scatter_v",
        &recv.read(stream).said("read")?,
        &expected,
    )?;

    // Rank r sends r + p elements to rank p.
    let sends: Vec<_> = (0..n).map(|peer| me + peer).collect();
    let send = put(ctx, &inputs::<u8>(me, sends.iter().sum(), 7))?;
    let mut recv = Buffer::<u8>::zeroed(&ctx.device, sends.iter().sum(), stream).said("zeroed")?;
    handle
        .all_to_all_v(&send, &sends, &mut recv, &sends, stream)
        .said("all_to_all_v")?;
    let expected: Vec<_> = (0..n)
        .flat_map(|rank| {
            let all = inputs::<u8>(rank, (0..n).map(|peer| rank + peer).sum(), 7);
            let start: usize = (0..me).map(|peer| rank + peer).sum();
            all[start..start + rank + me].to_vec()
        })
        .collect();
    same("all_to_all_v", &recv.read(stream).said("read")?, &expected)?;
    finish(handle)
}

pub(crate) fn groups(ctx: &mut Ctx) -> Outcome {
    let (n, me) = (ctx.ranks, ctx.rank);
    let mut handle = handle(ctx)?;
    let stream = &ctx.stream;
    let count = 600;
    let next = Rank::new((me + 1) % n);
    let last = Rank::new((me + n - 1) % n);
    let send = put(ctx, &inputs::<f32>(me, count, 8))?;
    let mut recv = Buffer::<f32>::zeroed(&ctx.device, count, stream).said("zeroed")?;
    let mut sum = put(ctx, &inputs::<bf16>(me, count, 9))?;
    let reports = handle
        .group(stream, |group| {
            group.send(&send, next)?;
            group.recv(&mut recv, last)?;
            group.all_reduce(&mut sum, ReduceOp::Sum)?;
            Ok(())
        })
        .said("group")?;
    let _ = reports;
    let expected = inputs::<f32>(last.index(), count, 8);
    same("the message", &recv.read(stream).said("read")?, &expected)?;
    let expected = sums_of::<bf16>(n, 0, count, 9);
    same("the sum", &sum.read(stream).said("read")?, &expected)?;
    let alone = handle.send(&send, Rank::new(me), stream);
    ensure(alone.is_err(), || {
        "a message to oneself was enqueued".to_owned()
    })?;
    finish(handle)
}

pub(crate) fn averages(ctx: &mut Ctx) -> Outcome {
    fn one<T: Small>(ctx: &Ctx, handle: &mut Plain) -> Outcome {
        for count in [1, 3, 4099] {
            // Rank 0 adds the number of ranks, so the mean is one more than what all have.
            let extra = if ctx.rank == 0 && T::MOST > 1 {
                ctx.ranks
            } else {
                0
            };
            let value = |index: usize, extra: usize| {
                T::of(input(T::MOST, 0, index, 10) + i32::try_from(extra).unwrap_or(0))
            };
            let values: Vec<_> = (0..count).map(|index| value(index, extra)).collect();
            let mut tensor = put(ctx, &values)?;
            let what = format!("average of {} x {count}", T::DTYPE);
            handle
                .all_reduce(&mut tensor, ReduceOp::Average, &ctx.stream)
                .said(&what)?;
            let more = usize::from(T::MOST > 1);
            let expected: Vec<_> = (0..count).map(|index| value(index, more)).collect();
            same(&what, &tensor.read(&ctx.stream).said("read")?, &expected)?;
        }
        Ok(())
    }
    let mut handle = handle(ctx)?;
    for_each_type!(one(ctx, &mut handle));
    finish(handle)
}

pub(crate) fn host_slices(ctx: &mut Ctx) -> Outcome {
    let mut handle = handle(ctx)?;
    let mut values = inputs::<f32>(ctx.rank, 1234, 11);
    handle
        .scope(|scope| scope.all_reduce(&mut values, ReduceOp::Sum).map(drop))
        .said("scope")?;
    same(
        "the slice",
        &values,
        &sums_of::<f32>(ctx.ranks, 0, 1234, 11),
    )?;
    finish(handle)
}

pub(crate) fn split(ctx: &mut Ctx) -> Outcome {
    let mut parent = ctx.connect()?;
    let color = u32::try_from(ctx.rank % 2).unwrap_or(0);
    let key = u32::try_from(ctx.ranks - ctx.rank).unwrap_or(0);
    let child = parent.split(Some(color), key).said("split")?;
    let child = child.ok_or("no child")?;
    let members: Vec<_> = (0..ctx.ranks)
        .rev()
        .filter(|rank| rank % 2 == ctx.rank % 2)
        .collect();
    let position = members.iter().position(|&rank| rank == ctx.rank);
    ensure(Some(child.info().rank.index()) == position, || {
        format!("rank {} became {}", ctx.rank, child.info().rank)
    })?;
    let mut handle = Collectives::without_scratch(child);
    let mut tensor = put(ctx, &[1.0_f32; 64])?;
    handle
        .all_reduce(&mut tensor, ReduceOp::Sum, &ctx.stream)
        .said("all_reduce")?;
    let expected = vec![f32::from(u8::try_from(members.len()).unwrap_or(0)); 64];
    same(
        "the child's sum",
        &tensor.read(&ctx.stream).said("read")?,
        &expected,
    )?;
    let _ = handle.close().said("close")?;
    let _ = parent.shutdown().said("shutdown")?;
    Ok(())
}
