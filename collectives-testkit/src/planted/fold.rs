//! Bugs in how the inputs of ranks are folded.

use collectives_core::addr::Operand;
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::dtype::DType;
use collectives_core::error::Result;
use collectives_core::reduce::ReduceOp;
use collectives_core::stream::StreamRef;
use collectives_core::submission::Submission;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::inexact::Float;

/// Whether an operation is one that these bugs carry out themselves: a sum of floats on all ranks.
fn is_sum(op: &Collective<'_>) -> bool {
    op.op == Op::AllReduce(ReduceOp::Sum) && op.dtype.is_float() && !op.is_empty()
}

/// Makes the copies in, gathers the inputs of an eager sum and folds them in this order; whether it did.
pub(super) fn sum_in_order(
    inner: &mut dyn Communicator,
    device: &dyn Device,
    submission: &Submission<'_>,
    order: &[usize],
) -> Result<bool> {
    let stream = submission.stream;
    let [op] = submission.calls else {
        return Ok(false);
    };
    if !is_sum(op) || device.capture_state(stream)?.is_some() {
        return Ok(false);
    }
    let (bytes, ranks) = (op.send.bytes, order.len());
    let all = device.allocate(bytes * ranks)?;
    let gather = Collective {
        op: Op::AllGather,
        send: Operand {
            window: None,
            ..op.send
        },
        recv: Operand::new(all.addr(), bytes * ranks),
        ..*op
    };
    // SAFETY: The copies and the input are the caller's, and `all` is as long as the inputs of all ranks.
    unsafe {
        inner.enqueue(&Submission {
            calls: &[gather],
            copies_out: &[],
            ..*submission
        })
    }?;
    let mut inputs = vec![0; bytes * ranks];
    // SAFETY: It reads all of `all`, which this function alone knows.
    unsafe { device.read(&mut inputs, all.addr(), stream) }?;
    let ordered: Vec<_> = order
        .iter()
        .map(|rank| &inputs[rank * bytes..][..bytes])
        .collect();
    let sum = match op.dtype {
        DType::F64 => folded::<f64>(&ordered),
        DType::F32 => folded::<f32>(&ordered),
        DType::F16 => folded::<f16>(&ordered),
        DType::Bf16 => folded::<bf16>(&ordered),
        DType::F8E4M3 => folded::<F8E4M3>(&ordered),
        _ => folded::<F8E5M2>(&ordered),
    };
    // SAFETY: The output is the caller's, and as long as the input.
    unsafe { device.write(op.recv.addr, &sum, stream) }?;
    Ok(true)
}

fn folded<T: Float>(inputs: &[&[u8]]) -> Vec<u8> {
    let size = size_of::<T>();
    let at = |input: &&[u8], start: usize| {
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(&input[start..start + size]);
        T::from_bits(u64::from_le_bytes(bits))
    };
    let length = inputs.first().map_or(0, |input| input.len());
    (0..length)
        .step_by(size)
        .flat_map(|start| {
            let sum = T::fold(ReduceOp::Sum, inputs.iter().map(|input| at(input, start)));
            sum.bits().to_le_bytes().into_iter().take(size)
        })
        .collect()
}

/// Makes of what is infinite, or NaN for want of an infinity, the largest number.
pub(super) fn saturate(device: &dyn Device, op: &Collective<'_>, stream: &StreamRef) -> Result<()> {
    let (too_large, largest) = match op.dtype {
        DType::F8E5M2 => (0x7c, 0x7b),
        DType::F8E4M3 => (0x7f, 0x7e),
        _ => return Ok(()),
    };
    let reduces = op.reduction().is_some() && matches!(op.counts, Counts::Even(1..));
    if !reduces || op.recv.bytes == 0 || device.capture_state(stream)?.is_some() {
        return Ok(());
    }
    let mut result = vec![0_u8; op.recv.bytes];
    // SAFETY: The output is valid until the work on the stream has finished, which this waits for.
    unsafe { device.read(&mut result, op.recv.addr, stream) }?;
    for bits in &mut result {
        if *bits & 0x7f == too_large {
            *bits = *bits & 0x80 | largest;
        }
    }
    // SAFETY: As above.
    unsafe { device.write(op.recv.addr, &result, stream) }
}
