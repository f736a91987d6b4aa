//! Ranks that panic, threads that share, devices that differ.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use collectives_core::agreement::Record;
use collectives_core::buffer::Buffer;
use collectives_core::collective::Collective;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Misuse, Result};
use collectives_core::layered::{Layer, Layered};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::shared::Shared;
use collectives_core::submission::Submission;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::{all, pool};

/// Panics on one rank between copy-in and copy-out, where a barrier is.
#[derive(Debug)]
struct Bomb;

impl Layer for Bomb {
    fn before_enqueue(
        &mut self,
        inner: &mut dyn Communicator,
        submission: &Submission<'_>,
    ) -> Result<()> {
        let is_between = submission.calls == [Collective::BARRIER];
        assert!(!is_between || inner.info().rank != Rank(1), "on purpose");
        Ok(())
    }

    fn drains(&self) -> bool {
        false
    }

    fn for_child(&self) -> Self {
        Self
    }
}

// invariant 45
#[rstest]
fn a_panic_between_copy_in_and_copy_out_poisons_here_and_hangs_nobody(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let results = crate::world(mode, 3).run(|comm| {
        let mut collectives = Collectives::new(Layered::new(Bomb, comm), pool("geometric")?);
        let device = Arc::clone(collectives.device());
        let stream = device.create_stream()?;
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 100], &stream)?;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            collectives.all_reduce(&mut tensor, ReduceOp::Sum, &stream)
        }));
        assert_eq!(outcome.is_err(), collectives.rank() == Rank(1));
        if let Ok(outcome) = outcome {
            let error = crate::error_of(outcome, &*device, &stream);
            assert!(error.poisons(), "{error}");
        }
        let inner = collectives.communicator_mut();
        let error = inner.agree(&Record::new(), Duration::from_secs(20));
        assert!(error.unwrap_err().poisons());
        Ok(collectives.health().unwrap_err())
    });
    for error in results {
        let error: Result<Error> = error;
        assert!(error.unwrap().poisons());
    }
}

#[rstest]
fn memory_and_streams_of_another_device_are_refused(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 1, |collectives, stream| {
        let foreign: Arc<dyn Device> = HostDevice::new(DeviceModel::default())?;
        let foreign_stream = foreign.create_stream()?;
        let mut tensor = Buffer::from_slice(&foreign, &[1_u8; 4], &foreign_stream)?;
        for error in [
            collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream),
            collectives.all_reduce(&mut tensor, ReduceOp::Sum, &foreign_stream),
        ] {
            let error = error.unwrap_err();
            assert!(
                matches!(error.misuse(), Some(Misuse::WrongDevice { .. })),
                "{error}"
            );
        }
        Ok(())
    });
}

#[rstest]
fn shared_collectives_are_used_by_one_thread_at_a_time_and_close_once(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let results = crate::world(mode, 2).run(|comm| {
        let shared = Shared::new(Collectives::new(comm, pool("geometric")?));
        let threads = 4;
        let rounds = 50;
        // The order of calls across ranks is equal because every call is the same call.
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let shared = shared.clone();
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let mut values = [1_u32; 16];
                        shared
                            .with(|collectives| {
                                collectives.all_reduce_host(&mut values, ReduceOp::Sum)
                            })
                            .unwrap();
                        assert_eq!(values, [2; 16]);
                    }
                });
            }
        });
        let _deferred = shared.close()?;
        let error = shared.with(|collectives| collectives.barrier_host());
        assert_eq!(error.unwrap_err().kind(), &ErrorKind::Closed);
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}

#[rstest]
fn aborting_wakes_a_blocked_rank_and_others_go_on(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let results = crate::world(mode, 2).run(|comm| {
        let mut collectives = Collectives::new(comm, pool("geometric")?);
        let child = collectives.split(Some(0), 0, || pool("exact"))?;
        let mut child = child.unwrap();
        if collectives.rank() == Rank(0) {
            let handle = child.abort_handle();
            let waker = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                handle.abort("changed my mind");
            });
            let error = child.barrier_host().unwrap_err();
            assert!(error.poisons(), "{error}");
            waker.join().unwrap();
        }
        // The parent is a communicator of its own.
        let mut values = [1_i32; 3];
        collectives.all_reduce_host(&mut values, ReduceOp::Sum)?;
        assert_eq!(values, [2; 3]);
        assert!(child.barrier_host().is_err());
        drop(child);
        let _deferred = collectives.close()?;
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}
