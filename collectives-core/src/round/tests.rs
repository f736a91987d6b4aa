use std::sync::Barrier;
use std::thread;

use super::*;
use crate::in_process::InProcess;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Why {
    Late,
    Small,
}

impl Refusal for Why {
    const ALL: &'static [Self] = &[Self::Late, Self::Small];

    fn error(self, rank: Rank) -> Error {
        Error::from(Misuse::Other(format!("{self:?}"))).on_rank(rank)
    }
}

const SOON: Duration = Duration::from_secs(20);

/// What every rank of three gets.
fn everywhere<T: Send>(part: impl Fn(&dyn Bootstrap, usize) -> T + Sync) -> Vec<T> {
    let ends = InProcess::world(3);
    thread::scope(|scope| {
        let ranks: Vec<_> = ends
            .iter()
            .enumerate()
            .map(|(rank, end)| {
                let part = &part;
                scope.spawn(move || part(end, rank))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn every_rank_gets_the_bytes_and_words_of_every_rank() {
    for got in everywhere(|end, rank| {
        let rounds = Rounds::new("test");
        let bytes = rounds
            .run(end, Call::named("tell"), &vec![7; rank], SOON)
            .unwrap();
        let word = rank as u64 + 5;
        let words = rounds.agree(end, Call::named("add"), Ok::<_, Why>([word, 1]), SOON);
        (bytes, words.unwrap())
    }) {
        assert_eq!(got.0, [vec![], vec![7], vec![7, 7]]);
        assert_eq!(got.1, [[5, 1], [6, 1], [7, 1]]);
    }
}

#[test]
fn different_calls_are_the_same_mismatch_everywhere() {
    for error in everywhere(|end, rank| {
        let call = if rank == 1 { "retire" } else { "register" };
        Rounds::new("test")
            .run(end, Call::named(call), b"same", SOON)
            .unwrap_err()
    }) {
        let text = error.to_string();
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{text}");
        assert!(
            text.contains("retire") && text.contains("register"),
            "{text}"
        );
    }
}

#[test]
fn a_refusal_of_one_rank_is_the_same_error_everywhere() {
    for why in Why::ALL {
        for error in everywhere(|end, rank| {
            let mine = if rank == 2 { Err(*why) } else { Ok([0]) };
            Rounds::new("test")
                .agree(end, Call::named("add"), mine, SOON)
                .unwrap_err()
        }) {
            assert_eq!(error.rank(), Some(Rank(2)));
            assert!(error.to_string().contains(&format!("{why:?}")), "{error}");
        }
    }
}

#[test]
fn ranks_that_say_something_else_are_named() {
    assert!(equal([4, 4, 4], Field::Bytes).is_ok());
    let error = equal([4, 5, 4], Field::Bytes).unwrap_err();
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field: Field::Bytes,
        theirs: "5".to_owned(),
        ours: "4".to_owned(),
    };
    assert_eq!(*error.kind(), expected);
}

#[test]
fn what_is_no_record_is_an_error() {
    for bytes in [&[][..], &[9], &[0, 1], &[0; 10]] {
        assert!(decode::<Why, 1>(&[bytes.to_vec()]).is_err(), "{bytes:?}");
    }
}

/// Rounds of two ranks, of which each makes its own calls: the number of operations before each and its
/// words. Rank 1 begins when rank 0 has been told that it is absent from the first call.
fn out_of_step(calls: [&[(u64, &str)]; 2]) -> [Vec<Result<()>>; 2] {
    let ends = InProcess::world(2);
    let told = Barrier::new(2);
    let part = |end: &InProcess, rank: usize| {
        let rounds = Rounds::new("test");
        let mut outcomes = Vec::new();
        for (index, (operations, words)) in calls[rank].iter().enumerate() {
            let wait = if index == 0 { BRIEF } else { SOON };
            if (rank, index) == (1, 0) {
                told.wait();
            }
            let call = Call::named("agree")
                .in_words(words)
                .after(*operations, false);
            outcomes.push(rounds.run(end, call, b"", wait).map(drop));
            if (rank, index) == (0, 0) {
                told.wait();
            }
        }
        outcomes
    };
    thread::scope(|scope| {
        let (part, [first, second]) = (&part, [&ends[0], &ends[1]]);
        let first = scope.spawn(move || part(first, 0));
        let second = scope.spawn(move || part(second, 1));
        [first.join().unwrap(), second.join().unwrap()]
    })
}

const BRIEF: Duration = Duration::from_millis(20);

fn timed_out(outcome: &Result<()>) -> bool {
    let kind = outcome.as_ref().map_err(Error::kind);
    matches!(kind, Err(ErrorKind::Timeout { absent, .. }) if *absent == [Rank(1)])
}

#[test]
fn a_rank_that_makes_its_calls_late_gets_their_outcome_and_goes_on() {
    let calls: &[_] = &[(0, "reserve"), (0, "trim"), (1, "trim")];
    for outcomes in out_of_step([calls, calls]) {
        assert!(timed_out(&outcomes[0]));
        assert!(outcomes[1..].iter().all(Result::is_ok), "{outcomes:?}");
    }
}

#[test]
fn a_rank_that_leaves_a_call_out_is_found_at_the_next_round() {
    // What rank 1 makes while rank 0 is one call ahead, and how each is named.
    for (second, odd, usual) in [
        // Another call where it left one out.
        (
            [(0, "trim"), (1, "trim")],
            "trim after 0",
            "reserve after 0",
        ),
        // The same call, but after an operation that rank 0 called in between.
        ([(1, "reserve"), (2, "trim")], "2 operations", "1 operation"),
        (
            [(1, "reserve"), (1, "trim")],
            "after 1 operation",
            "after 0 operations",
        ),
    ] {
        let outcomes = out_of_step([&[(0, "reserve"), (1, "trim")], &second]);
        for outcomes in &outcomes {
            assert!(timed_out(&outcomes[0]), "{outcomes:?}");
            let error = outcomes[1].as_ref().unwrap_err();
            let ErrorKind::Mismatch {
                rank: Rank(1),
                field: Field::Order,
                theirs,
                ours,
            } = error.kind()
            else {
                panic!("{error}");
            };
            assert!(theirs.contains(odd) && ours.contains(usual), "{error}");
            assert!(error.poisons());
        }
        let [first, second] = outcomes.map(|mut outcomes| outcomes.remove(1).unwrap_err());
        assert_eq!(first.kind(), second.kind());
    }
}

#[test]
fn ranks_that_had_called_another_number_of_operations_differ_only_after_one_that_timed_out() {
    for in_doubt in [false, true] {
        for outcome in everywhere(|end, rank| {
            // One rank has heard that an operation timed out, and one never called it.
            let operations = if rank == 1 { 4 } else { 5 };
            let call = Call::named("agree").in_words("reserve");
            let call = call.after(operations, in_doubt && rank == 0);
            Rounds::new("test").run(end, call, b"", SOON)
        }) {
            let kind = outcome.map(drop).map_err(|error| error.kind().clone());
            let expected = ErrorKind::Mismatch {
                rank: Rank(1),
                field: Field::Order,
                theirs: "reserve after 4 operations".to_owned(),
                ours: "reserve after 5 operations".to_owned(),
            };
            assert_eq!(kind, if in_doubt { Err(expected) } else { Ok(()) });
        }
    }
}

#[test]
fn what_a_rank_publishes_of_calls_out_of_order_is_the_same_error_in_a_round() {
    let error = out_of_order(1, "barrier", "reserve");
    for outcome in everywhere(|end, rank| {
        if rank == 1 {
            end.publish_failure(&error.kind().to_string());
        }
        Rounds::new("test").run(end, Call::named("agree"), b"", SOON)
    }) {
        assert_eq!(outcome.unwrap_err().kind(), error.kind());
    }
}
