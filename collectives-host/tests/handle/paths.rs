//! The path taken is the path reported, and operands are what the path says.

use std::sync::{Arc, Mutex, PoisonError};

use collectives_core::addr::Operand;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::{ErrorKind, Result};
use collectives_core::layered::{Layer, Layered};
use collectives_core::path::{Fallback, Kernel, Path, Reason, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::submission::Submission;
use collectives_core::tensor::Tensor;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::{all, device, pool};

/// Records the operands of every operation.
#[derive(Clone, Debug, Default)]
struct Operands(Arc<Mutex<Vec<(Operand, Operand)>>>);

impl Layer for Operands {
    fn before_enqueue(
        &mut self,
        _inner: &mut dyn Communicator,
        submission: &Submission<'_>,
    ) -> Result<()> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(submission.calls.iter().map(|op| (op.send, op.recv)));
        Ok(())
    }

    fn for_child(&self) -> Self {
        self.clone()
    }
}

#[rstest]
fn a_staged_call_runs_on_exactly_the_requested_bytes_of_its_slot(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let results = crate::world(mode, 2).run(|comm| {
        let operands = Operands::default();
        let comm: Box<dyn Communicator> = Box::new(Layered::new(operands.clone(), comm));
        let mut collectives = Collectives::new(comm, pool("geometric")?);
        let device = Arc::clone(collectives.device());
        let stream = device.create_stream()?;
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 5001], &stream)?;
        let report = collectives.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
        assert_eq!(report.path, Path::Staged);
        assert!(matches!(
            report.kernel,
            Kernel::Forced(_) | Kernel::Predicted(_)
        ));
        let seen = operands.0.lock().unwrap().clone();
        let [(send, recv)] = seen[..] else {
            panic!("{seen:?}")
        };
        assert!(send.same_range(recv), "in place in the slot");
        assert_eq!(send.bytes, 5001, "the slice, not the capacity");
        assert!(!send.overlaps(tensor.operand()), "not the tensor itself");
        let window = send.window.unwrap();
        assert_eq!(window.offset, 0);
        let slot = &collectives.stats().slots[0];
        assert_eq!(slot.capacity, 2 << 20);
        let _deferred = collectives.close()?;
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}

#[rstest]
fn forbidding_the_fallback_fails_before_anything_moves(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 2, |collectives, stream| {
        let device = device(collectives);
        collectives.set_staging(Staging::Never);
        collectives.set_fallback(Fallback::Forbid);
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 10], stream)?;
        let error = collectives
            .all_reduce(&mut tensor, ReduceOp::Sum, stream)
            .unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::FallbackForbidden { .. }));
        assert_eq!(tensor.read(stream)?, [1; 10]);
        collectives.barrier(stream)?;
        collectives.set_fallback(Fallback::Allow);
        let report = collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
        assert_eq!(
            (report.path, report.reason),
            (Path::Direct, Reason::StagingOff)
        );
        Ok(())
    });
}

#[rstest]
fn without_scratch_nothing_is_staged(#[values(Inline, Asynchronous)] mode: StreamMode) {
    let results = crate::world(mode, 2).run(|comm| {
        let mut collectives = Collectives::without_scratch(comm);
        let device: Arc<dyn Device> = Arc::clone(collectives.device());
        let stream = device.create_stream()?;
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 10], &stream)?;
        let report = collectives.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
        assert_eq!(
            (report.path, report.reason),
            (Path::Direct, Reason::StagingOff)
        );
        assert_eq!(tensor.read(&stream)?, [2; 10]);
        let _deferred = collectives.close()?;
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}

#[rstest]
fn every_policy_gives_the_same_bits(#[values(Inline, Asynchronous)] mode: StreamMode) {
    let sums = ["exact", "replace", "geometric", "geometric-class"].map(|policy| {
        let results = crate::ranks(mode, 3, policy, |collectives, stream| {
            let device = device(collectives);
            let rank = collectives.rank().index();
            let values: Vec<f32> = (0..4097).map(|i| 1.0 / (1 + i + 7 * rank) as f32).collect();
            let mut tensor = Buffer::from_slice(&device, &values, stream)?;
            collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
            let bits: Vec<_> = tensor.read(stream)?.iter().map(|x| x.to_bits()).collect();
            Ok(bits)
        });
        results.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    });
    assert!(sums.iter().all(|bits| *bits == sums[0]));
    assert!(sums[0].iter().all(|bits| *bits == sums[0][0]));
}

#[rstest]
fn raw_addresses_are_looked_up_only_where_asked(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 2, |collectives, stream| {
        let buffer = collectives.symmetric_buffer::<u32>(100)?;
        let operand = buffer.operand();
        let unregistered = Operand::new(operand.addr, operand.bytes);
        // SAFETY: The buffer lives until the stream has been synchronised below.
        let mut raw = unsafe {
            collectives_core::tensor::RawTensor::new(
                unregistered,
                collectives_core::dtype::DType::U32,
            )
        };
        let report = collectives.all_reduce(&mut raw, ReduceOp::Sum, stream)?;
        assert_eq!(report.path, Path::Staged);
        // SAFETY: Every rank passes the start of the same window.
        unsafe { collectives.look_up_addresses(true) };
        let report = collectives.all_reduce(&mut raw, ReduceOp::Sum, stream)?;
        assert_eq!(report.path, Path::ZeroCopy);
        collectives.device().synchronize(stream)?;
        Ok(())
    });
}

#[rstest]
fn both_sides_may_be_dynamic_or_borrowed(#[values(Inline, Asynchronous)] mode: StreamMode) {
    let results = crate::world(mode, 2).run(|mut comm| {
        let stream = comm.device().create_stream()?;
        let mut scratch: Box<dyn ScratchAllocator> = pool("exact")?;
        let mut collectives = Collectives::new(&mut comm as &mut dyn Communicator, &mut scratch);
        collectives.barrier(&stream)?;
        drop(collectives);
        let mut collectives = Collectives::new(&mut comm, scratch);
        collectives.barrier(&stream)?;
        let _deferred = collectives.close()?;
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}
