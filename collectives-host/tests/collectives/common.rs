//! What the tests share: worlds, inputs, and an oracle that uses none of the backend's kernels.

use std::time::Duration;

use collectives_core::addr::{Addr, Operand};
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::Result;
use collectives_core::reduce::{ReduceOp, Scalar};
use collectives_core::stream::{Stream, StreamRef};
use collectives_core::submission::Submission;
use collectives_host::communicator::HostCommunicator;
use collectives_host::world::HostWorld;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::eight_bits;

/// One rank in a test.
pub(crate) struct Rig {
    pub(crate) comm: HostCommunicator,
    pub(crate) stream: Stream,
}

impl Rig {
    pub(crate) fn new(comm: HostCommunicator) -> Self {
        let stream = comm.device().create_stream().unwrap();
        Self { comm, stream }
    }

    pub(crate) fn rank(&self) -> usize {
        self.comm.info().rank.index()
    }

    pub(crate) fn run(&mut self, calls: &[Collective<'_>]) -> Result<()> {
        // SAFETY: Tests keep operands alive until the stream has been synchronised.
        unsafe { enqueue(&mut self.comm, calls, &self.stream)? };
        self.comm.device().synchronize(&self.stream)
    }

    pub(crate) fn barrier(&mut self) {
        self.run(&[Collective::BARRIER]).unwrap();
    }
}

/// Checks calls and enqueues them as one group.
///
/// # Safety
///
/// As for [`Communicator::enqueue`], for the operands.
pub(crate) unsafe fn enqueue(
    comm: &mut dyn Communicator,
    calls: &[Collective<'_>],
    stream: &StreamRef,
) -> Result<()> {
    let submission = Submission::checked(comm, calls, stream)?;
    // SAFETY: By the caller; the calls were checked.
    unsafe { comm.enqueue(&submission) }
}

/// Runs a body on every rank and shuts down in the end.
pub(crate) fn on_every_rank<R: Send>(
    world_size: usize,
    body: impl Fn(&mut Rig) -> R + Sync,
) -> Vec<R> {
    within(world_size, Duration::from_secs(20), body)
}

pub(crate) fn within<R: Send>(
    world_size: usize,
    deadline: Duration,
    body: impl Fn(&mut Rig) -> R + Sync,
) -> Vec<R> {
    // Ranks may take longer than a short deadline to be started.
    let world = HostWorld::new(world_size).deadline(deadline.max(Duration::from_secs(20)));
    world.run(|comm| {
        comm.set_deadline(deadline);
        let mut rig = Rig::new(comm);
        let result = body(&mut rig);
        let _ = rig.comm.shutdown();
        result
    })
}

pub(crate) fn operand(bytes: &mut [u8]) -> Operand {
    if bytes.is_empty() {
        return Operand::EMPTY;
    }
    Operand::new(Addr::from_ptr(bytes.as_mut_ptr()), bytes.len())
}

pub(crate) fn call<'a>(
    op: Op<'a>,
    dtype: DType,
    send: Operand,
    recv: Operand,
    counts: Counts<'a>,
) -> Collective<'a> {
    Collective {
        op,
        dtype,
        send,
        recv,
        counts,
    }
}

pub(crate) fn reductions(dtype: DType, rank: usize) -> [ReduceOp; 6] {
    [
        ReduceOp::Sum,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Average,
        ReduceOp::PreMulSum(scalar(dtype, rank)),
    ]
}

/// A rank's own scalar.
pub(crate) fn scalar(dtype: DType, rank: usize) -> Scalar {
    let value = rank as u8 + 2;
    match dtype {
        DType::F64 => Scalar::new(f64::from(value) / 3.0),
        DType::F32 => Scalar::new(f32::from(value) / 3.0),
        DType::F16 => Scalar::new(f16::from_f32(f32::from(value) / 3.0)),
        DType::Bf16 => Scalar::new(bf16::from_f32(f32::from(value) / 3.0)),
        DType::F8E4M3 => Scalar::new(F8E4M3::from_f32(f32::from(value) / 3.0)),
        DType::F8E5M2 => Scalar::new(F8E5M2::from_f32(f32::from(value) / 3.0)),
        DType::I64 => Scalar::new(-i64::from(value)),
        DType::I32 => Scalar::new(-i32::from(value)),
        DType::I8 => Scalar::new(-(value as i8)),
        DType::U64 => Scalar::new(u64::from(value)),
        DType::U32 => Scalar::new(u32::from(value)),
        DType::U8 => Scalar::new(value),
        _ => unreachable!(),
    }
}

/// Pseudo-random bytes; as elements of any type they include NaN, infinities and signed zeros.
pub(crate) fn noise(seed: usize, bytes: usize) -> Vec<u8> {
    let mut state = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// The input of a rank: noise, with special values among it.
pub(crate) fn input(dtype: DType, rank: usize, count: usize) -> Vec<u8> {
    let size = dtype.size();
    let mut bytes = noise(rank + 1000 * count + 17, count * size);
    for index in (rank..count).step_by(7) {
        let special: f64 = [0.0, -0.0, 1.0, f64::INFINITY, -2.5, f64::NAN, 0.001][index % 7];
        let element = &mut bytes[index * size..][..size];
        match dtype {
            DType::F64 => element.copy_from_slice(&special.to_ne_bytes()),
            DType::F32 => element.copy_from_slice(&(special as f32).to_ne_bytes()),
            DType::F16 => element.copy_from_slice(&f16::from_f64(special).to_ne_bytes()),
            DType::Bf16 => element.copy_from_slice(&bf16::from_f64(special).to_ne_bytes()),
            _ => {}
        }
    }
    bytes
}

macro_rules! fold {
    ($ty:ty, $acc:ty, $op:expr, $inputs:expr, $scalars:expr, $load:expr, $store:expr,
     $add:expr, $mul:expr, $min:expr, $max:expr, $div:expr) => {{
        const SIZE: usize = size_of::<$ty>();
        let count = $inputs[0].len() / SIZE;
        let mut out = Vec::with_capacity($inputs[0].len());
        for index in 0..count {
            let element = |rank: usize| -> $acc {
                let bytes = &$inputs[rank][index * SIZE..][..SIZE];
                $load(<[u8; SIZE]>::try_from(bytes).unwrap())
            };
            let scalar = |rank: usize| -> $acc {
                let bytes = $scalars[rank].bits().to_le_bytes();
                $load(<[u8; SIZE]>::try_from(&bytes[..SIZE]).unwrap())
            };
            let ranks = $inputs.len();
            let folded: $acc = match $op {
                ReduceOp::PreMulSum(_) => (1..ranks)
                    .fold($mul(element(0), scalar(0)), |acc, rank| {
                        $add(acc, $mul(element(rank), scalar(rank)))
                    }),
                _ => (1..ranks).fold(element(0), |acc, rank| match $op {
                    ReduceOp::Sum | ReduceOp::Average => $add(acc, element(rank)),
                    ReduceOp::Product => $mul(acc, element(rank)),
                    ReduceOp::Min => $min(acc, element(rank)),
                    ReduceOp::Max => $max(acc, element(rank)),
                    _ => unreachable!(),
                }),
            };
            let folded = if matches!($op, ReduceOp::Average) {
                $div(folded, ranks)
            } else {
                folded
            };
            out.extend_from_slice(&$store(folded));
        }
        out
    }};
}

macro_rules! float {
    ($ty:ty, $acc:ty, $op:expr, $inputs:expr, $scalars:expr, $load:expr, $store:expr) => {
        fold!(
            $ty,
            $acc,
            $op,
            $inputs,
            $scalars,
            $load,
            $store,
            |a: $acc, b: $acc| a + b,
            |a: $acc, b: $acc| a * b,
            |a: $acc, b: $acc| {
                if a.is_nan() || b.is_nan() {
                    <$acc>::NAN
                } else if a == b {
                    if a.is_sign_negative() { a } else { b }
                } else if a < b {
                    a
                } else {
                    b
                }
            },
            |a: $acc, b: $acc| {
                if a.is_nan() || b.is_nan() {
                    <$acc>::NAN
                } else if a == b {
                    if a.is_sign_negative() { b } else { a }
                } else if a > b {
                    a
                } else {
                    b
                }
            },
            |a: $acc, ranks: usize| a / ranks as $acc
        )
    };
}

macro_rules! integer {
    ($ty:ty, $op:expr, $inputs:expr, $scalars:expr) => {
        fold!(
            $ty,
            $ty,
            $op,
            $inputs,
            $scalars,
            <$ty>::from_ne_bytes,
            <$ty>::to_ne_bytes,
            <$ty>::wrapping_add,
            <$ty>::wrapping_mul,
            std::cmp::min::<$ty>,
            std::cmp::max::<$ty>,
            |a: $ty, ranks: usize| (i128::from(a) / ranks as i128) as $ty
        )
    };
}

/// The reduction of all inputs, by the rules of `collectives_core::reduce`.
pub(crate) fn oracle(dtype: DType, op: ReduceOp, inputs: &[Vec<u8>]) -> Vec<u8> {
    let scalars: Vec<_> = (0..inputs.len()).map(|rank| scalar(dtype, rank)).collect();
    oracle_with(dtype, op, inputs, &scalars)
}

/// The same, of a pre-multiplied sum with these scalars of the ranks.
pub(crate) fn oracle_with(
    dtype: DType,
    op: ReduceOp,
    inputs: &[Vec<u8>],
    scalars: &[Scalar],
) -> Vec<u8> {
    match dtype {
        DType::F64 => float!(
            f64,
            f64,
            op,
            inputs,
            scalars,
            f64::from_ne_bytes,
            f64::to_ne_bytes
        ),
        DType::F32 => float!(
            f32,
            f32,
            op,
            inputs,
            scalars,
            f32::from_ne_bytes,
            f32::to_ne_bytes
        ),
        DType::F16 => float!(
            f16,
            f32,
            op,
            inputs,
            scalars,
            |b| f16::from_ne_bytes(b).to_f32(),
            |a| f16::from_f32(a).to_ne_bytes()
        ),
        DType::Bf16 => float!(
            bf16,
            f32,
            op,
            inputs,
            scalars,
            |b| bf16::from_ne_bytes(b).to_f32(),
            |a| bf16::from_f32(a).to_ne_bytes()
        ),
        DType::F8E4M3 => float!(
            F8E4M3,
            f32,
            op,
            inputs,
            scalars,
            |b: [u8; 1]| eight_bits::E4M3.value(b[0]),
            |a| [eight_bits::E4M3.nearest(a)]
        ),
        DType::F8E5M2 => float!(
            F8E5M2,
            f32,
            op,
            inputs,
            scalars,
            |b: [u8; 1]| eight_bits::E5M2.value(b[0]),
            |a| [eight_bits::E5M2.nearest(a)]
        ),
        DType::I64 => integer!(i64, op, inputs, scalars),
        DType::I32 => integer!(i32, op, inputs, scalars),
        DType::I8 => integer!(i8, op, inputs, scalars),
        DType::U64 => integer!(u64, op, inputs, scalars),
        DType::U32 => integer!(u32, op, inputs, scalars),
        DType::U8 => integer!(u8, op, inputs, scalars),
        _ => unreachable!(),
    }
}

/// Whether two buffers hold the same elements; any NaN is equal to any other.
pub(crate) fn same(dtype: DType, left: &[u8], right: &[u8]) -> bool {
    let nan = |bytes: &[u8]| match dtype {
        DType::F64 => f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::Bf16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::F8E4M3 => F8E4M3::from_bits(bytes[0]).to_f32().is_nan(),
        DType::F8E5M2 => F8E5M2::from_bits(bytes[0]).to_f32().is_nan(),
        _ => false,
    };
    left.len() == right.len()
        && left
            .chunks(dtype.size())
            .zip(right.chunks(dtype.size()))
            .all(|(left, right)| left == right || (nan(left) && nan(right)))
}
