//! Asynchronous streams, several streams of one rank, and graphs.

use std::time::Duration;

use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::{ErrorKind, Field};
use collectives_core::graph::Capture;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_host::model::{DeviceModel, StreamMode};
use collectives_host::world::HostWorld;
use rstest::rstest;

use crate::common::{Rig, call, enqueue, on_every_rank, operand};

const SUM: Op<'static> = Op::AllReduce(ReduceOp::Sum);

fn with_streams<R: Send>(mode: StreamMode, body: impl Fn(&mut Rig) -> R + Sync) -> Vec<R> {
    let world = HostWorld::new(3)
        .model(move |_| DeviceModel::new().with_stream_mode(mode))
        .deadline(Duration::from_secs(20));
    world.run(|comm| {
        let mut rig = Rig::new(comm);
        let result = body(&mut rig);
        let _ = rig.comm.shutdown();
        result
    })
}

fn sum(bytes: &mut [u8]) -> Collective<'static> {
    let side = operand(bytes);
    call(SUM, DType::U8, side, side, Counts::Even(bytes.len()))
}

#[rstest]
fn operations_run_in_the_order_they_were_enqueued(
    #[values(StreamMode::Inline, StreamMode::Asynchronous)] mode: StreamMode,
) {
    with_streams(mode, |rig| {
        let other = rig.comm.device().create_stream().unwrap();
        let mut buffers: Vec<Vec<u8>> = (0..60).map(|len| vec![1; 1 + len * len * 5]).collect();
        // Every rank changes streams at points of its own; the calls are the same.
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let stream = if (index / (rig.rank() + 1)).is_multiple_of(2) {
                &rig.stream
            } else {
                &other
            };
            // SAFETY: The buffers live until both streams have been synchronised.
            unsafe { enqueue(&mut rig.comm, &[sum(buffer)], stream).unwrap() };
        }
        rig.comm.device().synchronize(&rig.stream).unwrap();
        rig.comm.device().synchronize(&other).unwrap();
        assert!(buffers.iter().flatten().all(|&byte| byte == 3));
    });
}

#[test]
fn counts_vectors_outlive_the_call() {
    with_streams(StreamMode::Asynchronous, |rig| {
        let me = rig.rank();
        let mut send = vec![me as u8; me + 1];
        let mut recv = vec![9_u8; 6];
        let (from, to) = (operand(&mut send), operand(&mut recv));
        {
            let counts = vec![1, 2, 3];
            let call = call(Op::AllGather, DType::U8, from, to, Counts::Uneven(&counts));
            // SAFETY: The operands live until the stream has been synchronised.
            unsafe { enqueue(&mut rig.comm, &[call], &rig.stream).unwrap() };
        }
        rig.comm.device().synchronize(&rig.stream).unwrap();
        assert_eq!(recv, [0, 1, 1, 2, 2, 2]);
    });
}

#[test]
fn a_mismatch_on_an_asynchronous_stream_surfaces_when_it_is_synchronised() {
    with_streams(StreamMode::Asynchronous, |rig| {
        let mut bytes = vec![1; if rig.rank() == 2 { 4000 } else { 5000 }];
        let error = rig.run(&[sum(&mut bytes)]).unwrap_err();
        let expected = matches!(
            error.kind(),
            ErrorKind::Mismatch {
                rank: Rank(2),
                field: Field::Count,
                ..
            }
        );
        assert!(expected, "{error}");
        // The stream has failed; the communicator works on another.
        rig.stream = rig.comm.device().create_stream().unwrap();
        rig.run(&[sum(&mut [1; 7])]).unwrap();
    });
}

#[rstest]
fn a_replay_uses_the_recorded_addresses_and_counts(
    #[values(StreamMode::Inline, StreamMode::Asynchronous)] mode: StreamMode,
) {
    with_streams(mode, |rig| {
        let device = std::sync::Arc::clone(rig.comm.device());
        let mut bytes = vec![0_u8; 5000];
        let (me, mut all) = (rig.rank(), vec![0_u8; 6]);
        let mut mine = vec![me as u8; me + 1];
        let (from, to) = (operand(&mut mine), operand(&mut all));
        let capture = Capture::begin(&*device, &mut rig.stream).unwrap();
        let counts = vec![1, 2, 3];
        let gather = call(Op::AllGather, DType::U8, from, to, Counts::Uneven(&counts));
        for calls in [&[sum(&mut bytes)][..], &[gather, Collective::BARRIER]] {
            // SAFETY: The operands outlive the graph.
            unsafe { enqueue(&mut rig.comm, calls, capture.stream()).unwrap() };
        }
        drop(counts);
        let graph = capture.end().unwrap();
        assert_eq!(bytes, [0; 5000], "recorded, not run");
        let mut executable = graph.instantiate().unwrap();
        for round in 1..=3 {
            bytes.fill(round);
            all.fill(0);
            executable.launch(&*device, &rig.stream).unwrap();
            device.synchronize(&rig.stream).unwrap();
            assert_eq!(bytes, [3 * round; 5000]);
            assert_eq!(all, [0, 1, 1, 2, 2, 2]);
            rig.run(&[sum(&mut [1; 9])]).unwrap();
        }
        let liveness = rig.comm.liveness();
        let deferred = rig.comm.shutdown().unwrap();
        assert!(deferred.communicator, "the graph owns the communicator");
        assert_eq!(deferred.windows, 0);
        let error = executable.launch(&*device, &rig.stream).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Closed);
        drop(executable);
        drop(graph);
        rig.comm.host_device().wait_for_destructors();
        assert!(liveness.is_alive(), "the handle is an owner too");
    });
}

#[test]
fn a_graph_keeps_its_windows_and_the_communicator_until_it_is_gone() {
    on_every_rank(2, |rig| {
        let device = std::sync::Arc::clone(rig.comm.device());
        let host = std::sync::Arc::clone(rig.comm.host_device());
        let symmetric = rig.comm.symmetric().unwrap();
        let (used, unused) = (
            symmetric.allocate(1, None).unwrap(),
            symmetric.allocate(1, None).unwrap(),
        );
        symmetric.register(&used).unwrap();
        symmetric.register(&unused).unwrap();
        let slice = rig.comm.window_of(used.addr(), 64).unwrap();
        let side = collectives_core::addr::Operand::new(used.addr(), 64).in_window(slice);
        let capture = Capture::begin(&*device, &mut rig.stream).unwrap();
        // SAFETY: The graph keeps the window mapped.
        unsafe {
            let sum = call(SUM, DType::U8, side, side, Counts::Even(64));
            enqueue(&mut rig.comm, &[sum], capture.stream()).unwrap();
        }
        let graph = capture.end().unwrap();
        let mapped = rig.comm.info().mapped(1);
        drop((used, unused));
        let deferred = rig.comm.shutdown().unwrap();
        assert_eq!((deferred.windows, deferred.mapped_bytes), (1, mapped));
        device.collect();
        assert_eq!(host.mapped_bytes(), mapped, "the graph's window is left");
        drop(graph);
        host.wait_for_destructors();
        device.collect();
        assert_eq!(host.mapped_bytes(), 0);
    });
}
