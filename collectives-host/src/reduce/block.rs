//! The loops: a few lines of elements at a time, all ranks' elements folded into one result.
//!
//! Results go from registers to wherever they are wanted. What is read comes through raw pointers
//! and by value, because in place a target is one of the sources.

use super::fold::Fold;
use super::lane::Lane;
use super::{Job, Source};

/// Elements that are read, folded and written together.
const LANES: usize = 32;
/// The same towards the end of a range, and of a small one.
const FEW: usize = 2;

/// Runs a job with the widest vectors this processor has. All give the same bits: nothing is
/// contracted or reordered.
///
/// # Safety
///
/// As for [`Reducer::run`](super::Reducer::run).
pub(super) unsafe fn run<L: Lane, F: Fold<L::Acc>>(job: &Job<'_>) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: The processor has the features, of which these two imply the others; the rest
            // by the caller.
            return unsafe { run_avx512::<L, F>(job) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: The processor has the feature; the rest by the caller.
            return unsafe { run_avx2::<L, F>(job) };
        }
    }
    // SAFETY: By the caller.
    unsafe { chunks::<L, F>(job) };
}

/// # Safety
///
/// As for [`run`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn run_avx512<L: Lane, F: Fold<L::Acc>>(job: &Job<'_>) {
    // SAFETY: By the caller.
    unsafe { chunks::<L, F>(job) };
}

/// # Safety
///
/// As for [`run`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn run_avx2<L: Lane, F: Fold<L::Acc>>(job: &Job<'_>) {
    // SAFETY: By the caller.
    unsafe { chunks::<L, F>(job) };
}

/// # Safety
///
/// As for [`run`].
#[inline(always)]
unsafe fn chunks<L: Lane, F: Fold<L::Acc>>(job: &Job<'_>) {
    let whole = job.elements - job.elements % LANES;
    for done in (0..whole).step_by(LANES) {
        // SAFETY: By the caller; the elements lie inside the job.
        unsafe { chunk::<L, F, LANES>(job, done * size_of::<L::Bytes>()) };
    }
    let mut done = whole;
    while done + FEW <= job.elements {
        // SAFETY: As above.
        unsafe { chunk::<L, F, FEW>(job, done * size_of::<L::Bytes>()) };
        done += FEW;
    }
    while done < job.elements {
        // SAFETY: As above.
        unsafe { chunk::<L, F, 1>(job, done * size_of::<L::Bytes>()) };
        done += 1;
    }
}

/// Reduces `N` elements from a byte offset on.
///
/// # Safety
///
/// As for [`run`], and the elements lie inside the job.
#[inline(always)]
unsafe fn chunk<L: Lane, F: Fold<L::Acc>, const N: usize>(job: &Job<'_>, offset: usize) {
    // SAFETY: By the caller.
    let read = |source: &Source| unsafe { read::<L, N>(source, offset) };
    let result = match job.sources {
        [] => return,
        [only] => {
            let (elements, scalar) = read(only);
            elements.map(|a| F::first(L::widen(a), scalar))
        }
        [first, second, others @ ..] => {
            let ((a, s0), (b, s1)) = (read(first), read(second));
            let mut folded: [L::Acc; N] = std::array::from_fn(|lane| {
                F::step(F::first(L::widen(a[lane]), s0), L::widen(b[lane]), s1)
            });
            for other in others {
                let (elements, scalar) = read(other);
                folded = std::array::from_fn(|lane| {
                    F::step(folded[lane], L::widen(elements[lane]), scalar)
                });
            }
            folded
        }
    };
    let ranks = job.sources.len();
    let result = result.map(|folded| L::narrow(F::finish(folded, ranks)));
    for target in job.targets {
        let to = target.wrapping_add(offset).cast::<[L::Bytes; N]>();
        // SAFETY: By the caller the target has these elements, which only this rank writes;
        // `L::Bytes` is an array of bytes and has no alignment.
        unsafe { to.write(result) };
    }
}

/// One rank's elements from `offset` bytes on, and its scalar.
///
/// # Safety
///
/// As for [`chunk`].
#[inline(always)]
unsafe fn read<L: Lane, const N: usize>(source: &Source, offset: usize) -> ([L::Bytes; N], L::Acc) {
    let from = source.addr.wrapping_add(offset).cast::<[L::Bytes; N]>();
    // SAFETY: By the caller the source has these elements; `L::Bytes` is an array of bytes and has
    // no alignment.
    let elements = unsafe { from.read() };
    let bits = source.scalar.to_le_bytes();
    // SAFETY: `L::Bytes` is an array of at most eight bytes, and the scalar's bits start with
    // those of the element.
    let scalar = unsafe { bits.as_ptr().cast::<L::Bytes>().read() };
    (elements, L::widen(scalar))
}
