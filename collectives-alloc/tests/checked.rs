//! Ranks that disagree get the same typed error before anything is enqueued, on any backend.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use rstest::rstest;

use collectives_alloc::checked::Checked;
use collectives_alloc::config::ScratchConfig;
use collectives_core::addr::{Addr, Operand, WindowId, WindowSlice};
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::{Error, ErrorKind, Field, Misuse, Result};
use collectives_core::rank::{CommId, Rank};
use collectives_core::reduce::{ReduceOp, Scalar};
use collectives_core::stream::StreamRef;
use collectives_core::submission::{Copy, KernelChoice, Submission};

use crate::mock::{MockComm, world};

#[expect(
    dead_code,
    reason = "shared with the tests of the pool, which use all of it"
)]
#[path = "pool/mock.rs"]
mod mock;

const DEADLINE: Duration = Duration::from_secs(20);
const RANKS: usize = 3;

/// An operand of `f32` elements; its address is another one on every rank.
fn at(rank: usize, place: usize, elements: usize) -> Operand {
    let value = (rank + 1) << 32 | place;
    let addr = Addr::from_ptr(std::ptr::without_provenance_mut::<u8>(value));
    Operand::new(addr, elements * 4)
}

fn sum(rank: usize, elements: usize) -> Collective<'static> {
    Collective {
        op: Op::AllReduce(ReduceOp::Sum),
        dtype: DType::F32,
        send: at(rank, 0x1000, elements),
        recv: at(rank, 0x1000, elements),
        counts: Counts::Even(elements),
    }
}

fn windowed(comm: CommId, window: u64, offset: usize, operand: Operand) -> Operand {
    operand.in_window(WindowSlice {
        comm,
        window: WindowId(window),
        offset,
    })
}

/// The same calls in places of their own.
fn apart(calls: Vec<Collective<'static>>) -> Vec<Collective<'static>> {
    let moved = |(index, call): (usize, Collective<'static>)| {
        let to = |side: Operand| Operand {
            addr: side.addr.offset(index << 16),
            ..side
        };
        call.with_operands(to(call.send), to(call.recv))
    };
    calls.into_iter().enumerate().map(moved).collect()
}

/// Makes one call as who has not checked it does.
fn enqueue(
    comm: &mut dyn Communicator,
    calls: &[Collective<'_>],
    stream: &StreamRef,
) -> Result<()> {
    let submission = Submission::checked(comm, calls, stream)?;
    // SAFETY: The calls were checked, and the mock touches no operand.
    unsafe { comm.enqueue(&submission) }
}

/// What every rank gets for the calls it makes.
fn outcomes(ops: impl Fn(usize, CommId) -> Vec<Collective<'static>> + Sync) -> Vec<Result<()>> {
    world(RANKS, |comm| {
        let ops = apart(ops(comm.rank(), comm.info().id));
        let stream = comm.stream();
        enqueue(&mut Checked::new(DEADLINE).around(comm), &ops, &stream)
    })
}

/// The one mismatch that all ranks got.
fn mismatch(outcomes: Vec<Result<()>>) -> ErrorKind {
    let kinds: Vec<_> = outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap_err().kind().clone())
        .collect();
    assert!(kinds.iter().all(|kind| *kind == kinds[0]), "{kinds:?}");
    kinds[0].clone()
}

type Ops = fn(usize) -> Vec<Collective<'static>>;

fn broadcast(rank: usize, root: u32) -> Collective<'static> {
    let root = Rank(root);
    let has_input = root.index() == rank;
    Collective {
        op: Op::Broadcast { root },
        send: if has_input {
            at(rank, 0x1000, 4)
        } else {
            Operand::EMPTY
        },
        ..sum(rank, 4)
    }
}

fn gather(rank: usize, counts: &'static [usize; RANKS]) -> Collective<'static> {
    Collective {
        op: Op::AllGather,
        send: at(rank, 0x9000, counts[rank]),
        recv: at(rank, 0x1000, counts.iter().sum()),
        counts: Counts::Uneven(counts),
        ..sum(rank, 1)
    }
}

fn with<T>(rank: usize, usual: T, odd: T) -> T {
    if rank == 1 { odd } else { usual }
}

#[rstest]
#[case::operation(|rank| vec![with(rank, sum(rank, 4), broadcast(rank, 0))],
    Field::Operation, "broadcast f32", "all_reduce sum f32")]
#[case::dtype(|rank| vec![Collective { dtype: with(rank, DType::F32, DType::I32), ..sum(rank, 4) }],
    Field::DType, "i32", "f32")]
#[case::reduction(|rank| {
        let op = Op::AllReduce(with(rank, ReduceOp::Sum, ReduceOp::Max));
        vec![Collective { op, ..sum(rank, 4) }]
    }, Field::Reduction, "max", "sum")]
#[case::count(|rank| vec![sum(rank, with(rank, 4, 5))], Field::Count, "5", "4")]
#[case::nothing(|rank| vec![sum(rank, with(rank, 4, 0))], Field::Count, "0", "4")]
#[case::root(|rank| vec![broadcast(rank, with(rank, 0, 2))], Field::Root, "2", "0")]
#[case::group(|rank| vec![sum(rank, 4); with(rank, 1, 2)], Field::GroupLength, "2", "1")]
#[case::second_of_a_group(|rank| vec![sum(rank, 4), sum(rank, with(rank, 4, 8))],
    Field::Count, "8", "4")]
#[case::even_and_uneven(|rank| {
        let uneven = gather(rank, &[1, 2, 1]);
        let even = Collective { counts: Counts::Even(1), send: at(rank, 0x9000, 1),
            recv: at(rank, 0x1000, 3), ..uneven };
        vec![with(rank, even, uneven)]
    }, Field::Count, "a call that compares the counts vector here",
        "a call that compares the count here")]
#[case::invalid(|rank| vec![with(rank, sum(rank, 4),
        Collective { recv: at(rank, 0x1004, 4), ..sum(rank, 4) })],
    Field::Operation, "a call that its own checks refuse", "a valid call")]
fn a_difference_is_named(
    #[case] ops: Ops,
    #[case] field: Field,
    #[case] theirs: &str,
    #[case] ours: &str,
) {
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field,
        theirs: theirs.to_owned(),
        ours: ours.to_owned(),
    };
    assert_eq!(mismatch(outcomes(|rank, _| ops(rank))), expected);
}

#[test]
fn counts_vectors_are_compared_whole() {
    let kind = mismatch(outcomes(|rank, _| {
        vec![gather(rank, with(rank, &[1, 2, 3], &[3, 2, 1]))]
    }));
    let ErrorKind::Mismatch { rank, field, .. } = kind else {
        panic!("{kind:?}");
    };
    assert_eq!((rank, field), (Rank(1), Field::Counts));
}

#[rstest]
#[case::one_in_ordinary_memory(|rank| (rank != 1).then_some((0, 64)), Field::Window,
    "recv in ordinary memory", "recv in window 0")]
#[case::another_window(|rank| Some((u64::from(rank == 1), 64)), Field::Window, "recv in window 1",
    "recv in window 0")]
#[case::another_offset(|rank| Some((0, with(rank, 64, 128))), Field::Offset, "recv at 128",
    "recv at 64")]
fn places_are_compared(
    #[case] place: fn(usize) -> Option<(u64, usize)>,
    #[case] field: Field,
    #[case] theirs: &str,
    #[case] ours: &str,
) {
    let kind = mismatch(outcomes(|rank, comm| {
        let call = sum(rank, 4);
        let recv = match place(rank) {
            Some((window, offset)) => windowed(comm, window, offset, call.recv),
            None => call.recv,
        };
        vec![Collective { recv, ..call }]
    }));
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field,
        theirs: theirs.to_owned(),
        ours: ours.to_owned(),
    };
    assert_eq!(kind, expected);
}

#[test]
fn calls_that_agree_pass() {
    // Addresses differ everywhere, only the root of a broadcast sends, an even counts vector is an
    // even count, and the scalars of a pre-multiplied sum are each rank's own.
    let results = outcomes(|rank, comm| {
        let place = windowed(comm, 3, 4096, at(rank, 0x1000, 4));
        let scalar = Scalar::new(f32::from(u8::try_from(rank).unwrap()));
        let even: &[usize] = &[2; RANKS];
        let own_part = 4096 + rank * 8;
        vec![
            Collective {
                send: place,
                recv: place,
                ..sum(rank, 4)
            },
            Collective {
                op: Op::AllReduce(ReduceOp::PreMulSum(scalar)),
                ..sum(rank, 4)
            },
            broadcast(rank, 2),
            Collective {
                op: Op::AllGather,
                send: windowed(comm, 3, own_part, at(rank, 0x1000 + rank * 8, 2)),
                recv: windowed(comm, 3, 4096, at(rank, 0x1000, 2 * RANKS)),
                counts: if rank == 0 {
                    Counts::Even(2)
                } else {
                    Counts::Uneven(even)
                },
                ..sum(rank, 1)
            },
            // A rank without elements need not say where they would be.
            Collective {
                send: if rank == 0 {
                    Operand::EMPTY
                } else {
                    windowed(comm, 5, 0, at(rank, 0x9000, rank))
                },
                ..gather(rank, &[0, 1, 2])
            },
            Collective::BARRIER,
        ]
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

/// What rank `from` sends to rank `to`.
const MATRIX: [[usize; RANKS]; RANKS] = [[1, 2, 3], [0, 0, 4], [5, 1, 0]];
const TRANSPOSED: [[usize; RANKS]; RANKS] = [[1, 0, 5], [2, 0, 1], [3, 4, 0]];
const WRONG: [usize; RANKS] = [2, 0, 2];

fn all_to_all(rank: usize, recv_counts: &'static [usize]) -> Collective<'static> {
    let counts = &MATRIX[rank];
    Collective {
        op: Op::AllToAll {
            recv_counts: Counts::Uneven(recv_counts),
        },
        send: at(rank, 0x1000, counts.iter().sum()),
        recv: at(rank, 0x9000, recv_counts.iter().sum()),
        counts: Counts::Uneven(counts),
        ..sum(rank, 1)
    }
}

#[test]
fn an_all_to_all_is_compared_pair_by_pair() {
    let fine = outcomes(|rank, _| vec![all_to_all(rank, &TRANSPOSED[rank])]);
    assert!(fine.iter().all(Result::is_ok), "{fine:?}");
    let kind = mismatch(outcomes(|rank, _| {
        vec![all_to_all(rank, with(rank, &TRANSPOSED[rank], &WRONG))]
    }));
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field: Field::Counts,
        theirs: "2 elements from rank 2".to_owned(),
        ours: "1 elements for it".to_owned(),
    };
    assert_eq!(kind, expected);
}

#[test]
fn a_mistake_that_all_ranks_make_is_a_misuse() {
    let results = outcomes(|rank, _| {
        vec![Collective {
            recv: at(rank, 0x1004, 4),
            ..sum(rank, 4)
        }]
    });
    for result in results {
        assert_eq!(result.unwrap_err().misuse(), Some(&Misuse::Overlap));
    }
}

#[test]
fn a_window_of_another_communicator_is_found() {
    let results = outcomes(|rank, comm| {
        let comm = with(rank, comm, CommId::fresh());
        let place = windowed(comm, 0, 0, at(rank, 0x1000, 4));
        vec![Collective {
            send: place,
            recv: place,
            ..sum(rank, 4)
        }]
    });
    let sources = results.iter().filter(|result| {
        let error: &dyn std::error::Error = result.as_ref().unwrap_err();
        error.source().is_some()
    });
    assert_eq!(sources.count(), 1, "the rank at fault knows why");
    assert!(matches!(
        mismatch(results),
        ErrorKind::Mismatch { rank: Rank(1), .. }
    ));
}

#[test]
fn a_call_that_only_one_rank_captures_is_found() {
    let results = world(RANKS, |comm| {
        let stream = comm.stream();
        if comm.rank() == 1 {
            comm.mock.begin(&stream);
        }
        let ops = [sum(comm.rank(), 4)];
        enqueue(&mut Checked::new(DEADLINE).around(comm), &ops, &stream)
    });
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field: Field::Capture,
        theirs: "capturing".to_owned(),
        ours: "not capturing".to_owned(),
    };
    assert_eq!(mismatch(results), expected);
}

#[test]
fn messages_are_left_out() {
    world(RANKS, |comm| {
        let stream = comm.stream();
        let rank = comm.rank();
        let mut checked = Checked::new(DEADLINE).around(comm);
        let message = Collective {
            op: Op::Send { to: Rank(0) },
            recv: Operand::EMPTY,
            ..sum(rank, 4)
        };
        if rank == 1 {
            enqueue(&mut checked, &[message], &stream).unwrap();
            // Whatever is wrong with a message is the affair of two ranks.
            let nowhere = Collective {
                op: Op::Send { to: Rank(9) },
                ..message
            };
            let error = enqueue(&mut checked, &[nowhere], &stream).unwrap_err();
            assert!(error.misuse().is_some(), "{error}");
            assert_eq!(checked.layer().rounds(), 0);
        }
        let group = apart(vec![message, sum(rank, 4)]);
        enqueue(&mut checked, &group[usize::from(rank == 0)..], &stream).unwrap();
        assert_eq!(checked.layer().rounds(), 1);
    });
}

#[test]
fn copies_are_no_affair_of_others() {
    world(RANKS, |comm| {
        let (stream, rank) = (comm.stream(), comm.rank());
        let mut checked = Checked::new(DEADLINE).around(comm);
        let copies: Vec<_> = (0..rank)
            .map(|index| Copy {
                dst: at(rank, index << 8, 16).addr,
                src: at(rank, 0x8000 + (index << 8), 16).addr,
                bytes: 16,
            })
            .collect();
        let local = Submission {
            copies_in: &copies,
            ..Submission::on(&stream, None)
        };
        if rank == 1 {
            // SAFETY: The mock copies nothing.
            unsafe { checked.enqueue(&local) }.unwrap();
            assert_eq!(checked.layer().rounds(), 0, "a local submission");
        }
        let calls = [sum(rank, 4)];
        let staged = Submission {
            calls: &calls,
            ..local
        };
        // SAFETY: As above.
        unsafe { checked.enqueue(&staged) }.unwrap();
        assert_eq!(checked.layer().rounds(), 1);
    });
}

#[test]
fn the_choice_of_kernels_is_compared() {
    let results = world(RANKS, |comm| {
        let (stream, rank) = (comm.stream(), comm.rank());
        let mut checked = Checked::new(DEADLINE).around(comm);
        let calls = [sum(rank, 4)];
        let submission = Submission {
            calls: &calls,
            kernel: with(rank, KernelChoice::Any, KernelChoice::Symmetric),
            ..Submission::on(&stream, None)
        };
        // SAFETY: The mock touches no operand.
        unsafe { checked.enqueue(&submission) }
    });
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field: Field::Kernel,
        theirs: "symmetric ones".to_owned(),
        ours: "any".to_owned(),
    };
    assert_eq!(mismatch(results), expected);
}

fn with_memory(
    comm: &mut MockComm,
    bytes: usize,
    body: impl FnOnce(&mut dyn Communicator, collectives_core::memory::Memory) -> Result<()>,
) -> Result<()> {
    let mut layered = Checked::new(DEADLINE).around(comm);
    let memory = layered.symmetric().unwrap().allocate(bytes, None)?;
    body(&mut layered, memory)
}

#[test]
fn sizes_of_registered_memory_are_compared() {
    let results = world(RANKS, |comm| {
        let bytes = with(comm.rank(), 2 << 20, 4 << 20);
        with_memory(comm, bytes, |comm, memory| {
            comm.symmetric().unwrap().register(&memory).map(drop)
        })
    });
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field: Field::Bytes,
        theirs: (4 << 20).to_string(),
        ours: (2 << 20).to_string(),
    };
    assert_eq!(mismatch(results), expected);
}

#[test]
fn retiring_is_compared_and_other_calls_are_told_apart() {
    let results = world(RANKS, |comm| {
        let rank = comm.rank();
        with_memory(comm, 1, |comm, memory| {
            let symmetric = comm.symmetric().unwrap();
            let first = symmetric.register(&memory)?;
            let error = symmetric
                .retire(with(rank, first, WindowId(7)))
                .unwrap_err();
            assert!(matches!(
                error.kind(),
                ErrorKind::Mismatch {
                    field: Field::Window,
                    ..
                }
            ));
            assert_eq!(error.operation(), Some("retire"));
            if rank == 1 {
                symmetric.register(&memory).map(drop)
            } else {
                symmetric.retire(first)
            }
        })
    });
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field: Field::Order,
        theirs: "register".to_owned(),
        ours: "retire".to_owned(),
    };
    assert_eq!(mismatch(results), expected);
}

#[test]
fn a_rank_that_does_not_call_is_absent() {
    let deadline = Duration::from_millis(50);
    let results = world(2, |comm| {
        let stream = comm.stream();
        let ops = [sum(comm.rank(), 4)];
        let is_first = comm.rank() == 0;
        let mut checked = Checked::new(deadline).around(comm);
        is_first.then(|| enqueue(&mut checked, &ops, &stream))
    });
    let error: &Error = results[0].as_ref().unwrap().as_ref().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
}

#[test]
fn configuration_decides_whether_calls_are_checked() {
    for check in [false, true] {
        let mut config = ScratchConfig::default();
        config.check = check;
        let comm = config.decorate(Box::new(MockComm::alone()));
        assert_eq!(format!("{comm:?}").contains("Checked"), check);
    }
}
