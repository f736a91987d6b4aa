//! The loops: one cache-sized block at a time, all ranks' elements of it folded into one.

use std::slice;

use super::fold::Fold;
use super::lane::Lane;
use super::{Job, Scratch, Source};

/// Runs a job with the widest vectors this processor has.
pub(super) fn run<L: Lane, F: Fold<L::Acc>>(job: &mut Job<'_>, scratch: &mut Scratch) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: The processor has the feature.
        unsafe { run_avx2::<L, F>(job, scratch) };
        return;
    }
    blocks::<L, F>(job, scratch);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_avx2<L: Lane, F: Fold<L::Acc>>(job: &mut Job<'_>, scratch: &mut Scratch) {
    blocks::<L, F>(job, scratch);
}

#[inline(always)]
fn blocks<L: Lane, F: Fold<L::Acc>>(job: &mut Job<'_>, scratch: &mut Scratch) {
    let size = size_of::<L::Bytes>();
    let (acc, out) = scratch.parts::<L::Acc, L::Bytes>();
    let per_block = acc.len().min(out.len());
    let mut done = 0;
    while done < job.elements {
        let elements = per_block.min(job.elements - done);
        block::<L, F>(job, done * size, &mut acc[..elements], &mut out[..elements]);
        // SAFETY: `L::Bytes` is an array of bytes, so its bytes are initialised bytes.
        let bytes = unsafe { slice::from_raw_parts(out.as_ptr().cast::<u8>(), elements * size) };
        (job.sink)(done * size, bytes);
        done += elements;
    }
}

#[inline(always)]
fn block<L: Lane, F: Fold<L::Acc>>(
    job: &Job<'_>,
    offset: usize,
    acc: &mut [L::Acc],
    out: &mut [L::Bytes],
) {
    let ranks = job.ranks;
    let elements = out.len();
    let at = |rank: usize| input::<L>((job.source)(rank), offset, elements);
    let (first, s0) = at(0);
    if ranks == 1 {
        for (out, &a) in out.iter_mut().zip(first) {
            *out = L::narrow(F::finish(F::first(L::widen(a), s0), ranks));
        }
        return;
    }
    let (second, s1) = at(1);
    if ranks == 2 {
        for ((out, &a), &b) in out.iter_mut().zip(first).zip(second) {
            let sum = F::step(F::first(L::widen(a), s0), L::widen(b), s1);
            *out = L::narrow(F::finish(sum, ranks));
        }
        return;
    }
    for ((acc, &a), &b) in acc.iter_mut().zip(first).zip(second) {
        *acc = F::step(F::first(L::widen(a), s0), L::widen(b), s1);
    }
    for rank in 2..ranks - 1 {
        let (next, scalar) = at(rank);
        for (acc, &a) in acc.iter_mut().zip(next) {
            *acc = F::step(*acc, L::widen(a), scalar);
        }
    }
    let (last, scalar) = at(ranks - 1);
    for ((out, &acc), &a) in out.iter_mut().zip(&*acc).zip(last) {
        *out = L::narrow(F::finish(F::step(acc, L::widen(a), scalar), ranks));
    }
}

/// One rank's elements from `offset` bytes on, and its scalar.
#[inline(always)]
fn input<'a, L: Lane>(source: Source, offset: usize, elements: usize) -> (&'a [L::Bytes], L::Acc) {
    let start = source.addr.wrapping_add(offset).cast::<L::Bytes>();
    // SAFETY: By the contract of `Reducer::run`, the source has `job.elements` elements that
    // nobody writes meanwhile; `L::Bytes` is an array of bytes and has no alignment.
    let elements = unsafe { slice::from_raw_parts(start, elements) };
    let bits = source.scalar.to_le_bytes();
    // SAFETY: `L::Bytes` is an array of at most eight bytes, and the scalar's bits start with
    // those of the element.
    let scalar = unsafe { bits.as_ptr().cast::<L::Bytes>().read() };
    (elements, L::widen(scalar))
}
