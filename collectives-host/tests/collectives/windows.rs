//! Symmetric memory.

use collectives_core::addr::{Operand, WindowId};
use collectives_core::collective::{Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::{ErrorKind, Field, Misuse, Unsupported};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_host::model::{AddressOrder, Call, DeviceModel};
use collectives_host::world::HostWorld;
use rstest::rstest;

use crate::common::{Rig, call, enqueue, on_every_rank};

#[test]
fn windows_are_found_by_address_and_counted() {
    on_every_rank(2, |rig| {
        let mut windows = Vec::new();
        for ordinal in 0..5 {
            let symmetric = rig.comm.symmetric().unwrap();
            let memory = symmetric.allocate(10_000, None).unwrap();
            assert_eq!(symmetric.register(&memory).unwrap(), WindowId(ordinal));
            windows.push(memory);
        }
        for (ordinal, memory) in windows.iter().enumerate() {
            let found = rig.comm.window_of(memory.addr().offset(77), 100).unwrap();
            assert_eq!((found.window, found.offset), (WindowId(ordinal as u64), 77));
            assert_eq!(found.comm, rig.comm.info().id);
            assert!(
                rig.comm
                    .window_of(memory.addr().offset(1), memory.bytes())
                    .is_none()
            );
            assert!(rig.comm.window_of(memory.addr(), memory.bytes()).is_some());
        }
        let symmetric = rig.comm.symmetric().unwrap();
        symmetric.retire(WindowId(2)).unwrap();
        assert_eq!(symmetric.window_count(), 4);
        assert_eq!(
            symmetric.retire(WindowId(2)).unwrap_err().misuse(),
            Some(&Misuse::UnknownWindow)
        );
        assert_eq!(
            symmetric.register(&windows[2]).unwrap(),
            WindowId(5),
            "ordinals are never reused"
        );
        assert!(rig.comm.window_of(windows[2].addr(), 1).is_some());
    });
}

#[test]
fn a_peers_part_is_where_peer_address_says() {
    on_every_rank(3, |rig| {
        let me = rig.rank();
        let symmetric = rig.comm.symmetric().unwrap();
        let memory = symmetric.allocate(4096, None).unwrap();
        let window = symmetric.register(&memory).unwrap();
        // SAFETY: The memory is this rank's own, and the barrier orders the write.
        unsafe { memory.addr().offset(8).as_ptr::<u64>().write(me as u64) };
        rig.barrier();
        for peer in 0..3 {
            let symmetric = rig.comm.symmetric().unwrap();
            let addr = symmetric.peer_address(window, Rank::new(peer), 8).unwrap();
            // SAFETY: The peer wrote it before the barrier and keeps it until the next.
            assert_eq!(unsafe { addr.as_ptr::<u64>().read() }, peer as u64);
        }
        let symmetric = rig.comm.symmetric().unwrap();
        assert!(symmetric.peer_address(window, Rank(3), 0).is_err());
        assert!(
            symmetric
                .peer_address(window, Rank(0), memory.bytes() + 1)
                .is_err()
        );
        assert!(symmetric.peer_address(WindowId(9), Rank(0), 0).is_err());
        rig.barrier();
    });
}

#[test]
fn one_address_range_has_one_window() {
    on_every_rank(2, |rig| {
        let symmetric = rig.comm.symmetric().unwrap();
        let memory = symmetric.allocate(1, None).unwrap();
        symmetric.register(&memory).unwrap();
        for _ in 0..100 {
            let error = symmetric.register(&memory).unwrap_err();
            assert_eq!(error.misuse(), Some(&Misuse::AlreadyRegistered));
        }
        assert_eq!(symmetric.window_count(), 1);
    });
}

#[test]
fn memory_of_one_rank_that_cannot_be_registered_fails_all_alike() {
    let errors = on_every_rank(3, |rig| {
        let ordinary = rig.comm.device().allocate(4096).unwrap();
        let symmetric = rig.comm.symmetric().unwrap();
        let memory = symmetric.allocate(4096, None).unwrap();
        let odd = rig.comm.info().rank == Rank(2);
        let symmetric = rig.comm.symmetric().unwrap();
        let error = symmetric
            .register(if odd { &ordinary } else { &memory })
            .unwrap_err();
        assert_eq!(symmetric.window_count(), 0);
        assert_eq!(symmetric.register(&memory).unwrap(), WindowId(0));
        (error.kind().clone(), error.rank())
    });
    assert!(matches!(
        errors[0].0,
        ErrorKind::Misuse(Misuse::NotRegistrable { .. })
    ));
    assert!(errors.iter().all(|error| *error == errors[0]));
    assert_eq!(errors[0].1, Some(Rank(2)));
}

#[test]
fn sizes_and_windows_that_differ_are_mismatches() {
    on_every_rank(3, |rig| {
        let me = rig.rank();
        let symmetric = rig.comm.symmetric().unwrap();
        let bytes = if me == 1 { 3 << 20 } else { 1 << 20 };
        let memory = symmetric.allocate(bytes, None).unwrap();
        let error = symmetric.register(&memory).unwrap_err();
        let by = |error: &collectives_core::error::Error, wanted| matches!(error.kind(), ErrorKind::Mismatch { rank: Rank(1), field, .. } if *field == wanted);
        assert!(by(&error, Field::Bytes), "{error}");
        let memories: Vec<_> = (0..2)
            .map(|_| symmetric.allocate(1, None).unwrap())
            .collect();
        let windows: Vec<_> = memories
            .iter()
            .map(|memory| symmetric.register(memory).unwrap())
            .collect();
        let error = symmetric.retire(windows[usize::from(me == 1)]).unwrap_err();
        assert!(by(&error, Field::Window), "{error}");
        assert_eq!(symmetric.window_count(), 2);
    });
}

#[rstest]
fn a_refusal_at_one_rank_is_everybodys(#[values(0, 1, 2)] refusing: usize) {
    let world = HostWorld::new(3).model(move |rank| {
        let model = DeviceModel::new();
        if rank.index() == refusing {
            model.with_refusal(Call::Register, 1)
        } else {
            model
        }
    });
    let kinds = world.run(|comm| {
        let mut rig = Rig::new(comm);
        let symmetric = rig.comm.symmetric().unwrap();
        let memory = symmetric.allocate(1, None).unwrap();
        let error = symmetric.register(&memory).unwrap_err();
        assert!(!error.poisons());
        symmetric.register(&memory).unwrap();
        let _ = rig.comm.shutdown().unwrap();
        (error.kind().clone(), error.rank())
    });
    assert!(kinds.iter().all(|kind| *kind == kinds[0]));
    assert_eq!(kinds[0].1, Some(Rank::new(refusing)));
}

#[test]
fn null_windows_are_a_typed_reason() {
    let world =
        HostWorld::new(2).model(|rank| DeviceModel::new().with_null_windows(rank == Rank(1)));
    world.run(|comm| {
        let mut rig = Rig::new(comm);
        let symmetric = rig.comm.symmetric().unwrap();
        let memory = symmetric.allocate(1, None).unwrap();
        let error = symmetric.register(&memory).unwrap_err();
        assert_eq!(
            error.kind(),
            &ErrorKind::Unsupported(Unsupported::NullWindow)
        );
        let _ = rig.comm.shutdown().unwrap();
    });
}

#[rstest]
fn address_order_skew_and_multicast_change_no_result(#[values(false, true)] multicast: bool) {
    let world = HostWorld::new(3).model(move |rank| {
        let order = [
            AddressOrder::Ascending,
            AddressOrder::Descending,
            AddressOrder::Shuffled(7),
        ];
        DeviceModel::new()
            .with_granule(4096)
            .with_guard(64)
            .with_address_order(order[rank.index()])
            .with_multicast(multicast)
            .with_skew(std::time::Duration::from_micros(200), 5)
    });
    world.run(|comm| {
        let mut rig = Rig::new(comm);
        let me = rig.rank();
        let symmetric = rig.comm.symmetric().unwrap();
        let memories: Vec<_> = (0..6)
            .map(|_| symmetric.allocate(4096, None).unwrap())
            .collect();
        for memory in &memories {
            symmetric.register(memory).unwrap();
        }
        symmetric.retire(WindowId(2)).unwrap();
        symmetric.register(&memories[2]).unwrap();
        for (index, memory) in memories.iter().enumerate() {
            for len in [8_usize, 2000] {
                // SAFETY: The memory is this rank's own.
                unsafe {
                    memory
                        .addr()
                        .as_ptr::<u8>()
                        .write_bytes((index + me) as u8, len)
                };
                let slice = rig.comm.window_of(memory.addr(), len).unwrap();
                let side = Operand::new(memory.addr(), len).in_window(slice);
                let op = Op::AllReduce(ReduceOp::Sum);
                rig.run(&[call(op, DType::U8, side, side, Counts::Even(len))])
                    .unwrap();
                // SAFETY: As above.
                let bytes =
                    unsafe { std::slice::from_raw_parts(memory.addr().as_ptr::<u8>(), len) };
                assert!(bytes.iter().all(|&byte| usize::from(byte) == 3 * index + 3));
            }
        }
        let _ = rig.comm.shutdown().unwrap();
        rig.comm.host_device().check_memory().unwrap();
    });
}

#[test]
fn a_replay_on_a_window_that_was_retired_is_refused_and_its_bytes_are_gone() {
    on_every_rank(2, |rig| {
        let device = std::sync::Arc::clone(rig.comm.device());
        let host = std::sync::Arc::clone(rig.comm.host_device());
        let symmetric = rig.comm.symmetric().unwrap();
        let memory = symmetric.allocate(1, None).unwrap();
        let window = symmetric.register(&memory).unwrap();
        let slice = rig.comm.window_of(memory.addr(), 64).unwrap();
        let side = Operand::new(memory.addr(), 64).in_window(slice);
        let sum = call(
            Op::AllReduce(ReduceOp::Sum),
            DType::U8,
            side,
            side,
            Counts::Even(64),
        );
        let capture = collectives_core::graph::Capture::begin(&*device, &mut rig.stream).unwrap();
        // SAFETY: The memory outlives every launch that is not refused.
        unsafe { enqueue(&mut rig.comm, &[sum], capture.stream()).unwrap() };
        let mut graph = capture.end().unwrap().instantiate().unwrap();
        graph.launch(&*device, &rig.stream).unwrap();
        rig.barrier();
        rig.comm.symmetric().unwrap().retire(window).unwrap();
        drop(memory);
        device.collect();
        assert_eq!(
            host.mapped_bytes(),
            0,
            "a graph does not keep a window that was retired"
        );
        let error = graph.launch(&*device, &rig.stream).unwrap_err();
        assert_eq!(error.misuse(), Some(&Misuse::UnknownWindow));
        rig.barrier();
    });
}
