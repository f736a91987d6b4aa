use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use rstest::rstest;

use super::{LONG, SHORT, on_every_rank};
use crate::agreement::Record;
use crate::bootstrap::Bootstrap;
use crate::error::{ErrorKind, Field, Misuse};
use crate::rank::Rank;
use crate::tcp_store::wire::MAX_PAYLOAD;

fn me(end: &dyn Bootstrap) -> [u8; 1] {
    [u8::try_from(end.rank().0).unwrap()]
}

#[rstest]
fn everybody_gets_everything_in_rank_order(#[values(1, 2, 5, 8)] world_size: usize) {
    let results = on_every_rank(world_size, |end| {
        let gather = |round: usize| {
            let mine = vec![me(end)[0]; round];
            end.all_gather(&round.to_string(), &mine, LONG).unwrap()
        };
        (0..50).map(gather).collect::<Vec<_>>()
    });
    for rounds in results {
        for (round, all) in rounds.into_iter().enumerate() {
            let expected: Vec<_> = (0..world_size)
                .map(|rank| vec![u8::try_from(rank).unwrap(); round])
                .collect();
            assert_eq!(all, expected);
        }
    }
}

#[test]
fn payloads_of_the_largest_size_arrive_and_larger_ones_are_refused_before_they_go() {
    on_every_rank(3, |end| {
        let refused = end
            .all_gather("a", &vec![0; MAX_PAYLOAD + 1], LONG)
            .unwrap_err();
        assert!(matches!(refused.misuse(), Some(Misuse::OutOfBounds { .. })));
        let name = "n".repeat(1 << 12);
        assert!(
            end.all_gather(&name, b"", LONG)
                .unwrap_err()
                .misuse()
                .is_some()
        );
        let all = end.all_gather("a", &vec![7; MAX_PAYLOAD], LONG).unwrap();
        assert!(
            all.iter()
                .all(|part| part.len() == MAX_PAYLOAD && part.iter().all(|&b| b == 7))
        );
    });
}

#[test]
fn a_rank_that_comes_too_late_gets_the_same_error() {
    let results = on_every_rank(3, |end| {
        if end.rank() == Rank(2) {
            thread::sleep(SHORT * 5);
        }
        let first = end.all_gather("a", b"", SHORT).unwrap_err();
        (first, end.all_gather("b", b"", LONG))
    });
    let told = results[0].0.kind().clone();
    let ErrorKind::Timeout { absent, waited } = &told else {
        panic!("{told:?}")
    };
    assert!(absent.contains(&Rank(2)) && *waited == SHORT);
    for (first, second) in results {
        assert_eq!(first.kind(), &told);
        assert!(
            !first.poisons() && second.is_ok(),
            "the world works on after a timeout"
        );
    }
}

#[test]
fn a_deadline_that_has_passed_before_the_call_times_out() {
    let results = on_every_rank(2, |end| match end.rank() {
        Rank(0) => end.all_gather("a", b"", Duration::ZERO).unwrap_err(),
        _ => {
            thread::sleep(SHORT);
            end.all_gather("a", b"", Duration::MAX).unwrap_err()
        }
    });
    assert_eq!(results[0].kind(), results[1].kind());
}

/// Every rank's deadline passes at about the moment when the last one arrives: whatever the
/// outcome is, it is one.
#[test]
fn a_deadline_against_the_last_arrival_has_one_outcome() {
    let (timeouts, successes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    on_every_rank(4, |end| {
        for round in 0..60_u64 {
            if end.rank() == Rank(3) {
                thread::sleep(Duration::from_micros(1500 + 50 * (round % 20)));
            }
            let name = format!("race/{round}");
            let mine = end.all_gather(&name, b"", Duration::from_millis(2));
            let mine = match mine {
                Ok(_) => [1],
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
                    [0]
                }
            };
            let all = end
                .all_gather(&format!("verdict/{round}"), &mine, LONG)
                .unwrap();
            assert!(
                all.iter().all(|theirs| *theirs == mine),
                "round {round}: {all:?}"
            );
            let count = if mine == [1] { &successes } else { &timeouts };
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(timeouts.into_inner() + successes.into_inner(), 240);
}

#[test]
fn a_published_failure_wakes_everybody_and_the_first_one_stays() {
    let both = Barrier::new(2);
    let results = on_every_rank(4, |end| {
        if end.rank().0 >= 2 {
            both.wait();
            end.publish_failure(&format!("fire on {}", end.rank()));
            assert!(
                end.failure().is_some(),
                "whoever publishes knows which was first"
            );
        }
        let error = end.all_gather("a", b"", LONG).unwrap_err();
        let again = end.all_gather("b", b"", LONG).unwrap_err();
        assert_eq!(error.kind(), again.kind());
        (error, end.failure().unwrap())
    });
    let (rank, cause) = results[0].1.clone();
    assert_eq!(cause, format!("fire on {rank}"));
    for (error, failure) in results {
        assert_eq!(failure, (rank, cause.clone()));
        let cause = cause.clone();
        assert_eq!(error.kind(), &ErrorKind::PeerFailed { rank, cause });
    }
}

#[test]
fn a_subgroup_renumbers_its_members_and_fails_by_itself() {
    let results = on_every_rank(4, |end| {
        if end.rank() == Rank(0) {
            assert!(
                end.subgroup("g", &[Rank(1)])
                    .unwrap_err()
                    .misuse()
                    .is_some()
            );
            end.all_gather("end", b"", LONG).unwrap();
            return Vec::new();
        }
        let group = end.subgroup("g", &[Rank(3), Rank(1), Rank(2)]).unwrap();
        let all = group.all_gather("a", &me(&*group), LONG).unwrap();
        if end.rank() != Rank(3) {
            let inner = group.subgroup("g", &[Rank(2), Rank(1)]).unwrap();
            let world: Vec<_> = inner.all_gather("a", &me(end), LONG).unwrap();
            assert_eq!(world, [[2], [1]]);
            inner.publish_failure("inside");
            assert!(inner.all_gather("b", b"", LONG).is_err());
        }
        assert!(group.all_gather("b", b"", LONG).is_ok() && group.failure().is_none());
        end.all_gather("end", b"", LONG).unwrap();
        all
    });
    assert_eq!(results[1], [[0], [1], [2]]);
}

#[test]
fn members_that_disagree_get_the_same_error_everywhere() {
    let results = on_every_rank(3, |end| {
        let members = match end.rank() {
            Rank(2) => vec![Rank(2), Rank(1), Rank(0)],
            _ => vec![Rank(0), Rank(1), Rank(2)],
        };
        let group = end.subgroup("g", &members).unwrap();
        let kind = group.all_gather("a", b"", LONG).unwrap_err().kind().clone();
        end.all_gather("end", b"", LONG).unwrap();
        kind
    });
    assert!(matches!(&results[0], ErrorKind::Misuse(Misuse::Other(text)) if text.contains("`g`")));
    assert!(results.iter().all(|kind| kind == &results[0]));
}

#[test]
fn impossible_members_are_refused_at_once() {
    on_every_rank(2, |end| {
        let refused = |members: &[Rank]| end.subgroup("g", members).unwrap_err();
        assert!(refused(&[Rank(0), Rank(1), Rank(0)]).misuse().is_some());
        let outside = refused(&[Rank(0), Rank(1), Rank(2)]);
        assert!(matches!(
            outside.misuse(),
            Some(Misuse::RankOutOfRange { rank: Rank(2), .. })
        ));
        assert!(end.subgroup(&"n".repeat(1 << 13), &[end.rank()]).is_err());
    });
}

#[test]
fn a_round_that_a_rank_is_in_twice_is_misuse() {
    let results = on_every_rank(2, |end| {
        if end.rank() == Rank(1) {
            thread::sleep(SHORT);
            return end.all_gather("a", b"", LONG).map(|_| 0);
        }
        let twice = thread::scope(|scope| {
            let calls = [(); 2].map(|()| scope.spawn(|| end.all_gather("a", b"", LONG)));
            calls.map(|call| call.join().unwrap())
        });
        let misused = twice
            .iter()
            .filter(|result| result.as_ref().is_err_and(|error| error.misuse().is_some()));
        Ok(misused.count())
    });
    assert_eq!(
        results.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
        [1, 0]
    );
}

#[test]
fn two_threads_of_a_rank_may_be_in_two_rounds() {
    on_every_rank(3, |end| {
        let everybody = [Rank(0), Rank(1), Rank(2)];
        let group: Arc<dyn Bootstrap> = end.subgroup("g", &everybody).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200 {
                    group
                        .all_gather(&round.to_string(), b"group", LONG)
                        .unwrap();
                }
            });
            for round in 0..200 {
                let all = end.all_gather(&round.to_string(), b"world", LONG).unwrap();
                assert!(all.iter().all(|part| part == b"world"));
            }
        });
    });
}

#[test]
fn records_that_differ_are_the_same_mismatch_on_every_rank() {
    let results = on_every_rank(4, |end| {
        let bytes = if end.rank() == Rank(2) { 4096 } else { 1024 };
        let mine = Record::new()
            .field(Field::Operation, 1)
            .field(Field::Bytes, bytes);
        let all = end.all_gather("agree", &mine.encode(), LONG).unwrap();
        let all: Vec<_> = all
            .iter()
            .map(|bytes| Record::decode(bytes).unwrap())
            .collect();
        Record::check_equal(&all).unwrap_err().kind().clone()
    });
    for kind in results {
        assert!(matches!(
            kind,
            ErrorKind::Mismatch {
                rank: Rank(2),
                field: Field::Bytes,
                ..
            }
        ));
    }
}
