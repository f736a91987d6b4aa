//! Captures through the handle: what they own, and when it goes.

use std::sync::Arc;

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::{ErrorKind, MissedWhen, Misuse};
use collectives_core::graph::Capture;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::{all, device, ranks};

#[rstest]
fn replays_are_exact_after_growth_and_after_every_handle_is_gone(
    #[values("exact", "replace", "geometric", "geometric-class")] policy: &str,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let results = ranks(mode, 3, policy, |collectives, stream| {
        let device = device(collectives);
        let other = device.create_stream()?;
        let mut graphs = Vec::new();
        for size in [100_usize, 300_000, 1_000_000] {
            let mut tensor = Buffer::<u32>::zeroed(&device, size, stream)?;
            collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
            let capture = Capture::begin(&*device, stream)?;
            collectives.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
            let template = capture.end()?;
            graphs.push((tensor, template.instantiate()?));
        }
        for round in 1..4_u32 {
            let mut grown = Buffer::from_slice(&device, &vec![1_u32; 2_000_000], stream)?;
            collectives.all_reduce(&mut grown, ReduceOp::Sum, stream)?;
            for (index, (tensor, graph)) in graphs.iter_mut().enumerate() {
                let stream = if index % 2 == 0 { &*stream } else { &other };
                tensor.write(&vec![round; tensor.len()], stream)?;
                graph.launch(&*device, stream)?;
                assert!(tensor.read(stream)?.iter().all(|&value| value == 3 * round));
            }
            assert!(grown.read(stream)?.iter().all(|&value| value == 3));
        }
        Ok(())
    });
    for result in results {
        result.unwrap();
    }
}

#[rstest]
fn a_miss_while_capturing_names_what_to_reserve_and_the_capture_goes_on(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 2, |collectives, stream| {
        let device = device(collectives);
        let _plan = collectives.reserve(&[Request::new(4096)])?;
        let mut small = Buffer::from_slice(&device, &[1_u8; 100], stream)?;
        let mut large = Buffer::from_slice(&device, &vec![1_u8; 5 << 20], stream)?;
        let before = collectives.stats().registrations;
        let capture = Capture::begin(&*device, stream)?;
        collectives.all_reduce(&mut small, ReduceOp::Sum, capture.stream())?;
        let error = collectives
            .all_reduce(&mut large, ReduceOp::Sum, capture.stream())
            .unwrap_err();
        let ErrorKind::NeedsReserve { bytes, when, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!((*bytes, *when), (5 << 20, MissedWhen::Capturing));
        assert!(error.to_string().contains("reserve"), "{error}");
        let mut graph = capture.end()?.instantiate()?;
        assert_eq!(collectives.stats().registrations, before);
        graph.launch(&*device, stream)?;
        assert_eq!(small.read(stream)?, [2; 100]);
        Ok(())
    });
}

#[rstest]
fn reading_and_writing_a_buffer_is_refused_while_its_stream_captures(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 1, |collectives, stream| {
        let device = device(collectives);
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 4], stream)?;
        let capture = Capture::begin(&*device, stream)?;
        let error = tensor.read(capture.stream()).unwrap_err();
        assert!(matches!(
            error.misuse(),
            Some(Misuse::BlocksInCapture { .. })
        ));
        let error = tensor.write(&[2; 4], capture.stream()).unwrap_err();
        assert!(matches!(
            error.misuse(),
            Some(Misuse::BlocksInCapture { .. })
        ));
        capture.end()?;
        assert_eq!(tensor.read(stream)?, [1; 4]);
        Ok(())
    });
}

#[rstest]
fn closing_never_waits_for_graphs_and_a_later_launch_is_refused(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let results = crate::world(mode, 2).run(|comm| {
        let mut collectives = Collectives::new(comm, crate::pool("geometric")?);
        let device = Arc::clone(collectives.device());
        let mut stream = device.create_stream()?;
        let _plan = collectives.reserve(&[Request::new(4096)])?;
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 100], &stream)?;
        let capture = Capture::begin(&*device, &mut stream)?;
        collectives.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
        let mut graph = capture.end()?.instantiate()?;
        let deferred = collectives.close()?;
        assert_eq!((deferred.windows, deferred.mapped_bytes), (1, 2 << 20));
        assert!(deferred.communicator);
        let error = graph.launch(&*device, &stream).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Closed);
        assert_eq!(tensor.read(&stream)?, [1; 100]);
        Ok(())
    });
    for result in results {
        let result: collectives_core::error::Result<()> = result;
        result.unwrap();
    }
}

#[rstest]
fn two_hundred_captures_leave_nothing_behind(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 2, |collectives, stream| {
        let device = device(collectives);
        let _plan = collectives.reserve(&[Request::new(4096)])?;
        for _ in 0..200 {
            let mut tensor = Buffer::from_slice(&device, &[1_u8; 100], stream)?;
            let capture = Capture::begin(&*device, stream)?;
            collectives.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
            let mut graph = capture.end()?.instantiate()?;
            graph.launch(&*device, stream)?;
            assert_eq!(tensor.read(stream)?, [2; 100]);
        }
        while collectives.trim()?.held_bytes > 0 {
            std::thread::yield_now();
        }
        assert_eq!(collectives.stats().mapped_bytes(), 0);
        Ok(())
    });
}

#[rstest]
fn a_launch_between_a_lease_and_its_end_is_refused(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let results = crate::world(mode, 2).run(|mut comm| {
        let mut scratch = crate::pool("geometric")?;
        let device = Arc::clone(comm.device());
        let mut stream = device.create_stream()?;
        let mut collectives = Collectives::new(&mut comm, &mut scratch);
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 100], &stream)?;
        collectives.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
        let capture = Capture::begin(&*device, &mut stream)?;
        collectives.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
        let mut graph = capture.end()?.instantiate()?;
        drop(collectives);

        let lease = scratch.acquire(&mut comm, Request::new(100), &stream, None)?;
        let error = graph.launch(&*device, &stream).unwrap_err();
        assert_eq!(error.misuse(), Some(&Misuse::InUse));
        lease.complete()?;
        graph.launch(&*device, &stream)?;
        assert_eq!(tensor.read(&stream)?, [4; 100]);
        let _deferred = Collectives::new(comm, scratch).close()?;
        Ok(())
    });
    for result in results {
        let result: collectives_core::error::Result<()> = result;
        result.unwrap();
    }
}
