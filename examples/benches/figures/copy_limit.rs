//! F: the loads and stores of an all-reduce, without any synchronisation between ranks.

use std::thread;
use std::time::Instant;

use collectives_core::error::Result;

use crate::case::{Case, Shape};
use crate::gate::Gate;
use crate::sample::Sample;

/// Elements that are loaded, added and stored together.
const LANES: usize = 16;

type Chunk = [f32; LANES];

/// One rank's buffer, of which every rank reads and writes its own share.
#[derive(Clone, Copy)]
struct Shared(*mut Chunk);

// SAFETY: Threads write disjoint shares between two passes of the gate, and their own buffer
// between two others.
unsafe impl Send for Shared {}
// SAFETY: As above.
unsafe impl Sync for Shared {}

/// Nanoseconds of one all-reduce's loads and stores, or `None` where that says nothing.
pub(crate) fn measure(case: &Case, shape: Shape) -> Result<Option<f64>> {
    Ok(match case.ranks {
        _ if case.bytes < 64 << 10 => None,
        2 => Some(ranks::<2>(case, shape)?),
        4 => Some(ranks::<4>(case, shape)?),
        _ => None,
    })
}

fn ranks<const N: usize>(case: &Case, shape: Shape) -> Result<f64> {
    let chunks = case.bytes / size_of::<Chunk>();
    let mut buffers: Vec<Vec<Chunk>> = (0..N)
        .map(|_| vec![[0.0; LANES]; chunks * shape.operations])
        .collect();
    let buffers: Vec<_> = buffers
        .iter_mut()
        .map(|buffer| Shared(buffer.as_mut_ptr()))
        .collect();
    let gate = Gate::new(N);
    let times = thread::scope(|scope| {
        let (gate, buffers) = (&gate, &buffers);
        let rank_main = |rank| move || rank_main::<N>(rank, buffers, chunks, shape, gate);
        let ranks: Vec<_> = (0..N).map(|rank| scope.spawn(rank_main(rank))).collect();
        let join = |rank: thread::ScopedJoinHandle<'_, Result<Vec<f64>>>| {
            rank.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        ranks.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    Ok(slowest_rank(&times).typical())
}

/// For each batch, the time of the rank that took longest.
pub(crate) fn slowest_rank(ranks: &[Vec<f64>]) -> Sample {
    let batches = ranks.iter().map(Vec::len).min().unwrap_or(0);
    let slowest = |batch| {
        ranks
            .iter()
            .map(|times: &Vec<f64>| times[batch])
            .fold(0.0, f64::max)
    };
    Sample::new((0..batches).map(slowest).collect())
}

fn rank_main<const N: usize>(
    rank: usize,
    buffers: &[Shared],
    chunks: usize,
    shape: Shape,
    gate: &Gate,
) -> Result<Vec<f64>> {
    let share = chunks.div_ceil(N);
    let begin = (share * rank).min(chunks);
    let end = (begin + share).min(chunks);
    let mut times = Vec::with_capacity(shape.batches);
    for batch in 0..shape.warm_up + shape.batches {
        // SAFETY: Nobody else touches this rank's buffer until all have passed the gate.
        let own =
            unsafe { std::slice::from_raw_parts_mut(buffers[rank].0, chunks * shape.operations) };
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        own.fill([(batch % 3 + rank) as f32; LANES]);
        gate.pass()?;
        let begun = Instant::now();
        for operation in 0..shape.operations {
            let start = operation * chunks + begin;
            let inputs: [*mut Chunk; N] =
                std::array::from_fn(|rank| buffers[rank].0.wrapping_add(start));
            reduce(inputs, end - begin);
        }
        let taken = begun.elapsed();
        gate.pass()?;
        if batch >= shape.warm_up {
            times.push(per_operation(taken, shape));
        }
    }
    Ok(times)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "times and counts of one batch are small"
)]
pub(crate) fn per_operation(taken: std::time::Duration, shape: Shape) -> f64 {
    taken.as_nanos() as f64 / shape.operations as f64
}

fn reduce<const N: usize>(inputs: [*mut Chunk; N], chunks: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: The processor has the feature.
        unsafe { reduce_avx2(inputs, chunks) };
        return;
    }
    reduce_any(inputs, chunks);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn reduce_avx2<const N: usize>(inputs: [*mut Chunk; N], chunks: usize) {
    reduce_any(inputs, chunks);
}

#[inline(always)]
fn reduce_any<const N: usize>(inputs: [*mut Chunk; N], chunks: usize) {
    for chunk in 0..chunks {
        let at = |rank: usize| inputs[rank].wrapping_add(chunk);
        // SAFETY: The chunk lies in this rank's share, which nobody else touches now.
        let mut sum = unsafe { at(0).read() };
        for rank in 1..N {
            // SAFETY: As above.
            let next = unsafe { at(rank).read() };
            for (sum, next) in sum.iter_mut().zip(next) {
                *sum += next;
            }
        }
        for rank in 0..N {
            // SAFETY: As above.
            unsafe { at(rank).write(sum) };
        }
    }
}
