//! Reductions of the elements of several ranks into one, by the rules of
//! [`collectives_core::reduce`].
//!
//! One pass over the inputs, in blocks that stay in the first-level cache: every rank's block is
//! read before the result of that block is written anywhere, so results may go where inputs were.

mod block;
mod fold;
mod lane;
mod number;

use std::slice;

use collectives_core::dtype::DType;
use collectives_core::error::{Error, Misuse, Result, Unsupported};
use collectives_core::reduce::ReduceOp;

use self::fold::{Average, Max, Min, PreMulSum, Product, Sum};
use self::lane::{Bf16, F8E4, F8E5, F16};

/// Bytes of results in one block.
const BLOCK: usize = 8 << 10;

/// Bytes of accumulators in one block.
const ACCUMULATORS: usize = 16 << 10;

/// One rank's input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// The first element.
    pub(crate) addr: *const u8,
    /// The bits of the scalar of a pre-multiplied sum.
    pub(crate) scalar: u64,
}

/// One reduction of a range of elements.
pub(crate) struct Job<'a> {
    /// How many inputs there are, at least one.
    pub(crate) ranks: usize,
    /// Elements of each input.
    pub(crate) elements: usize,
    /// The input of a rank.
    pub(crate) source: &'a dyn Fn(usize) -> Source,
    /// Takes results: the byte offset of a block, and its bytes.
    pub(crate) sink: &'a mut dyn FnMut(usize, &[u8]),
}

/// Working memory of one rank, so that a reduction needs no heap.
pub(crate) struct Scratch(Box<Blocks>);

#[repr(C, align(64))]
struct Blocks {
    acc: [u8; ACCUMULATORS],
    out: [u8; BLOCK],
}

/// The kernel of one reduction for one element type.
#[derive(Clone, Copy)]
pub(crate) struct Reducer(fn(&mut Job<'_>, &mut Scratch));

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
    /// Every source must have the job's elements, readable and written by nobody until the block
    /// they belong to has been given to the sink; any alignment will do.
    pub(crate) unsafe fn run(self, mut job: Job<'_>, scratch: &mut Scratch) {
        (self.0)(&mut job, scratch);
    }
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(Box::new(Blocks {
            acc: [0; ACCUMULATORS],
            out: [0; BLOCK],
        }))
    }

    /// As many accumulators and as many elements as fit.
    fn parts<A: number::Number, B: Copy>(&mut self) -> (&mut [A], &mut [B]) {
        let Blocks { acc, out } = &mut *self.0;
        let accumulators = acc.len() / size_of::<A>();
        let elements = out.len() / size_of::<B>();
        // SAFETY: The block is aligned to 64 bytes and initialised, and every bit pattern is a
        // valid number.
        let acc = unsafe { slice::from_raw_parts_mut(acc.as_mut_ptr().cast::<A>(), accumulators) };
        // SAFETY: As above; `B` is an array of bytes.
        let out = unsafe { slice::from_raw_parts_mut(out.as_mut_ptr().cast::<B>(), elements) };
        (acc, out)
    }
}
