use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::channel;

use collectives_core::buffer::Buffer;
use collectives_core::graph::{Capture, GraphTemplate};
use collectives_core::kernel;
use rstest::rstest;

use crate::gate::{Gate, copy, enqueue, get, put};

use super::*;

fn device() -> Arc<HostDevice> {
    HostDevice::new(DeviceModel::new()).unwrap()
}

fn begin(device: &HostDevice, stream: &StreamRef) -> Result<CaptureId> {
    // SAFETY: Each test uses its streams on one thread.
    unsafe { device.begin(stream) }
}

fn fork(device: &HostDevice, trunk: &StreamRef, branch: &StreamRef) -> Result<()> {
    // SAFETY: As above.
    unsafe { device.fork(trunk, branch) }
}

fn end(device: &HostDevice, stream: &StreamRef) -> Result<Box<dyn GraphTemplate>> {
    // SAFETY: As above.
    unsafe { device.end(stream) }
}

fn fault(error: &Error) -> CaptureFault {
    match error.kind() {
        ErrorKind::Capture(fault) => *fault,
        kind => panic!("not a capture fault: {kind:?}"),
    }
}

#[test]
fn a_model_that_makes_no_sense_is_refused() {
    assert!(HostDevice::new(DeviceModel::new().with_granule(3)).is_err());
}

#[rstest]
#[case(StreamMode::Inline)]
#[case(StreamMode::Asynchronous)]
fn the_capture_state_says_which_capture(#[case] mode: StreamMode) {
    let device = device();
    let mut stream = device.create_stream_with(mode).unwrap();
    assert_eq!(device.capture_state(&stream).unwrap(), None);
    let capture = Capture::begin(&*device, &mut stream).unwrap();
    assert_eq!(
        device.capture_state(capture.stream()).unwrap(),
        Some(capture.id())
    );
    assert_eq!(device.captures_active(), 1);
    capture.end().unwrap();
    assert_eq!(device.capture_state(&stream).unwrap(), None);
    assert_eq!(device.captures_active(), 0);
}

#[rstest]
fn host_waits_are_refused_while_capturing_and_the_capture_stays_valid(
    #[values(StreamMode::Inline, StreamMode::Asynchronous)] mode: StreamMode,
) {
    let device = device();
    let memory = device.allocate(8).unwrap();
    let mut stream = device.create_stream_with(mode).unwrap();
    let capture = Capture::begin(&*device, &mut stream).unwrap();
    let stream = capture.stream();
    let mut byte = [0];
    let errors = [
        device.query(stream).unwrap_err(),
        device.synchronize(stream).unwrap_err(),
        // SAFETY: The memory is valid, and nothing else uses it.
        unsafe { device.write(memory.addr(), &[1], stream) }.unwrap_err(),
        // SAFETY: As above.
        unsafe { device.read(&mut byte, memory.addr(), stream) }.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(
            error.misuse(),
            Some(Misuse::BlocksInCapture { .. })
        ));
    }
    capture.end().unwrap();
}

#[test]
fn synchronize_waits_for_eager_work_also_when_it_is_refused() {
    let device = device();
    let mut stream = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let gate = Gate::default();
    let (sender, seen) = channel();
    let held = gate.clone();
    enqueue(&device, &stream, move || {
        held.pass();
        sender.send(()).unwrap();
        Ok(())
    })
    .unwrap();
    let capture = Capture::begin(&*device, &mut stream).unwrap();
    gate.open();
    assert!(device.synchronize(capture.stream()).is_err());
    assert_eq!(seen.try_recv(), Ok(()));
}

#[test]
fn a_capture_is_isolated_and_a_refusal_invalidates_nothing() {
    let device = device();
    let mut stream = device.create_stream().unwrap();
    let mut other = device.create_stream().unwrap();
    let mut branch = device.create_stream().unwrap();
    let capture = Capture::begin(&*device, &mut stream).unwrap();
    let inside = capture.stream();
    for error in [
        device.order(inside, &other).unwrap_err(),
        device.order(&other, inside).unwrap_err(),
    ] {
        assert_eq!(fault(&error), CaptureFault::Isolation);
    }
    {
        let second = Capture::begin(&*device, &mut other).unwrap();
        let error = device.order(inside, second.stream()).unwrap_err();
        assert_eq!(fault(&error), CaptureFault::Isolation);
        let error = fork(&device, inside, second.stream()).unwrap_err();
        assert_eq!(fault(&error), CaptureFault::AlreadyCapturing);
        second.end().unwrap();
    }
    capture
        .branch(&mut branch, |branch| {
            device.order(inside, branch)?;
            device.order(branch, inside)
        })
        .unwrap();
    assert_eq!(capture.end().unwrap().node_count(), 0);
}

#[test]
fn a_stream_captures_once_at_a_time() {
    let device = device();
    let stream = device.create_stream().unwrap();
    begin(&device, &stream).unwrap();
    let error = begin(&device, &stream).unwrap_err();
    assert_eq!(fault(&error), CaptureFault::AlreadyCapturing);
    end(&device, &stream).unwrap();
    let error = end(&device, &stream).unwrap_err();
    assert_eq!(fault(&error), CaptureFault::NotCapturing);
    let token = Memory::token(device.id(), || ());
    let error = device.retain(&stream, token).unwrap_err();
    assert_eq!(fault(&error), CaptureFault::NotCapturing);
    assert_eq!(device.captures_active(), 0);
}

#[rstest]
#[case::unjoined(true, CaptureFault::Unjoined)]
#[case::invalidated(false, CaptureFault::Invalidated)]
fn a_capture_that_fails_releases_everything(#[case] forked: bool, #[case] expected: CaptureFault) {
    let device = device();
    let (trunk, branch) = (
        device.create_stream().unwrap(),
        device.create_stream().unwrap(),
    );
    begin(&device, &trunk).unwrap();
    device
        .retain(&trunk, device.allocate_symmetric(1).unwrap())
        .unwrap();
    if forked {
        fork(&device, &trunk, &branch).unwrap();
        assert!(end(&device, &branch).is_err());
    } else {
        device.invalidate_capture(&trunk).unwrap();
        assert_eq!(fault(&device.capture_state(&trunk).unwrap_err()), expected);
        assert!(take_turn(device.queue(&trunk).unwrap()).is_err());
    }
    assert_eq!(fault(&end(&device, &trunk).unwrap_err()), expected);
    device.wait_for_destructors();
    device.collect();
    assert_eq!(device.mapped_bytes(), 0);
    for stream in [&trunk, &branch] {
        assert_eq!(device.capture_state(stream).unwrap(), None);
        assert!(device.query(stream).unwrap());
    }
    assert_eq!(device.captures_active(), 0);
}

#[test]
fn an_abandoned_capture_runs_nothing_and_releases_everything() {
    let device = device();
    let mut stream = device.create_stream().unwrap();
    let (from, to) = (device.allocate(1).unwrap(), device.allocate(1).unwrap());
    put(&device, &from, 5, &stream);
    let capture = Capture::begin(&*device, &mut stream).unwrap();
    copy(&device, &to, &from, capture.stream());
    device
        .retain(capture.stream(), device.allocate_symmetric(1).unwrap())
        .unwrap();
    drop(capture);
    assert_eq!(get(&device, &to, &stream), 0);
    device.wait_for_destructors();
    device.collect();
    assert_eq!(device.mapped_bytes(), 0);
}

#[test]
fn a_stream_dropped_while_capturing_releases_everything() {
    let device = device();
    let (trunk, branch) = (
        device.create_stream().unwrap(),
        device.create_stream().unwrap(),
    );
    begin(&device, &trunk).unwrap();
    fork(&device, &trunk, &branch).unwrap();
    device
        .retain(&trunk, device.allocate_symmetric(1).unwrap())
        .unwrap();
    drop(trunk);
    assert_eq!(device.captures_active(), 0);
    assert_eq!(device.capture_state(&branch).unwrap(), None);
    device.collect();
    assert_eq!(device.mapped_bytes(), 0);
}

#[test]
fn a_fence_orders_streams_and_never_waits_for_its_own() {
    let device = device();
    let one = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let two = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let fence = device.create_fence().unwrap();
    device.wait(&fence, &one).unwrap();
    let gate = Gate::default();
    let held = gate.clone();
    enqueue(&device, &one, move || {
        held.pass();
        Ok(())
    })
    .unwrap();
    device.record(&fence, &one).unwrap();
    device.wait(&fence, &one).unwrap();
    device.wait(&fence, &two).unwrap();
    assert!(!device.query(&two).unwrap());
    gate.open();
    device.synchronize(&two).unwrap();
    assert!(device.query(&one).unwrap());
}

#[test]
fn an_eager_record_on_a_capturing_stream_is_no_node() {
    let device = device();
    let mut stream = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let other = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let fence = device.create_fence().unwrap();
    let gate = Gate::default();
    let held = gate.clone();
    enqueue(&device, &stream, move || {
        held.pass();
        Ok(())
    })
    .unwrap();
    let capture = Capture::begin(&*device, &mut stream).unwrap();
    device.record_eager(&fence, capture.stream()).unwrap();
    device.wait(&fence, &other).unwrap();
    assert!(!device.query(&other).unwrap());
    gate.open();
    device.synchronize(&other).unwrap();
    assert_eq!(capture.end().unwrap().node_count(), 0);
}

#[test]
fn what_a_kernel_enqueued_before_it_panicked_is_waited_for() {
    let device = device();
    let any: Arc<dyn Device> = Arc::<HostDevice>::clone(&device);
    let stream = || device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let (before, one, two) = (stream(), stream(), stream());
    let values = Buffer::from_slice(&any, &[0_u8; 4], &before).unwrap();
    let (gate, late) = (Gate::default(), Arc::new(AtomicU64::new(0)));
    let held = gate.clone();
    let launched = catch_unwind(AssertUnwindSafe(|| {
        kernel::launch(&*device, &[&values], &one, || {
            enqueue(&device, &one, move || {
                held.pass();
                Ok(())
            })?;
            resume_unwind(Box::new("the launch panicked"));
            #[expect(unreachable_code, reason = "it tells the type")]
            Ok(())
        })
    }));
    assert!(launched.is_err());
    let seen = Arc::clone(&late);
    kernel::launch(&*device, &[&values], &two, || {
        enqueue(&device, &two, move || {
            seen.store(1, Ordering::SeqCst);
            Ok(())
        })
    })
    .unwrap();
    // The second stream waits for the first, for which nothing else waits, or runs its work.
    let first = device.queue(&one).unwrap().progress();
    while !first.is_waited_for() && late.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let early = late.load(Ordering::SeqCst);
    gate.open();
    device.synchronize(&two).unwrap();
    assert_eq!(early, 0, "used beside what was enqueued before");
}
