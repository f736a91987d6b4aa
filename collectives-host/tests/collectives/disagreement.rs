//! Ranks that disagree get the same typed error, nothing moves, and the communicator works on.

use collectives_core::addr::{Operand, WindowId, WindowSlice};
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::{ErrorKind, Field, Misuse};
use collectives_core::graph::Capture;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use rstest::rstest;

use crate::common::{Rig, call, enqueue, on_every_rank, operand};

const SUM: Op<'static> = Op::AllReduce(ReduceOp::Sum);

/// Rank 1 of three makes the `odd` calls, the others the `usual` ones.
fn disagree(
    field: Field,
    usual: impl Fn(&mut [u8]) -> Vec<Collective<'static>> + Sync,
    odd: impl Fn(&mut [u8]) -> Vec<Collective<'static>> + Sync,
) {
    let kinds = on_every_rank(3, |rig| {
        let mut bytes = vec![1_u8; 1 << 16];
        let calls = if rig.rank() == 1 {
            odd(&mut bytes)
        } else {
            usual(&mut bytes)
        };
        let error = rig.run(&calls).unwrap_err();
        assert_eq!(bytes, vec![1; 1 << 16], "no data moved");
        assert!(!error.poisons());
        works(rig);
        error.kind().clone()
    });
    assert!(kinds.iter().all(|kind| *kind == kinds[0]), "{kinds:?}");
    assert!(
        matches!(&kinds[0], ErrorKind::Mismatch { rank: Rank(1), field: found, .. } if *found == field),
        "{:?}",
        kinds[0]
    );
}

/// The communicator still works.
fn works(rig: &mut Rig) {
    let mut value = [1_u8; 3000];
    let side = operand(&mut value);
    let world_size = u8::try_from(rig.comm.info().world_size).unwrap();
    rig.run(&[call(SUM, DType::U8, side, side, Counts::Even(3000))])
        .unwrap();
    assert_eq!(value, [world_size; 3000]);
}

fn reduce(op: ReduceOp, dtype: DType, bytes: &mut [u8], len: usize) -> Collective<'static> {
    let side = operand(&mut bytes[..len]);
    call(
        Op::AllReduce(op),
        dtype,
        side,
        side,
        Counts::Even(len / dtype.size()),
    )
}

#[rstest]
fn on_the_operation(#[values(8, 1 << 15)] len: usize) {
    disagree(
        Field::Operation,
        |bytes| vec![reduce(ReduceOp::Sum, DType::F32, bytes, len)],
        |bytes| {
            let side = operand(&mut bytes[..len]);
            let send = Operand::EMPTY;
            let op = Op::Broadcast { root: Rank(0) };
            vec![call(op, DType::F32, send, side, Counts::Even(len / 4))]
        },
    );
}

#[test]
fn on_a_barrier() {
    disagree(
        Field::Operation,
        |bytes| vec![reduce(ReduceOp::Sum, DType::F32, bytes, 1 << 15)],
        |_| vec![Collective::BARRIER],
    );
}

#[rstest]
fn on_the_element_type(#[values(8, 1 << 15)] len: usize) {
    disagree(
        Field::DType,
        |bytes| vec![reduce(ReduceOp::Sum, DType::F32, bytes, len)],
        |bytes| vec![reduce(ReduceOp::Sum, DType::I32, bytes, len)],
    );
}

#[rstest]
fn on_the_reduction(#[values(8, 1 << 15)] len: usize) {
    disagree(
        Field::Reduction,
        |bytes| vec![reduce(ReduceOp::Sum, DType::F32, bytes, len)],
        |bytes| vec![reduce(ReduceOp::Max, DType::F32, bytes, len)],
    );
}

#[rstest]
#[case(8, 12)]
#[case(8, 1 << 15)]
#[case(1 << 15, 8)]
#[case(1 << 15, (1 << 15) + 4)]
fn on_the_count(#[case] usual: usize, #[case] odd: usize) {
    disagree(
        Field::Count,
        move |bytes| vec![reduce(ReduceOp::Sum, DType::F32, bytes, usual)],
        move |bytes| vec![reduce(ReduceOp::Sum, DType::F32, bytes, odd)],
    );
}

#[test]
fn on_the_counts_vector() {
    let gather = |bytes: &mut [u8], counts: &'static [usize; 3], me: usize| {
        let (send, recv) = bytes.split_at_mut(1 << 15);
        let total = counts.iter().sum();
        let (from, to) = (
            operand(&mut send[..counts[me]]),
            operand(&mut recv[..total]),
        );
        call(Op::AllGather, DType::U8, from, to, Counts::Uneven(counts))
    };
    let kinds = on_every_rank(3, |rig| {
        let mut bytes = vec![1_u8; 1 << 16];
        let counts = if rig.rank() == 2 {
            &[1, 2, 4]
        } else {
            &[1, 2, 3]
        };
        let error = rig
            .run(&[gather(&mut bytes, counts, rig.rank())])
            .unwrap_err();
        works(rig);
        error.kind().clone()
    });
    for kind in kinds {
        assert_eq!(
            kind,
            ErrorKind::Mismatch {
                rank: Rank(2),
                field: Field::Counts,
                theirs: "[1, 2, 4]".to_owned(),
                ours: "[1, 2, 3]".to_owned(),
            }
        );
    }
}

#[test]
fn on_what_an_all_to_all_sends() {
    let kinds = on_every_rank(2, |rig| {
        let (mut send, mut recv) = (vec![1_u8; 10], vec![0_u8; 11]);
        let (from, to) = (operand(&mut send), operand(&mut recv));
        // Both expect six elements of rank 0, which sends five.
        let recv_counts = Counts::Uneven(&[6, 5]);
        let op = Op::AllToAll { recv_counts };
        let error = rig
            .run(&[call(op, DType::U8, from, to, Counts::Even(5))])
            .unwrap_err();
        assert_eq!(recv, [0; 11]);
        works(rig);
        error.kind().clone()
    });
    assert_eq!(kinds[0], kinds[1]);
    assert!(matches!(
        kinds[0],
        ErrorKind::Mismatch {
            rank: Rank(0),
            field: Field::Counts,
            ..
        }
    ));
}

#[test]
fn on_the_root() {
    disagree(
        Field::Root,
        |bytes| {
            vec![call(
                Op::Gather { root: Rank(1) },
                DType::U8,
                operand(&mut bytes[..9]),
                Operand::EMPTY,
                Counts::Even(9),
            )]
        },
        |bytes| {
            vec![call(
                Op::Gather { root: Rank(0) },
                DType::U8,
                operand(&mut bytes[..9]),
                Operand::EMPTY,
                Counts::Even(9),
            )]
        },
    );
}

#[test]
fn on_the_length_of_a_group() {
    disagree(
        Field::GroupLength,
        |bytes| {
            vec![
                reduce(ReduceOp::Sum, DType::U8, bytes, 9),
                Collective::BARRIER,
            ]
        },
        |bytes| vec![reduce(ReduceOp::Sum, DType::U8, bytes, 9)],
    );
    disagree(
        Field::GroupLength,
        |_| vec![Collective::BARRIER; 2],
        |_| vec![Collective::BARRIER; 3],
    );
}

#[test]
fn on_one_operation_of_a_group() {
    disagree(
        Field::Count,
        |bytes| {
            vec![
                Collective::BARRIER,
                reduce(ReduceOp::Sum, DType::U8, bytes, 9000),
            ]
        },
        |bytes| {
            vec![
                Collective::BARRIER,
                reduce(ReduceOp::Sum, DType::U8, bytes, 9001),
            ]
        },
    );
}

#[rstest]
fn on_whether_they_capture(#[values(1, 2)] calls: usize, #[values(8, 1 << 15)] len: usize) {
    let kinds = on_every_rank(3, |rig| {
        let device = std::sync::Arc::clone(rig.comm.device());
        let mut bytes = vec![1_u8; len];
        let sum = reduce(ReduceOp::Sum, DType::U8, &mut bytes, len);
        let ops = [Collective::BARRIER, sum];
        let ops = &ops[2 - calls..];
        let error = if rig.rank() == 1 {
            let capture = Capture::begin(&*device, &mut rig.stream).unwrap();
            // SAFETY: The operand outlives the graph.
            let error = unsafe { enqueue(&mut rig.comm, ops, capture.stream()) };
            assert_eq!(capture.end().unwrap().node_count(), 0, "nothing recorded");
            error.unwrap_err()
        } else {
            rig.run(ops).unwrap_err()
        };
        assert_eq!(bytes, vec![1; len], "no data moved");
        assert!(!error.poisons());
        works(rig);
        error.kind().clone()
    });
    for kind in kinds {
        assert_eq!(
            kind,
            ErrorKind::Mismatch {
                rank: Rank(1),
                field: Field::Capture,
                theirs: "capturing".to_owned(),
                ours: "not capturing".to_owned(),
            }
        );
    }
}

#[test]
fn on_what_they_capture() {
    on_every_rank(3, |rig| {
        let device = std::sync::Arc::clone(rig.comm.device());
        let mut bytes = vec![1_u8; 64];
        let len = if rig.rank() == 1 { 63 } else { 64 };
        let odd = reduce(ReduceOp::Sum, DType::U8, &mut bytes, len);
        let good = reduce(ReduceOp::Sum, DType::U8, &mut bytes, 64);
        let capture = Capture::begin(&*device, &mut rig.stream).unwrap();
        // SAFETY: The operands outlive the graph.
        let error = unsafe { enqueue(&mut rig.comm, &[odd], capture.stream()) };
        assert!(matches!(
            error.unwrap_err().kind(),
            ErrorKind::Mismatch {
                rank: Rank(1),
                field: Field::Count,
                ..
            }
        ));
        // SAFETY: As above.
        unsafe { enqueue(&mut rig.comm, &[good], capture.stream()) }.unwrap();
        let mut graph = capture.end().unwrap().instantiate().unwrap();
        graph.launch(&*device, &rig.stream).unwrap();
        device.synchronize(&rig.stream).unwrap();
        assert_eq!(bytes, [3; 64]);
    });
}

#[test]
fn on_window_and_offset() {
    on_every_rank(3, |rig| {
        let bytes = 64 << 10;
        let symmetric = rig.comm.symmetric().unwrap();
        let memories: Vec<_> = (0..2)
            .map(|_| symmetric.allocate(bytes, None).unwrap())
            .collect();
        let windows: Vec<_> = memories
            .iter()
            .map(|memory| symmetric.register(memory).unwrap())
            .collect();
        let comm = rig.comm.info().id;
        let operand_at = |window: Option<usize>, offset: usize| {
            let side = Operand::new(memories[window.unwrap_or(0)].addr().offset(offset), 64);
            match window {
                None => side,
                Some(window) => side.in_window(WindowSlice {
                    comm,
                    window: windows[window],
                    offset,
                }),
            }
        };
        for (usual, odd, field) in [
            (
                operand_at(Some(0), 0),
                operand_at(Some(1), 0),
                Field::Window,
            ),
            (operand_at(Some(0), 0), operand_at(None, 0), Field::Window),
            (
                operand_at(Some(0), 0),
                operand_at(Some(0), 64),
                Field::Offset,
            ),
        ] {
            let side = if rig.rank() == 1 { odd } else { usual };
            let error = rig
                .run(&[call(SUM, DType::U8, side, side, Counts::Even(64))])
                .unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Mismatch { rank: Rank(1), field: found, .. } if *found == field),
                "{error}"
            );
            let side = operand_at(Some(1), 128);
            rig.run(&[call(SUM, DType::U8, side, side, Counts::Even(64))])
                .unwrap();
        }
    });
}

#[test]
fn operands_outside_the_window_they_name_are_misuse() {
    on_every_rank(1, |rig| {
        let symmetric = rig.comm.symmetric().unwrap();
        let memory = symmetric.allocate(4096, None).unwrap();
        let window = symmetric.register(&memory).unwrap();
        let comm = rig.comm.info().id;
        let good = WindowSlice {
            comm,
            window,
            offset: 64,
        };
        let side = Operand::new(memory.addr().offset(64), 64);
        let mut misuse = |slice| {
            let side = side.in_window(slice);
            let result = rig.run(&[call(SUM, DType::U8, side, side, Counts::Even(64))]);
            result.err().and_then(|error| error.misuse().cloned())
        };
        let outside = Some(Misuse::OutsideWindow { which: "send" });
        assert_eq!(misuse(good), None);
        assert_eq!(misuse(good.advance(1)), outside);
        assert_eq!(misuse(good.advance(usize::MAX - 64)), outside);
        let foreign = collectives_core::rank::CommId::fresh();
        assert_eq!(
            misuse(WindowSlice {
                comm: foreign,
                ..good
            }),
            Some(Misuse::UnknownWindow)
        );
        assert_eq!(
            misuse(WindowSlice {
                window: WindowId(7),
                ..good
            }),
            Some(Misuse::UnknownWindow)
        );
    });
}
