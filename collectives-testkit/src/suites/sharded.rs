//! Gathers of parameters and scatters of gradients, as sharded training makes them.
#![forbid(unsafe_code)]

use std::ops::Range;

use collectives_core::buffer::Buffer;
use collectives_core::collective::{Collective, Counts, Op, OpKind};
use collectives_core::communicator::Communicator;
use collectives_core::path::{Path, Staging};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_core::tensor::Tensor;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::capability::Capability::{Graphs, Symmetric};
use crate::case::{Case, Failure, Outcome};
use crate::planted::Planted;
use crate::rig::{Handle, Rig};
use crate::values::{self, Exact};
use crate::{ensure, ensure_eq};

/// The cases.
pub const CASES: &[Case] = &[
    Case::new(
        "E12",
        "every shard is exact for every type whichever way it goes",
        every_shard,
    )
    .needs(&[Symmetric])
    .catches(Planted::AverageDropped),
    Case::new(
        "E5",
        "shards inside a large window come from and go to their own place",
        own_place,
    )
    .needs(&[Symmetric])
    .catches(Planted::ShardOffByAGranule),
    Case::new(
        "E9",
        "the side that the kernel needs is the one that is staged",
        needed_side,
    )
    .needs(&[Symmetric])
    .catches(Planted::WrongSideStaged),
    Case::new(
        "B11",
        "captured gathers and scatters on two streams replay with new shards",
        captured,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::WindowOnSomeRanks),
];

/// Where the tensors of a call live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// In ordinary memory, and there they stay.
    Ordinary,
    /// In ordinary memory, copied through scratch.
    Staged,
    /// In windows of their own.
    Pooled,
}

/// The tensors of one layer.
#[derive(Debug)]
struct Layer<'c, T: Exact> {
    whole: Buffer<T>,
    shard: Buffer<T>,
    counts: &'c [usize],
    mine: Range<usize>,
}

impl<'c, T: Exact> Layer<'c, T> {
    fn new(
        rig: &Rig<'_>,
        handle: &mut Handle,
        memory: Memory,
        counts: &'c [usize],
        in_place: bool,
    ) -> Outcome<Self> {
        let total: usize = counts.iter().sum();
        let largest = counts.iter().copied().max().unwrap_or(0);
        let start = counts[..rig.rank()].iter().sum();
        let mine = start..start + counts[rig.rank()];
        let mut make = |count| match memory {
            Memory::Pooled => handle.symmetric_buffer::<T>(count),
            _ => Buffer::zeroed(&rig.device(), count, rig.stream()),
        };
        let whole = make(total)?;
        let shard = match in_place {
            true => whole.slice(mine.clone())?,
            false => make(largest)?.slice(..mine.len())?,
        };
        Ok(Self {
            whole,
            shard,
            counts,
            mine,
        })
    }

    /// Gathers the ranks' parts of one input, and compares.
    fn gather(&mut self, rig: &Rig<'_>, handle: &mut Handle, round: usize) -> Outcome<Path> {
        let expected = values::input::<T>(0, rig.ranks(), self.whole.len(), round);
        self.shard
            .write(&expected[self.mine.clone()], rig.stream())?;
        let Self { whole, shard, .. } = self;
        let report = handle.all_gather_v(shard, whole, self.counts, rig.stream())?;
        let what = format!("parameters of {} in {:?}", T::DTYPE, self.counts);
        rig.expect_all(&what, &self.whole, &expected, rig.stream())?;
        Ok(report.path)
    }

    /// Scatters a reduction of all ranks' inputs, and compares.
    fn scatter(
        &mut self,
        rig: &Rig<'_>,
        handle: &mut Handle,
        op: ReduceOp,
        round: usize,
    ) -> Outcome<Path> {
        let (ranks, total) = (rig.ranks(), self.whole.len());
        let (input, expected) = match op {
            // Equal inputs have an average that is exact in every type, and not their sum.
            ReduceOp::Average => {
                let same = values::input::<T>(0, ranks, total, round);
                (same.clone(), same)
            }
            ReduceOp::Max => (
                rig.input(total, round),
                values::largest(ranks, total, round),
            ),
            ReduceOp::Min => (
                rig.input(total, round),
                values::smallest(ranks, total, round),
            ),
            ReduceOp::Product => (
                values::factors(rig.rank(), ranks, total, round),
                values::product(ranks, total, round),
            ),
            _ => (rig.input(total, round), values::sum(ranks, total, round)),
        };
        self.whole.write(&input, rig.stream())?;
        let Self { whole, shard, .. } = self;
        let report = handle.reduce_scatter_v(whole, shard, self.counts, op, rig.stream())?;
        let what = format!("{} of {} in {:?}", op.name(), T::DTYPE, self.counts);
        let mine = &expected[self.mine.clone()];
        rig.expect_all(&what, &self.shard, mine, rig.stream())?;
        Ok(report.path)
    }
}

fn every_shard(rig: &mut Rig<'_>) -> Outcome {
    for memory in [Memory::Ordinary, Memory::Staged, Memory::Pooled] {
        let mut handle = rig.collectives("geometric")?;
        handle.set_staging(match memory {
            Memory::Ordinary => Staging::Never,
            Memory::Staged => Staging::Forced,
            Memory::Pooled => Staging::Auto,
        });
        for in_place in [false, true] {
            shards::<f64>(rig, &mut handle, memory, in_place)?;
            shards::<f32>(rig, &mut handle, memory, in_place)?;
            shards::<f16>(rig, &mut handle, memory, in_place)?;
            shards::<bf16>(rig, &mut handle, memory, in_place)?;
            shards::<F8E4M3>(rig, &mut handle, memory, in_place)?;
            shards::<F8E5M2>(rig, &mut handle, memory, in_place)?;
            shards::<i64>(rig, &mut handle, memory, in_place)?;
            shards::<i32>(rig, &mut handle, memory, in_place)?;
            shards::<i8>(rig, &mut handle, memory, in_place)?;
            shards::<u64>(rig, &mut handle, memory, in_place)?;
            shards::<u32>(rig, &mut handle, memory, in_place)?;
            shards::<u8>(rig, &mut handle, memory, in_place)?;
        }
        let trimmed = handle.trim()?;
        ensure_eq!(trimmed.held_bytes, 0, "bytes held after {memory:?}");
        let _deferred = handle.close()?;
    }
    Ok(())
}

fn shards<T: Exact>(rig: &Rig<'_>, handle: &mut Handle, memory: Memory, in_place: bool) -> Outcome {
    let ranks = rig.ranks();
    let even = vec![70; ranks];
    // The last but one is short and the last is empty, as where a layer has few parameters.
    let mut uneven = vec![129; ranks];
    uneven[ranks - 1] = 0;
    uneven[ranks - 2] = 31;
    for counts in [even, uneven] {
        let mut layer = Layer::<T>::new(rig, handle, memory, &counts, in_place)?;
        layer.gather(rig, handle, 1)?;
        for op in [
            ReduceOp::Sum,
            ReduceOp::Max,
            ReduceOp::Average,
            ReduceOp::Min,
            ReduceOp::Product,
        ] {
            layer.scatter(rig, handle, op, 2)?;
        }
    }
    Ok(())
}

fn own_place(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    handle.set_staging(Staging::Auto);
    let (rank, ranks, stream) = (rig.rank(), rig.ranks(), rig.stream());
    let count = rig.granule() / 4;
    let mut many = handle.symmetric_buffer::<u32>(3 * count)?;
    let mut shard = many.slice(count..2 * count)?;
    let whole = handle.symmetric_buffer::<u32>(ranks * count)?;

    many.write(&rig.input(3 * count, 1), stream)?;
    handle.all_gather(&shard, &mut whole.clone(), stream)?;
    let of = |rank| values::input::<u32>(rank, ranks, 3 * count, 1)[count..2 * count].to_vec();
    let expected: Vec<_> = (0..ranks).flat_map(of).collect();
    rig.expect_all("what was gathered", &whole, &expected, stream)?;

    whole.clone().write(&rig.input(ranks * count, 2), stream)?;
    handle.reduce_scatter(&whole, &mut shard, ReduceOp::Sum, stream)?;
    let mut expected = rig.input::<u32>(3 * count, 1);
    let sum = values::sum::<u32>(ranks, ranks * count, 2);
    expected[count..2 * count].copy_from_slice(&sum[rank * count..(rank + 1) * count]);
    rig.expect_all("all that surrounds the shard", &many, &expected, stream)?;
    drop((many, shard, whole));
    let _deferred = handle.close()?;
    Ok(())
}

fn needed_side(rig: &mut Rig<'_>) -> Outcome {
    let counts: Vec<_> = (0..rig.ranks()).map(|rank| 1000 - rank).collect();
    for memory in [Memory::Staged, Memory::Pooled] {
        let mut handle = rig.collectives("geometric")?;
        if memory == Memory::Pooled {
            handle.set_staging(Staging::Auto);
        }
        let mut layer = Layer::<f32>::new(rig, &mut handle, memory, &counts, false)?;
        for op in [Op::AllGather, Op::ReduceScatter(ReduceOp::Sum)] {
            rig.witness().forget();
            let path = match op {
                Op::AllGather => layer.gather(rig, &mut handle, 1)?,
                _ => layer.scatter(rig, &mut handle, ReduceOp::Sum, 1)?,
            };
            let (send, recv) = needs(rig, &handle, op, &counts)?;
            let seen = rig.witness().moved();
            let [one] = seen.as_slice() else {
                return Err(Failure(format!("{} operations for one call", seen.len())));
            };
            let missing =
                (send && one.send.window.is_none()) || (recv && one.recv.window.is_none());
            ensure!(!missing, "{}: what is needed lies in no window", one.kind);
            let given = match one.kind {
                OpKind::AllGather => (&layer.shard, &layer.whole),
                _ => (&layer.whole, &layer.shard),
            };
            let as_given = (
                one.send.same_range(given.0.operand()),
                one.recv.same_range(given.1.operand()),
            );
            let expected = match memory {
                Memory::Pooled => (Path::ZeroCopy, (true, true)),
                // What is not needed is not copied.
                _ => (Path::Staged, (!send, !recv)),
            };
            ensure_eq!(
                (path, as_given),
                expected,
                "path and operands of {}",
                one.kind
            );
        }
        drop(layer);
        let _deferred = handle.close()?;
    }
    Ok(())
}

/// The sides that the backend's kernel for a call of `f32` needs in windows.
fn needs(rig: &Rig<'_>, handle: &Handle, op: Op<'_>, counts: &[usize]) -> Outcome<(bool, bool)> {
    let call = Collective {
        op,
        dtype: collectives_core::dtype::DType::F32,
        send: collectives_core::addr::Operand::EMPTY,
        recv: collectives_core::addr::Operand::EMPTY,
        counts: Counts::Uneven(counts),
    };
    let rank = Rank::new(rig.rank());
    let table = &handle.communicator().capabilities().paths;
    match table.rule(&call, rank, rig.ranks()) {
        Ok(rule) => Ok((rule.needs.send(), rule.needs.recv())),
        Err(reason) => Err(Failure(format!("{}: {reason}", call.kind()))),
    }
}

fn captured(rig: &mut Rig<'_>) -> Outcome {
    let counts: Vec<_> = (0..rig.ranks()).map(|rank| 400 + rank).collect();
    for memory in [Memory::Staged, Memory::Pooled] {
        let mut handle = rig.collectives("geometric")?;
        if memory == Memory::Pooled {
            handle.set_staging(Staging::Auto);
        }
        let bytes = 4 * counts.iter().sum::<usize>();
        let _plan = handle.reserve(&[Request::new(2 * bytes)])?;
        let mut next = Layer::<u32>::new(rig, &mut handle, memory, &counts, false)?;
        let mut previous = Layer::<u32>::new(rig, &mut handle, memory, &counts, true)?;
        let mut branch = rig.device().create_stream()?;
        let mut last = Layer::<u32>::new(rig, &mut handle, memory, &counts, false)?;
        // The gather of the next layer beside the scatter of the previous, and, on the same branch
        // again, one of what was gathered then.
        let (graph, ()) = rig.capture(|capture| {
            capture.branch(&mut branch, |branch| {
                let Layer { shard, whole, .. } = &mut next;
                handle.all_gather_v(shard, whole, &counts, branch)?;
                let Layer { shard, whole, .. } = &mut previous;
                let trunk = capture.stream();
                handle.reduce_scatter_v(whole, shard, &counts, ReduceOp::Sum, trunk)?;
                Ok(())
            })?;
            capture.branch(&mut branch, |branch| {
                let (whole, shard) = (&next.whole, &mut last.shard);
                handle.reduce_scatter_v(whole, shard, &counts, ReduceOp::Max, branch)?;
                Ok(())
            })
        })?;
        let mut graph = graph.instantiate()?;
        let total = next.whole.len();
        for round in 1..=3 {
            let stream = rig.stream();
            let parameters = values::input::<u32>(0, rig.ranks(), total, round);
            next.shard.write(&parameters[next.mine.clone()], stream)?;
            previous
                .whole
                .write(&rig.input(total, round + 10), stream)?;
            graph.launch(&*rig.device(), stream)?;
            rig.expect_all("replayed parameters", &next.whole, &parameters, stream)?;
            let sum = values::sum::<u32>(rig.ranks(), total, round + 10);
            let mine = &sum[previous.mine.clone()];
            rig.expect_all("replayed gradients", &previous.shard, mine, stream)?;
            // All ranks gathered the same, so that is the largest of it.
            let mine = &parameters[last.mine.clone()];
            rig.expect_all("what the branch made next", &last.shard, mine, stream)?;
        }
        drop((graph, next, previous, last));
        rig.finish(handle)?;
    }
    Ok(())
}
