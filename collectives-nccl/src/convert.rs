//! Core's values as the library's.

use std::ffi::c_int;

use collectives_core::dtype::DType;
use collectives_core::error::{Error, Misuse, Result, Unsupported};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use nccl_sys::{DataType, RedOp};

/// The library's element type.
pub(crate) fn data_type(dtype: DType) -> Result<DataType> {
    Ok(match dtype {
        DType::F64 => DataType::FLOAT64,
        DType::F32 => DataType::FLOAT32,
        DType::F16 => DataType::FLOAT16,
        DType::Bf16 => DataType::BFLOAT16,
        DType::F8E4M3 => DataType::FLOAT8_E4M3,
        DType::F8E5M2 => DataType::FLOAT8_E5M2,
        DType::I64 => DataType::INT64,
        DType::I32 => DataType::INT32,
        DType::I8 => DataType::INT8,
        DType::U64 => DataType::UINT64,
        DType::U32 => DataType::UINT32,
        DType::U8 => DataType::UINT8,
        other => {
            let text = format!("NCCL has no element type {other}");
            return Err(Error::unsupported(Unsupported::Operation(text)));
        }
    })
}

/// The library's reduction; `None` for one with a scalar, which has to be made first.
pub(crate) fn reduction(op: ReduceOp) -> Option<RedOp> {
    /// By [`ReduceOp::code`]; read, so that a call need not jump by a table.
    const BY_CODE: [RedOp; 5] = [RedOp::SUM, RedOp::PROD, RedOp::MIN, RedOp::MAX, RedOp::AVG];
    BY_CODE.get(usize::from(op.code())).copied()
}

/// A rank as the library counts.
pub(crate) fn rank(rank: Rank) -> Result<c_int> {
    c_int::try_from(rank.0).map_err(|_| Misuse::Other(format!("rank {rank} is too large")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_type_has_its_own_code() {
        let mut codes: Vec<_> = DType::ALL
            .into_iter()
            .map(|dtype| data_type(dtype).unwrap().0)
            .collect();
        codes.sort_unstable();
        assert_eq!(codes, (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn reductions_keep_their_meaning() {
        for (op, native) in [
            (ReduceOp::Sum, RedOp::SUM),
            (ReduceOp::Product, RedOp::PROD),
            (ReduceOp::Min, RedOp::MIN),
            (ReduceOp::Max, RedOp::MAX),
            (ReduceOp::Average, RedOp::AVG),
        ] {
            assert_eq!(reduction(op), Some(native));
        }
        let scalar = collectives_core::reduce::Scalar::new(2.0_f32);
        assert_eq!(reduction(ReduceOp::PreMulSum(scalar)), None);
    }
}
