//! Work of a framework's own, on streams of the host and in its graphs.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use collectives_core::buffer::Buffer;
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Misuse, Result};
use collectives_core::graph::Capture;
use collectives_core::kernel;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_core::stream::StreamRef;
use collectives_core::tensor::Tensor;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use collectives_host::world::HostWorld;
use rstest::rstest;

fn host(mode: StreamMode) -> Arc<HostDevice> {
    HostDevice::new(DeviceModel::new().with_stream_mode(mode)).unwrap()
}

/// Adds to every element, and counts how often.
fn add(
    host: &HostDevice,
    values: &Buffer<u32>,
    more: u32,
    runs: &Arc<AtomicU32>,
    stream: &StreamRef,
) -> Result<()> {
    let (first, count, runs) = (values.operand().addr, values.len(), Arc::clone(runs));
    host.enqueue(stream, move || {
        runs.fetch_add(1, Ordering::SeqCst);
        // SAFETY: `kernel::launch` keeps the buffer and orders this among its uses.
        let values = unsafe { std::slice::from_raw_parts_mut(first.as_ptr::<u32>(), count) };
        values.iter_mut().for_each(|value| *value += more);
        Ok(())
    })
}

#[rstest]
fn work_runs_between_collectives_and_at_each_replay(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let world = HostWorld::new(2).model(move |_| DeviceModel::new().with_stream_mode(mode));
    world.run(|comm| {
        let host = Arc::clone(comm.host_device());
        let pool = crate::pool("geometric").unwrap();
        let mut handle = collectives_core::collectives::Collectives::new(comm, pool);
        let device = Arc::clone(handle.device());
        let mut stream = device.create_stream().unwrap();
        handle.reserve(&[Request::new(4000)]).unwrap();
        let mut values = Buffer::from_slice(&device, &[1_u32; 1000], &stream).unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let mut step = |stream: &collectives_core::stream::Stream| -> Result<()> {
            handle.all_reduce(&mut values, ReduceOp::Sum, stream)?;
            let owner = values.clone();
            kernel::launch(&*device, &[&owner], stream, || {
                add(&host, &owner, 1, &runs, stream)
            })?;
            handle.all_reduce(&mut values, ReduceOp::Sum, stream)?;
            Ok(())
        };
        step(&stream).unwrap();
        let capture = Capture::begin(&*device, &mut stream).unwrap();
        step(capture.stream()).unwrap();
        let graph = capture.end().unwrap();
        // (1 * 2 + 1) * 2, and nothing of the capture.
        assert_eq!(values.read(&stream).unwrap(), [6; 1000]);
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        let mut executable = graph.instantiate().unwrap();
        drop(graph);
        for (round, expected) in [(2, 26), (3, 106), (4, 426)] {
            executable.launch(&*device, &stream).unwrap();
            assert_eq!(values.read(&stream).unwrap(), [expected; 1000]);
            assert_eq!(runs.load(Ordering::SeqCst), round);
        }
        drop((executable, stream));
        let _deferred = handle.close().unwrap();
    });
}

#[test]
fn work_waits_for_what_was_enqueued_before_it() {
    let host = host(Asynchronous);
    let stream = host.create_stream().unwrap();
    let (open, gate) = mpsc::channel();
    let (say, said) = mpsc::channel();
    let first = say.clone();
    host.enqueue(&stream, move || {
        gate.recv().expect("the gate is opened");
        first.send("first").expect("the test listens");
        Ok(())
    })
    .unwrap();
    host.enqueue(&stream, move || {
        say.send("second").expect("the test listens");
        Ok(())
    })
    .unwrap();
    assert!(!host.query(&stream).unwrap(), "the first waits");
    open.send(()).unwrap();
    host.synchronize(&stream).unwrap();
    assert_eq!(said.try_iter().collect::<Vec<_>>(), ["first", "second"]);
}

/// How work ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Fails,
    Panics,
}

impl End {
    fn now(self) -> Result<()> {
        match self {
            Self::Fails => Err(Error::new(ErrorKind::System("planned".to_owned()))),
            Self::Panics => resume_unwind(Box::new("planned")),
        }
    }

    fn is(self, error: &Error) -> bool {
        let text = match self {
            Self::Fails => "planned",
            Self::Panics => "work on the stream panicked: planned",
        };
        *error.kind() == ErrorKind::System(text.to_owned())
    }
}

/// Work that counts that it ran.
fn count(host: &HostDevice, stream: &StreamRef, runs: &Arc<AtomicU32>) -> Result<()> {
    let runs = Arc::clone(runs);
    host.enqueue(stream, move || {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })
}

#[rstest]
fn what_fails_or_panics_is_typed_where_it_runs(
    #[values(Inline, Asynchronous)] mode: StreamMode,
    #[values(End::Fails, End::Panics)] end: End,
) {
    let host = host(mode);
    let runs = Arc::new(AtomicU32::new(0));
    let stream = host.create_stream().unwrap();
    let enqueued = host.enqueue(&stream, move || end.now());
    let later = count(&host, &stream, &runs);
    match mode {
        Inline => {
            // The caller's, and the stream goes on.
            let error = enqueued.unwrap_err();
            assert!(end.is(&error), "{error}");
            assert_eq!(error.operation(), Some("enqueue"));
            later.unwrap();
            host.synchronize(&stream).unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), 1);
        }
        _ => {
            enqueued.unwrap();
            // Refused or dropped, by how far the stream has come.
            drop(later);
            for _ in 0..2 {
                let error = host.synchronize(&stream).unwrap_err();
                assert!(end.is(&error), "{error}");
            }
            assert_eq!(runs.load(Ordering::SeqCst), 0);
        }
    }
}

#[rstest]
fn a_replay_that_fails_runs_nothing_after_it_and_the_graph_may_be_launched_again(
    #[values(Inline, Asynchronous)] mode: StreamMode,
    #[values(End::Fails, End::Panics)] end: End,
) {
    let host = host(mode);
    let runs = Arc::new(AtomicU32::new(0));
    let mut stream = host.create_stream().unwrap();
    let capture = Capture::begin(&*host, &mut stream).unwrap();
    // Fails the first time only: it lives on between replays.
    let fails = Cell::new(true);
    host.enqueue(capture.stream(), move || match fails.replace(false) {
        true => end.now(),
        false => Ok(()),
    })
    .unwrap();
    count(&host, capture.stream(), &runs).unwrap();
    let graph = capture.end().unwrap();
    assert_eq!(graph.node_count(), 2);
    let mut executable = graph.instantiate().unwrap();
    let launched = executable.launch(&*host, &stream);
    let error = launched.and(host.synchronize(&stream)).unwrap_err();
    assert!(end.is(&error), "{error}");
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let fresh = host.create_stream().unwrap();
    executable.launch(&*host, &fresh).unwrap();
    host.synchronize(&fresh).unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[rstest]
fn replays_on_several_streams_never_run_one_work_at_once(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let host = host(mode);
    let mut stream = host.create_stream().unwrap();
    let total = Arc::new(AtomicU32::new(0));
    let capture = Capture::begin(&*host, &mut stream).unwrap();
    // A cell is for one thread at a time, which the compiler knows: the work need not be `Sync`.
    let (own, seen) = (Cell::new(0), Arc::clone(&total));
    host.enqueue(capture.stream(), move || {
        own.set(own.get() + 1);
        seen.fetch_max(own.get(), Ordering::SeqCst);
        Ok(())
    })
    .unwrap();
    let graph = capture.end().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let stream = host.create_stream().unwrap();
                let mut executable = graph.instantiate().unwrap();
                for _ in 0..100 {
                    executable.launch(&*host, &stream).unwrap();
                }
                host.synchronize(&stream).unwrap();
            });
        }
    });
    assert_eq!(total.load(Ordering::SeqCst), 300);
}

#[rstest]
fn work_goes_with_the_last_that_has_it(#[values(Inline, Asynchronous)] mode: StreamMode) {
    let host = host(mode);
    let mut stream = host.create_stream().unwrap();
    let owned = Arc::new(());
    let work = |owned: &Arc<()>| {
        let owned = Arc::clone(owned);
        move || {
            let _owned = &owned;
            Ok(())
        }
    };
    host.enqueue(&stream, work(&owned)).unwrap();
    let elsewhere = HostDevice::new(DeviceModel::new()).unwrap();
    let refused = elsewhere.enqueue(&stream, work(&owned)).unwrap_err();
    assert!(matches!(refused.misuse(), Some(Misuse::WrongDevice { .. })));
    // The end of work is before the end of its stream's wait, or right behind it.
    host.synchronize(&stream).unwrap();
    while Arc::strong_count(&owned) > 1 {
        std::thread::yield_now();
    }
    let capture = Capture::begin(&*host, &mut stream).unwrap();
    host.enqueue(capture.stream(), work(&owned)).unwrap();
    let graph = capture.end().unwrap();
    let executable = graph.instantiate().unwrap();
    drop(graph);
    assert_eq!(Arc::strong_count(&owned), 2);
    drop(executable);
    assert_eq!(Arc::strong_count(&owned), 1);
    let capture = Capture::begin(&*host, &mut stream).unwrap();
    host.enqueue(capture.stream(), work(&owned)).unwrap();
    drop(capture);
    assert_eq!(Arc::strong_count(&owned), 1);
}
