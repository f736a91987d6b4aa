//! Which reductions MPI does, with the result that the accumulation rules ask for.

use collectives_core::dtype::DType;
use collectives_core::reduce::ReduceOp;
use mpi::ffi;

use crate::raw::{Datatype, Op};

/// A reduction that MPI does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Native {
    pub(crate) kind: (Datatype, Op),
    /// Whether the result is to be divided by the number of ranks.
    pub(crate) divide: bool,
}

impl Native {
    /// What MPI does of it, if it does: 32 and 64-bit numbers and bytes. Not smallest and largest
    /// floats, since MPI says nothing of NaN and of the two zeroes; not pre-multiplied sums.
    pub(crate) fn of(dtype: DType, op: ReduceOp) -> Option<Self> {
        // SAFETY: The shim's constants are initialised before `main`.
        let datatype = unsafe {
            match dtype {
                DType::F64 => ffi::RSMPI_DOUBLE,
                DType::F32 => ffi::RSMPI_FLOAT,
                DType::I64 => ffi::RSMPI_INT64_T,
                DType::I32 => ffi::RSMPI_INT32_T,
                DType::I8 => ffi::RSMPI_INT8_T,
                DType::U64 => ffi::RSMPI_UINT64_T,
                DType::U32 => ffi::RSMPI_UINT32_T,
                DType::U8 => ffi::RSMPI_UINT8_T,
                _ => return None,
            }
        };
        let is_float = dtype.is_float();
        // SAFETY: As above.
        let op_handle = unsafe {
            match op {
                ReduceOp::Sum | ReduceOp::Average => ffi::RSMPI_SUM,
                ReduceOp::Product => ffi::RSMPI_PROD,
                ReduceOp::Min if !is_float => ffi::RSMPI_MIN,
                ReduceOp::Max if !is_float => ffi::RSMPI_MAX,
                _ => return None,
            }
        };
        Some(Self {
            kind: (datatype, op_handle),
            divide: matches!(op, ReduceOp::Average),
        })
    }
}

/// Divides `count` elements in place by a number of ranks; integers truncate towards zero.
///
/// # Safety
///
/// The elements are valid and nobody else uses them.
pub(crate) unsafe fn divide(dtype: DType, start: *mut u8, count: usize, ranks: usize) {
    macro_rules! each {
        ($ty:ty, $divide:expr) => {{
            let first = start.cast::<$ty>();
            for index in 0..count {
                let element = first.wrapping_add(index);
                // SAFETY: By the caller.
                let value = unsafe { element.read_unaligned() };
                // SAFETY: By the caller.
                unsafe { element.write_unaligned($divide(value)) };
            }
        }};
    }
    let wide = i64::try_from(ranks).unwrap_or(i64::MAX);
    let ranks = ranks as u64;
    #[expect(
        clippy::cast_precision_loss,
        reason = "worlds are far smaller than 2^24"
    )]
    match dtype {
        DType::F64 => each!(f64, |value: f64| value / ranks as f64),
        DType::F32 => each!(f32, |value: f32| value / ranks as f32),
        DType::I64 => each!(i64, |value: i64| value / wide),
        DType::I32 => each!(i32, |value: i32| narrow(i64::from(value) / wide)),
        DType::I8 => each!(i8, |value: i8| narrow(i64::from(value) / wide)),
        DType::U64 => each!(u64, |value: u64| value / ranks),
        DType::U32 => each!(u32, |value: u32| narrow(u64::from(value) / ranks)),
        DType::U8 => each!(u8, |value: u8| narrow(u64::from(value) / ranks)),
        _ => {}
    }
}

/// The quotient fits: it is no larger than the dividend.
fn narrow<W, N: TryFrom<W> + Default>(quotient: W) -> N {
    N::try_from(quotient).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_truncate_towards_zero_and_floats_divide() {
        let mut integers = [-7_i8, 7, -1];
        // SAFETY: The elements are the array's.
        unsafe { divide(DType::I8, integers.as_mut_ptr().cast(), 3, 2) };
        assert_eq!(integers, [-3, 3, 0]);
        let mut floats = [1.0_f32, -3.0];
        // SAFETY: As above.
        unsafe { divide(DType::F32, floats.as_mut_ptr().cast(), 2, 4) };
        assert_eq!(floats, [0.25, -0.75]);
    }

    #[test]
    fn what_mpi_leaves_open_is_not_left_to_mpi() {
        assert!(Native::of(DType::F32, ReduceOp::Sum).is_some());
        assert!(Native::of(DType::F32, ReduceOp::Max).is_none());
        assert!(Native::of(DType::I32, ReduceOp::Max).is_some());
        assert!(Native::of(DType::Bf16, ReduceOp::Sum).is_none());
    }
}
