use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use collectives_core::device::Device;
use collectives_core::stream::Stream;
use rstest::rstest;

use crate::device::HostDevice;
use crate::gate::{Gate, enqueue, get, put};
use crate::model::DeviceModel;

use super::*;

fn device() -> Arc<HostDevice> {
    HostDevice::new(DeviceModel::new()).unwrap()
}

fn stream(device: &HostDevice, mode: StreamMode) -> Stream {
    device.create_stream_with(mode).unwrap()
}

fn failure() -> Error {
    Error::new(ErrorKind::System("planned".to_owned()))
}

#[test]
fn inline_work_has_run_when_the_call_returns() {
    let device = device();
    let stream = stream(&device, StreamMode::Inline);
    let here = thread::current().id();
    let (sender, seen) = channel();
    enqueue(&device, &stream, move || {
        sender.send(thread::current().id()).unwrap();
        Ok(())
    })
    .unwrap();
    assert_eq!(seen.try_recv(), Ok(here));
    assert!(device.query(&stream).unwrap());
}

#[test]
fn asynchronous_work_runs_in_order_and_elsewhere() {
    let device = device();
    let stream = stream(&device, StreamMode::Asynchronous);
    let gate = Gate::default();
    let (sender, seen) = channel();
    for k in 0..10 {
        let (gate, sender) = (gate.clone(), sender.clone());
        enqueue(&device, &stream, move || {
            gate.pass();
            sender.send((k, thread::current().id())).unwrap();
            Ok(())
        })
        .unwrap();
    }
    assert!(!device.query(&stream).unwrap());
    gate.open();
    device.synchronize(&stream).unwrap();
    assert!(device.query(&stream).unwrap());
    let seen: Vec<_> = seen.try_iter().collect();
    assert!(seen.iter().map(|&(k, _)| k).eq(0..10));
    assert_ne!(seen[0].1, thread::current().id());
}

#[rstest]
#[case::error(false)]
#[case::panic(true)]
fn an_asynchronous_failure_sticks_and_nothing_runs_after_it(#[case] panics: bool) {
    let device = device();
    let stream = stream(&device, StreamMode::Asynchronous);
    let gate = Gate::default();
    let (sender, seen) = channel();
    let held = gate.clone();
    enqueue(&device, &stream, move || {
        held.pass();
        if panics {
            panic!("planned");
        }
        Err(failure())
    })
    .unwrap();
    enqueue(&device, &stream, move || {
        sender.send(()).unwrap();
        Ok(())
    })
    .unwrap();
    gate.open();
    for _ in 0..2 {
        let error = device.synchronize(&stream).unwrap_err();
        assert!(error.to_string().contains("planned"), "{error}");
    }
    // The work was dropped, and its sender with it.
    assert!(seen.recv().is_err());
    assert!(device.query(&stream).is_err());
    assert!(device.capture_state(&stream).is_err());
    assert!(enqueue(&device, &stream, || Ok(())).is_err());
    let other = device.create_stream().unwrap();
    device.order(&stream, &other).unwrap();
    assert!(device.order(&other, &stream).is_err());
}

#[test]
fn an_inline_failure_is_the_callers_and_does_not_stick() {
    let device = device();
    let stream = stream(&device, StreamMode::Inline);
    assert!(enqueue(&device, &stream, || Err(failure())).is_err());
    assert!(enqueue(&device, &stream, || Ok(())).is_ok());
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        enqueue(&device, &stream, || panic!("planned"))
    }));
    assert!(unwound.is_err());
    assert!(device.query(&stream).unwrap());
    assert!(enqueue(&device, &stream, || Ok(())).is_ok());
}

#[rstest]
#[case(StreamMode::Inline)]
#[case(StreamMode::Asynchronous)]
fn two_threads_on_one_stream_are_serialised(#[case] mode: StreamMode) {
    let device = device();
    let stream = stream(&device, mode);
    let counter = Arc::new(AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let counter = Arc::clone(&counter);
                    enqueue(&device, &stream, move || {
                        let seen = counter.load(Ordering::Relaxed);
                        thread::yield_now();
                        counter.store(seen + 1, Ordering::Relaxed);
                        Ok(())
                    })
                    .unwrap();
                }
            });
        }
    });
    device.synchronize(&stream).unwrap();
    assert_eq!(counter.load(Ordering::Relaxed), 1000);
}

#[test]
fn a_dropped_stream_finishes_its_work_and_its_thread_ends() {
    let device = device();
    let stream = stream(&device, StreamMode::Asynchronous);
    let gate = Gate::default();
    let (sender, seen) = channel();
    let held = gate.clone();
    enqueue(&device, &stream, move || {
        held.pass();
        sender.send(()).unwrap();
        Ok(())
    })
    .unwrap();
    let queue = Arc::downgrade(queue_of(device.id(), &stream).unwrap());
    drop(stream);
    drop(device);
    gate.open();
    seen.recv().unwrap();
    while queue.upgrade().is_some() {
        thread::yield_now();
    }
}

#[test]
fn an_unused_stream_starts_no_thread() {
    let device = device();
    let stream = stream(&device, StreamMode::Asynchronous);
    device.synchronize(&stream).unwrap();
    let queue = queue_of(device.id(), &stream).unwrap();
    assert!(!queue.lock_jobs().worker);
    assert_eq!(Arc::strong_count(queue), 1);
}

#[rstest]
fn order_makes_one_stream_wait_for_the_other(
    #[values(StreamMode::Inline, StreamMode::Asynchronous)] later: StreamMode,
) {
    let device = device();
    let earlier = stream(&device, StreamMode::Asynchronous);
    let later = stream(&device, later);
    let memory = device.allocate(1).unwrap();
    for round in 0..50 {
        let addr = memory.addr();
        enqueue(&device, &earlier, move || {
            thread::yield_now();
            // SAFETY: The memory outlives the work, and the other stream waits for it.
            unsafe { addr.as_ptr::<u8>().write(round) };
            Ok(())
        })
        .unwrap();
        device.order(&earlier, &later).unwrap();
        assert_eq!(get(&device, &memory, &later), round);
        device.order(&later, &earlier).unwrap();
    }
    device.synchronize(&earlier).unwrap();
}

#[test]
fn order_after_inline_work_of_another_thread_waits_for_it() {
    let device = device();
    let (earlier, later) = (
        stream(&device, StreamMode::Inline),
        stream(&device, StreamMode::Inline),
    );
    let gate = Gate::default();
    let (running, started) = channel();
    thread::scope(|scope| {
        let held = gate.clone();
        let (device, earlier) = (&device, &earlier);
        scope.spawn(move || {
            enqueue(device, earlier, move || {
                running.send(()).unwrap();
                held.pass();
                Ok(())
            })
        });
        started.recv().unwrap();
        assert!(!device.query(earlier).unwrap());
        let (sender, ordered) = channel();
        let later = &later;
        scope.spawn(move || {
            device.order(earlier, later).unwrap();
            sender.send(()).unwrap();
        });
        thread::sleep(Duration::from_millis(10));
        assert!(ordered.try_recv().is_err());
        gate.open();
        ordered.recv().unwrap();
    });
}

#[test]
fn a_wait_still_waits_on_a_stream_that_failed() {
    let device = device();
    let slow = stream(&device, StreamMode::Asynchronous);
    let broken = stream(&device, StreamMode::Asynchronous);
    let third = stream(&device, StreamMode::Asynchronous);
    let memory = device.allocate(1).unwrap();
    let gate = Gate::default();
    let (held, addr) = (gate.clone(), memory.addr());
    enqueue(&device, &slow, move || {
        held.pass();
        // SAFETY: The memory outlives the work, and the reader is ordered after it.
        unsafe { addr.as_ptr::<u8>().write(9) };
        Ok(())
    })
    .unwrap();
    let fail = Gate::default();
    let held = fail.clone();
    enqueue(&device, &broken, move || {
        held.pass();
        Err(failure())
    })
    .unwrap();
    device.order(&slow, &broken).unwrap();
    device.order(&broken, &third).unwrap();
    fail.open();
    assert!(!device.query(&third).unwrap());
    gate.open();
    assert_eq!(get(&device, &memory, &third), 9);
}

#[test]
fn host_copies_come_after_the_work_before_them() {
    let device = device();
    let stream = stream(&device, StreamMode::Asynchronous);
    let memory = device.allocate(1).unwrap();
    for value in 0..20 {
        put(&device, &memory, value, &stream);
        let addr = memory.addr();
        enqueue(&device, &stream, move || {
            // SAFETY: The memory outlives the work; this is its stream.
            unsafe { *addr.as_ptr::<u8>() += 1 };
            Ok(())
        })
        .unwrap();
        assert_eq!(get(&device, &memory, &stream), value + 1);
    }
}

#[test]
fn streams_of_another_device_are_refused() {
    let (mine, other) = (device(), device());
    let foreign = other.create_stream().unwrap();
    let own = mine.create_stream().unwrap();
    let is_wrong = |error: Error| matches!(error.misuse(), Some(Misuse::WrongDevice { .. }));
    assert!(is_wrong(mine.synchronize(&foreign).unwrap_err()));
    assert!(is_wrong(mine.query(&foreign).unwrap_err()));
    assert!(is_wrong(mine.order(&own, &foreign).unwrap_err()));
    assert!(is_wrong(mine.order(&foreign, &own).unwrap_err()));
    let fence = other.create_fence().unwrap();
    assert!(is_wrong(mine.wait(&fence, &own).unwrap_err()));
    assert!(is_wrong(mine.record(&fence, &own).unwrap_err()));
}

#[rstest]
fn streams_that_are_ordered_after_each_other_by_two_threads_never_wait_in_a_ring(
    #[values(StreamMode::Inline, StreamMode::Asynchronous)] mode: StreamMode,
) {
    let device = device();
    let streams = [stream(&device, mode), stream(&device, mode)].map(Arc::new);
    let (sender, done) = channel();
    for first in 0..2 {
        let (device, sender) = (Arc::clone(&device), sender.clone());
        let own = Arc::clone(&streams[first]);
        let other = Arc::clone(&streams[1 - first]);
        thread::spawn(move || {
            for _ in 0..20_000 {
                device.order(&other, &own).unwrap();
                enqueue(&device, &own, || Ok(())).unwrap();
            }
            device.synchronize(&own).unwrap();
            sender.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        done.recv_timeout(Duration::from_secs(20))
            .expect("the threads wait for each other");
    }
}

#[test]
fn who_is_ordered_after_a_stream_that_failed_goes_on() {
    let device = device();
    let failed = stream(&device, StreamMode::Asynchronous);
    enqueue(&device, &failed, || Err(failure())).unwrap();
    assert!(device.synchronize(&failed).is_err());
    let fence = device.create_fence().unwrap();
    let other = stream(&device, StreamMode::Asynchronous);
    device.record_eager(&fence, &failed).unwrap();
    device.wait(&fence, &other).unwrap();
    device.order(&failed, &other).unwrap();
    device.synchronize(&other).unwrap();
}
