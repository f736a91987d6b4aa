//! Reductions of the elements of several ranks into one, by the rules of
//! [`collectives_core::reduce`].
//!
//! One pass over the inputs, a few lines at a time: every rank's elements are read before their
//! result is written anywhere, so results may go where inputs were.

mod block;
mod fold;
mod lane;
mod number;

use collectives_core::dtype::DType;
use collectives_core::error::{Error, Misuse, Result, Unsupported};
use collectives_core::reduce::ReduceOp;

use self::fold::{Average, Max, Min, PreMulSum, Product, Sum};
use self::lane::{Bf16, F8E4, F8E5, F16};

/// One rank's input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// The first element.
    pub(crate) addr: *const u8,
    /// The bits of the scalar of a pre-multiplied sum.
    pub(crate) scalar: u64,
}

/// One reduction of a range of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    /// Elements of each input and of each result.
    pub(crate) elements: usize,
    /// Each rank's input, in rank order; at least one.
    pub(crate) sources: &'a [Source],
    /// The first element of everywhere the result is wanted.
    pub(crate) targets: &'a [*mut u8],
}

/// The lists of a job, kept so that a reduction needs no heap.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    sources: Vec<Source>,
    targets: Vec<*mut u8>,
}

impl Scratch {
    /// A job with these sources and targets. Pushed one by one, because that is inlined.
    #[inline]
    pub(crate) fn job(
        &mut self,
        elements: usize,
        sources: impl IntoIterator<Item = Source>,
        targets: impl IntoIterator<Item = *mut u8>,
    ) -> Job<'_> {
        self.sources.clear();
        for source in sources {
            self.sources.push(source);
        }
        self.targets.clear();
        for target in targets {
            self.targets.push(target);
        }
        Job {
            elements,
            sources: &self.sources,
            targets: &self.targets,
        }
    }
}

/// The kernel of one reduction for one element type.
#[derive(Clone, Copy)]
pub(crate) struct Reducer(unsafe fn(&Job<'_>));

impl Reducer {
    /// The kernel of `op` for elements of `dtype`.
    pub(crate) fn new(dtype: DType, op: ReduceOp) -> Result<Self> {
        macro_rules! kernel {
            ($lane:ty) => {
                match op {
                    ReduceOp::Sum => block::run::<$lane, Sum>,
                    ReduceOp::Product => block::run::<$lane, Product>,
                    ReduceOp::Min => block::run::<$lane, Min>,
                    ReduceOp::Max => block::run::<$lane, Max>,
                    ReduceOp::Average => block::run::<$lane, Average>,
                    ReduceOp::PreMulSum(_) => block::run::<$lane, PreMulSum>,
                    _ => {
                        return Err(Misuse::NoSuchReduction {
                            op: op.name(),
                            dtype,
                        }
                        .into())
                    }
                }
            };
        }
        Ok(Self(match dtype {
            DType::F64 => kernel!(f64),
            DType::F32 => kernel!(f32),
            DType::F16 => kernel!(F16),
            DType::Bf16 => kernel!(Bf16),
            DType::F8E4M3 => kernel!(F8E4),
            DType::F8E5M2 => kernel!(F8E5),
            DType::I64 => kernel!(i64),
            DType::I32 => kernel!(i32),
            DType::I8 => kernel!(i8),
            DType::U64 => kernel!(u64),
            DType::U32 => kernel!(u32),
            DType::U8 => kernel!(u8),
            _ => {
                return Err(Error::unsupported(Unsupported::Operation(
                    dtype.to_string(),
                )));
            }
        }))
    }

    /// Reduces.
    ///
    /// # Safety
    ///
    /// Every source must have the job's elements to read, and every target to write, at any
    /// alignment; meanwhile nobody else writes the sources' or touches the targets'. A target may
    /// be a source, element for element, but overlap none otherwise.
    pub(crate) unsafe fn run(self, job: Job<'_>) {
        // SAFETY: By the caller.
        unsafe { (self.0)(&job) };
    }
}
