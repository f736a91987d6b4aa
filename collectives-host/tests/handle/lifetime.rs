//! What safe code may do to things in use: drop, leak, panic, share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::{ErrorKind, Result};
use collectives_core::graph::Capture;
use collectives_core::in_process::InProcess;
use collectives_core::path::Staging;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_host::communicator::HostCommunicator;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use collectives_host::world::HostWorld;
use rstest::rstest;

use crate::{all, device, pool};

/// Memory that finds stale uses, and destructors that come late.
fn hostile(mode: StreamMode, ranks: usize) -> HostWorld {
    crate::world(mode, ranks).model(move |rank| {
        DeviceModel::new()
            .with_stream_mode(mode)
            .with_guard(4096)
            .with_poison(0xdb)
            .with_destructor_delay(Duration::from_millis(2))
            .with_skew(Duration::from_micros(300), u64::from(rank.0))
    })
}

/// Waits until the device has lost nothing, which no owner keeps from happening any more.
fn assert_nothing_left(host: &HostDevice) {
    host.wait_for_destructors();
    for _ in 0..2000 {
        host.collect();
        let report = host.memory_report();
        if (report.symmetric_blocks, report.ordinary_blocks) == (0, 0) {
            return host.check_memory().unwrap();
        }
        // Work in flight may be the last user.
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{:?}", host.memory_report());
}

/// Every order of four things.
fn permutations() -> Vec<[usize; 4]> {
    let mut all = Vec::new();
    for first in 0..4 {
        for second in (0..4).filter(|&k| k != first) {
            for third in (0..4).filter(|&k| k != first && k != second) {
                all.push([first, second, third, 6 - first - second - third]);
            }
        }
    }
    all
}

// invariant 46
#[rstest]
fn graph_lease_allocator_and_communicator_go_in_any_order(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    for order in permutations() {
        let liveness = hostile(mode, 2).run(|mut comm| {
            let host = Arc::clone(comm.host_device());
            let device = Arc::clone(comm.device());
            let liveness = comm.liveness();
            let mut stream = device.create_stream()?;
            let mut scratch = pool("geometric")?;
            let mut on = Collectives::new(&mut comm, &mut scratch);
            on.set_staging(Staging::Forced);
            let _plan = on.reserve(&[Request::new(4096)])?;
            let mut tensor = Buffer::from_slice(&device, &[1_u32; 1000], &stream)?;
            let capture = Capture::begin(&*device, &mut stream)?;
            on.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
            let mut graph = capture.end()?.instantiate()?;
            graph.launch(&*device, &stream)?;
            drop((on, tensor));
            let lease = scratch.acquire(&mut comm, Request::new(100), &stream, None)?;
            let mut things: [Option<Box<dyn Send>>; 4] = [
                Some(Box::new(graph)),
                Some(Box::new(lease)),
                Some(Box::new(scratch)),
                Some(Box::new(comm)),
            ];
            drop(stream);
            for k in order {
                things[k] = None;
            }
            assert_nothing_left(&host);
            Ok(liveness)
        });
        for alive in liveness {
            let alive: Result<_> = alive;
            assert!(!alive.unwrap().is_alive(), "{order:?}");
        }
    }
}

#[rstest]
fn a_forgotten_lease_or_capture_leaks_and_breaks_nothing(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let results = hostile(mode, 2).run(|mut comm| {
        let device = Arc::clone(comm.device());
        let host = Arc::clone(comm.host_device());
        let mut stream = device.create_stream()?;
        let mut scratch = pool("exact")?;
        let first = scratch.acquire(&mut comm, Request::new(4096), &stream, None)?;
        let slot = first.slot();
        std::mem::forget(first);
        let mut on = Collectives::new(comm, scratch);
        on.set_staging(Staging::Forced);
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 4096], &stream)?;
        let report = on.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
        assert_ne!(report.slot, Some(slot), "it stays busy");
        let mut forgotten = device.create_stream()?;
        std::mem::forget(Capture::begin(&*device, &mut forgotten)?);
        on.all_reduce(&mut tensor, ReduceOp::Sum, &forgotten)?;
        drop(forgotten);
        let capture = Capture::begin(&*device, &mut stream)?;
        on.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
        let mut graph = capture.end()?.instantiate()?;
        graph.launch(&*device, &stream)?;
        assert_eq!(tensor.read(&stream)?, [4; 4096]);
        drop(graph);
        host.wait_for_destructors();
        let deferred = on.close()?;
        assert_eq!(deferred.windows, 1, "the lost lease is counted");
        host.check_memory().unwrap();
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}

#[rstest]
fn everything_is_dropped_while_work_is_in_flight(
    #[values(Inline, Asynchronous)] mode: StreamMode,
    #[values(Staging::Forced, Staging::Never)] staging: Staging,
) {
    for _ in 0..20 {
        let hosts = hostile(mode, 2).run(|comm| {
            let host = Arc::clone(comm.host_device());
            let mut on = Collectives::new(comm, pool("replace").unwrap());
            on.set_staging(staging);
            let device = Arc::clone(on.device());
            let streams = [
                device.create_stream().unwrap(),
                device.create_stream().unwrap(),
            ];
            for (index, count) in [100, 700_000, 50, 1_200_000].into_iter().enumerate() {
                let stream = &streams[index % 2];
                let mut tensor = Buffer::from_slice(&device, &vec![1_u32; count], stream).unwrap();
                on.all_reduce(&mut tensor, ReduceOp::Sum, stream).unwrap();
                on.all_reduce(&mut tensor, ReduceOp::Sum, &streams[(index + 1) % 2])
                    .unwrap();
            }
            drop(streams);
            drop(on);
            host
        });
        for host in hosts {
            assert_nothing_left(&host);
        }
    }
}

#[rstest]
fn a_scope_that_panics_has_waited(#[values(Inline, Asynchronous)] mode: StreamMode) {
    let results = hostile(mode, 2).run(|comm| {
        let mut on = Collectives::new(comm, pool("geometric")?);
        let mut values = vec![1_u32; 200_000];
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            on.scope(|scope| -> Result<()> {
                scope.all_reduce(&mut values, ReduceOp::Sum)?;
                panic!("on purpose");
            })
        }));
        assert!(outcome.is_err());
        assert!(values.iter().all(|&value| value == 2));
        on.all_reduce_host(&mut values, ReduceOp::Sum)?;
        assert!(values.iter().all(|&value| value == 4));
        let _deferred = on.close()?;
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}

#[rstest]
fn threads_that_share_a_buffer_and_a_graph_take_turns(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 1, |collectives, stream| {
        let device = device(collectives);
        collectives.set_staging(Staging::Forced);
        let mut tensor = Buffer::from_slice(&device, &vec![0_u32; 50_000], stream)?;
        collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
        let capture = Capture::begin(&*device, stream)?;
        collectives.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
        let template = capture.end()?;
        thread::scope(|scope| {
            for value in 1..4_u32 {
                let (device, template, mut tensor) = (&device, &template, tensor.clone());
                scope.spawn(move || {
                    let stream = device.create_stream().unwrap();
                    let mut graph = template.instantiate().unwrap();
                    for _ in 0..50 {
                        tensor.write(&vec![value; 50_000], &stream).unwrap();
                        graph.launch(&**device, &stream).unwrap();
                        let seen = tensor.read(&stream).unwrap();
                        assert!(seen.iter().all(|other| *other == seen[0]), "torn");
                    }
                });
            }
        });
        Ok(())
    });
}

#[rstest]
fn ranks_that_share_a_device_and_a_buffer_fail_and_never_meet_in_it(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let host = HostDevice::new(DeviceModel::new().with_stream_mode(mode)).unwrap();
    let shared: Arc<dyn Device> = Arc::clone(&host) as Arc<dyn Device>;
    let stream = shared.create_stream().unwrap();
    let tensor = Buffer::from_slice(&shared, &[1_u32; 5000], &stream).unwrap();
    thread::scope(|scope| {
        for end in InProcess::world(2) {
            let (host, shared, mut tensor) = (Arc::clone(&host), &shared, tensor.clone());
            scope.spawn(move || {
                let deadline = Duration::from_secs(20);
                let comm = HostCommunicator::connect_within(Arc::new(end), host, deadline).unwrap();
                comm.set_deadline(Duration::from_millis(200));
                let mut on = Collectives::without_scratch(comm);
                let stream = shared.create_stream().unwrap();
                let result = on.all_reduce(&mut tensor, ReduceOp::Sum, &stream);
                let error = crate::error_of(result, &**shared, &stream);
                assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::Timeout { .. } | ErrorKind::PeerFailed { .. }
                    ),
                    "{error}"
                );
            });
        }
    });
    assert_eq!(tensor.read(&stream).unwrap(), [1; 5000]);
}
