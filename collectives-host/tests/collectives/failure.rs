//! Ranks that come late, never, abort, panic or leave.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::agreement::Record;
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::{ErrorKind, Misuse};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_host::communicator::HostCommunicator;
use collectives_host::world::HostWorld;
use rstest::rstest;

use crate::common::{Rig, call, enqueue, on_every_rank, operand, within};

const SHORT: Duration = Duration::from_millis(100);
const SUM: Op<'static> = Op::AllReduce(ReduceOp::Sum);

fn sum(rig: &mut Rig, len: usize) -> collectives_core::error::Result<u8> {
    let mut value = vec![1_u8; len];
    let side = operand(&mut value);
    rig.run(&[call(SUM, DType::U8, side, side, Counts::Even(len))])?;
    assert!(value.iter().all(|&byte| byte == value[0]));
    Ok(value[0])
}

#[rstest]
fn a_late_rank_gets_the_same_timeout_and_the_next_call_works(
    #[values(2, 3, 5)] ranks: usize,
    #[values(8, 100_000)] len: usize,
) {
    let results = within(ranks, SHORT, |rig| {
        if rig.rank() == 1 {
            thread::sleep(SHORT * 4);
        }
        let first = sum(rig, len).unwrap_err();
        rig.comm.set_deadline(Duration::from_secs(20));
        for _ in 0..5 {
            assert_eq!(usize::from(sum(rig, len).unwrap()), ranks);
        }
        first
    });
    for error in results {
        let expected = ErrorKind::Timeout {
            absent: vec![Rank(1)],
            waited: SHORT,
        };
        assert_eq!(error.kind(), &expected);
        assert!(!error.poisons());
    }
}

#[test]
fn a_rank_that_is_several_calls_behind_catches_up() {
    let results = within(3, SHORT, |rig| {
        if rig.rank() == 2 {
            thread::sleep(SHORT * 8);
        }
        let errors: Vec<_> = (0..3)
            .map(|_| sum(rig, 5000).unwrap_err().kind().clone())
            .collect();
        rig.comm.set_deadline(Duration::from_secs(20));
        assert_eq!(sum(rig, 5000).unwrap(), 3);
        errors
    });
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
}

#[test]
fn arriving_at_the_deadline_never_splits_the_ranks() {
    // The sleeps end about when the deadline does, so each outcome is possible, but one for all.
    let deadline = Duration::from_millis(3);
    let outcomes = within(3, deadline, |rig| {
        let mut outcomes = Vec::new();
        for round in 0..200_u32 {
            if round as usize % 3 == rig.rank() {
                thread::sleep(
                    deadline + Duration::from_micros(u64::from(round)) - Duration::from_micros(150),
                );
            }
            outcomes.push(sum(rig, 3000).map_err(|error| error.kind().clone()));
        }
        outcomes
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[0], outcomes[2]);
}

#[test]
fn a_rank_that_panics_fails_the_others_at_once() {
    let begun = Instant::now();
    let failed = AtomicUsize::new(0);
    let world = HostWorld::new(3).deadline(Duration::from_secs(20));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        world.run(|comm| {
            let mut rig = Rig::new(comm);
            assert_eq!(sum(&mut rig, 100).unwrap(), 3);
            if rig.rank() == 1 {
                panic!("planted");
            }
            let error = sum(&mut rig, 100).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::PeerFailed { rank: Rank(1), .. }),
                "{error}"
            );
            let error = rig
                .comm
                .agree(&Record::new(), Duration::from_secs(20))
                .unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::PeerFailed { rank: Rank(1), .. }),
                "{error}"
            );
            assert!(rig.comm.abort_handle().health().is_err());
            failed.fetch_add(1, Ordering::Relaxed);
        })
    }));
    let panic = panicked.unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"planted"));
    assert_eq!(failed.into_inner(), 2);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_rank_that_leaves_without_shutdown_fails_who_waits_for_it() {
    let mut ends = HostWorld::new(2)
        .deadline(Duration::from_secs(20))
        .connect()
        .unwrap();
    let second = ends.pop().unwrap();
    let mut rig = Rig::new(ends.pop().unwrap());
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(SHORT);
            drop(second);
        });
        let error = rig.run(&[Collective::BARRIER]).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::PeerFailed { rank: Rank(1), .. }),
            "{error}"
        );
    });
}

#[test]
fn a_rank_that_shuts_down_fails_who_waits_for_it_but_not_who_does_not() {
    on_every_rank(2, |rig| {
        assert_eq!(sum(rig, 5000).unwrap(), 2);
        if rig.rank() == 1 {
            let _ = rig.comm.shutdown().unwrap();
            assert_eq!(rig.comm.shutdown().unwrap(), Default::default());
            assert_eq!(sum(rig, 8).unwrap_err().kind(), &ErrorKind::Closed);
        } else {
            assert!(rig.comm.abort_handle().health().is_ok());
            let error = sum(rig, 8).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::PeerFailed { rank: Rank(1), .. }),
                "{error}"
            );
        }
    });
}

#[test]
fn an_abort_ends_blocked_and_later_calls() {
    let errors = within(3, Duration::from_secs(20), |rig| {
        let handle = rig.comm.abort_handle();
        if rig.rank() == 2 {
            thread::sleep(SHORT);
            handle.abort("enough");
            handle.abort("again");
        }
        let error = sum(rig, 5000).unwrap_err();
        assert_eq!(sum(rig, 8).unwrap_err().kind(), error.kind());
        assert_eq!(handle.health().unwrap_err().kind(), error.kind());
        error
    });
    let cause = "enough".to_owned();
    let peer = ErrorKind::PeerFailed {
        rank: Rank(2),
        cause: cause.clone(),
    };
    assert_eq!(errors[0].kind(), &peer);
    assert_eq!(errors[1].kind(), &peer);
    assert_eq!(errors[2].kind(), &ErrorKind::Aborted { cause });
}

#[test]
fn a_blocked_rank_is_aborted_from_another_thread_of_its_own() {
    let mut ends = HostWorld::new(2)
        .deadline(Duration::from_secs(20))
        .connect()
        .unwrap();
    let _second = ends.pop();
    let mut rig = Rig::new(ends.pop().unwrap());
    let handle = rig.comm.abort_handle();
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(SHORT);
            handle.abort("watchdog");
        });
        let error = rig.run(&[Collective::BARRIER]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Aborted { .. }), "{error}");
    });
}

#[test]
fn an_abort_racing_with_operations_never_splits_the_ranks() {
    for round in 0..60 {
        let results = within(3, Duration::from_secs(20), |rig| {
            let handle = rig.comm.abort_handle();
            thread::scope(|scope| {
                if rig.rank() == 0 {
                    scope.spawn(move || {
                        let begun = Instant::now();
                        while begun.elapsed() < Duration::from_micros(round * 20) {
                            std::hint::spin_loop();
                        }
                        handle.abort("race");
                    });
                }
                (0..100_000).take_while(|_| sum(rig, 3000).is_ok()).count()
            })
        });
        // A rank either fails in an operation with the others, or before it arrives in the next.
        assert_eq!(results[0], results[1]);
        assert_eq!(results[0], results[2]);
    }
}

#[test]
fn other_communicators_go_on_after_a_failure() {
    on_every_rank(2, |rig| {
        let mut child = rig.comm.split(Some(0), 0).unwrap().unwrap();
        rig.barrier();
        if rig.rank() == 0 {
            child.abort_handle().abort("only the child");
        }
        // SAFETY: A barrier has no operands.
        let error =
            unsafe { enqueue(&mut *child, &[Collective::BARRIER], &rig.stream).unwrap_err() };
        assert!(error.poisons());
        assert_eq!(sum(rig, 5000).unwrap(), 2);
    });
}

#[test]
fn a_shut_down_communicator_refuses_everything() {
    on_every_rank(1, |rig| {
        let memory = rig.comm.symmetric().unwrap().allocate(1, None).unwrap();
        let window = rig.comm.symmetric().unwrap().register(&memory).unwrap();
        let liveness = rig.comm.liveness();
        let deferred = rig.comm.shutdown().unwrap();
        assert_eq!(deferred, Default::default(), "no graph owns anything");
        let closed =
            |error: collectives_core::error::Error| assert_eq!(error.kind(), &ErrorKind::Closed);
        closed(rig.run(&[Collective::BARRIER]).unwrap_err());
        closed(rig.comm.agree(&Record::new(), SHORT).unwrap_err());
        closed(rig.comm.split(Some(0), 0).unwrap_err());
        closed(rig.comm.symmetric().unwrap().register(&memory).unwrap_err());
        closed(rig.comm.symmetric().unwrap().retire(window).unwrap_err());
        assert_eq!(rig.comm.symmetric().unwrap().window_count(), 0);
        assert!(liveness.is_alive());
    });
}

#[test]
fn a_control_call_that_differs_between_ranks_is_a_mismatch_and_no_hang() {
    let kinds = on_every_rank(2, |rig| {
        let error = if rig.rank() == 0 {
            rig.comm
                .agree(&Record::new(), Duration::from_secs(20))
                .unwrap_err()
        } else {
            let memory = rig.comm.symmetric().unwrap().allocate(1, None).unwrap();
            rig.comm.symmetric().unwrap().register(&memory).unwrap_err()
        };
        assert!(
            rig.comm
                .agree(&Record::new(), Duration::from_secs(20))
                .is_ok()
        );
        error.kind().clone()
    });
    assert_eq!(kinds[0], kinds[1]);
    assert!(matches!(kinds[0], ErrorKind::Mismatch { .. }));
}

#[test]
fn connecting_with_a_missing_rank_times_out() {
    let mut ends = collectives_core::in_process::InProcess::world(2);
    let device = collectives_host::device::HostDevice::new(Default::default()).unwrap();
    let end = std::sync::Arc::new(ends.remove(0));
    let error = HostCommunicator::connect_within(end, device, SHORT).unwrap_err();
    let expected = ErrorKind::Timeout {
        absent: vec![Rank(1)],
        waited: SHORT,
    };
    assert_eq!(error.kind(), &expected);
}

#[test]
fn caller_mistakes_are_found_before_anything_is_enqueued() {
    on_every_rank(2, |rig| {
        let mut bytes = [0_u8; 16];
        let side = operand(&mut bytes);
        let misuse = |rig: &mut Rig, bad| rig.run(&[bad]).unwrap_err().misuse().cloned().unwrap();
        let wrong = call(SUM, DType::U8, side, side, Counts::Even(15));
        assert!(matches!(misuse(rig, wrong), Misuse::WrongCount { .. }));
        let root = Rank(2);
        let wrong = call(
            Op::Broadcast { root },
            DType::U8,
            side,
            side,
            Counts::Even(16),
        );
        assert!(matches!(misuse(rig, wrong), Misuse::RankOutOfRange { .. }));
        let wrong = call(SUM, DType::F64, side, side, Counts::Even(usize::MAX));
        assert!(matches!(misuse(rig, wrong), Misuse::SizeOverflow { .. }));
        let to = Rank::new(rig.rank());
        let wrong = call(
            Op::Send { to },
            DType::U8,
            side,
            collectives_core::addr::Operand::EMPTY,
            Counts::Even(16),
        );
        assert_eq!(misuse(rig, wrong), Misuse::SelfMessage { rank: to });
        rig.barrier();
    });
}
