//! The reductions, as a left fold over ranks.

use super::number::Number;

/// A reduction over accumulators: the first rank's element, one step per further rank, an end.
/// `scalar` is the rank's own, which only the pre-multiplied sum looks at.
pub(super) trait Fold<A: Number> {
    #[inline(always)]
    fn first(element: A, scalar: A) -> A {
        let _ = scalar;
        element
    }
    fn step(acc: A, element: A, scalar: A) -> A;
    #[inline(always)]
    fn finish(acc: A, ranks: usize) -> A {
        let _ = ranks;
        acc
    }
}

pub(super) struct Sum;
pub(super) struct Product;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct Average;
pub(super) struct PreMulSum;

impl<A: Number> Fold<A> for Sum {
    #[inline(always)]
    fn step(acc: A, element: A, _: A) -> A {
        acc.add(element)
    }
}

impl<A: Number> Fold<A> for Product {
    #[inline(always)]
    fn step(acc: A, element: A, _: A) -> A {
        acc.multiply(element)
    }
}

impl<A: Number> Fold<A> for Min {
    #[inline(always)]
    fn step(acc: A, element: A, _: A) -> A {
        acc.smaller_of(element)
    }
}

impl<A: Number> Fold<A> for Max {
    #[inline(always)]
    fn step(acc: A, element: A, _: A) -> A {
        acc.larger_of(element)
    }
}

impl<A: Number> Fold<A> for Average {
    #[inline(always)]
    fn step(acc: A, element: A, _: A) -> A {
        acc.add(element)
    }
    #[inline(always)]
    fn finish(acc: A, ranks: usize) -> A {
        acc.divide(ranks)
    }
}

impl<A: Number> Fold<A> for PreMulSum {
    #[inline(always)]
    fn first(element: A, scalar: A) -> A {
        element.multiply(scalar)
    }
    #[inline(always)]
    fn step(acc: A, element: A, scalar: A) -> A {
        acc.add(element.multiply(scalar))
    }
}
