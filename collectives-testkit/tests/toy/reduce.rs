//! The arithmetic, by the rules of `collectives_core::reduce`: a left fold in rank order.

use collectives_core::dtype::DType;
use collectives_core::eight_bits::{f8e4m3, f8e5m2};
use collectives_core::error::{Error, Result, Unsupported};
use collectives_core::reduce::ReduceOp;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// Folds one element type: how to read it into an accumulator, and how to write it back.
macro_rules! fold {
    ($op:expr, $inputs:expr, $acc:ty, $size:expr, $load:expr, $store:expr, $add:expr, $mul:expr) => {{
        let combine: fn($acc, $acc) -> $acc = match $op {
            ReduceOp::Sum => $add,
            ReduceOp::Product => $mul,
            ReduceOp::Min => |a, b| if b < a { b } else { a },
            ReduceOp::Max => |a, b| if b > a { b } else { a },
            op => return Err(unsupported(op)),
        };
        let mut result = Vec::with_capacity($inputs[0].len());
        for start in (0..$inputs[0].len()).step_by($size) {
            let element = |input: &&[u8]| {
                let mut bytes = [0; $size];
                bytes.copy_from_slice(&input[start..start + $size]);
                $load(bytes)
            };
            let folded = $inputs.iter().map(element).reduce(combine);
            if let Some(folded) = folded {
                result.extend_from_slice(&$store(folded));
            }
        }
        result
    }};
}

macro_rules! float {
    ($op:expr, $inputs:expr, $acc:ty, $size:expr, $load:expr, $store:expr) => {
        fold!(
            $op,
            $inputs,
            $acc,
            $size,
            $load,
            $store,
            |a, b| a + b,
            |a, b| a * b
        )
    };
}

macro_rules! integer {
    ($op:expr, $inputs:expr, $ty:ty) => {
        fold!(
            $op,
            $inputs,
            $ty,
            size_of::<$ty>(),
            <$ty>::from_ne_bytes,
            <$ty>::to_ne_bytes,
            <$ty>::wrapping_add,
            <$ty>::wrapping_mul
        )
    };
}

fn unsupported(op: ReduceOp) -> Error {
    Error::unsupported(Unsupported::Operation(format!("the toy has no {op}")))
}

/// The reduction of what all ranks sent.
pub(crate) fn reduce(dtype: DType, op: ReduceOp, inputs: &[&[u8]]) -> Result<Vec<u8>> {
    Ok(match dtype {
        DType::F64 => float!(op, inputs, f64, 8, f64::from_ne_bytes, f64::to_ne_bytes),
        DType::F32 => float!(op, inputs, f32, 4, f32::from_ne_bytes, f32::to_ne_bytes),
        DType::F16 => float!(
            op,
            inputs,
            f32,
            2,
            |bytes| f16::from_ne_bytes(bytes).to_f32(),
            |value| f16::from_f32(value).to_ne_bytes()
        ),
        DType::Bf16 => float!(
            op,
            inputs,
            f32,
            2,
            |bytes| bf16::from_ne_bytes(bytes).to_f32(),
            |value| bf16::from_f32(value).to_ne_bytes()
        ),
        DType::F8E4M3 => float!(
            op,
            inputs,
            f32,
            1,
            |bytes: [u8; 1]| F8E4M3::from_bits(bytes[0]).to_f32(),
            |value| [f8e4m3(value).to_bits()]
        ),
        DType::F8E5M2 => float!(
            op,
            inputs,
            f32,
            1,
            |bytes: [u8; 1]| F8E5M2::from_bits(bytes[0]).to_f32(),
            |value| [f8e5m2(value).to_bits()]
        ),
        DType::I64 => integer!(op, inputs, i64),
        DType::I32 => integer!(op, inputs, i32),
        DType::I8 => integer!(op, inputs, i8),
        DType::U64 => integer!(op, inputs, u64),
        DType::U32 => integer!(op, inputs, u32),
        DType::U8 => integer!(op, inputs, u8),
        _ => {
            let what = format!("the toy does not know {dtype}");
            return Err(Error::unsupported(Unsupported::Operation(what)));
        }
    })
}
