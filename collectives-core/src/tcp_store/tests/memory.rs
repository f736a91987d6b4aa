use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{LONG, SHORT, on_every, on_every_rank};
use crate::bootstrap::Bootstrap;
use crate::rank::Rank;
use crate::tcp_store::TcpStore;
use crate::tcp_store::peer::outbox;
use crate::tcp_store::state::State;
use crate::tcp_store::wire::message::{Key, Request};

#[test]
fn a_hundred_thousand_rounds_leave_nothing_behind() {
    let mut state = State::new(3);
    let unsent = Arc::new(AtomicUsize::new(0));
    let outgoing: Vec<_> = (0..3)
        .map(|rank| {
            let (outbox, outgoing) = outbox(&unsent);
            state.announce(rank).unwrap();
            state.admit(rank, outbox);
            outgoing
        })
        .collect();
    let key = Key::new();
    for round in 0..100_000 {
        let name = format!("round/{round}");
        let timed_out = round % 3 == 0;
        for rank in 0..3 {
            let (key, round) = (key.clone(), name.clone());
            if rank == 2 && timed_out {
                let waited = Duration::from_secs(1);
                let request = Request::Abort {
                    key: key.clone(),
                    round: round.clone(),
                    waited,
                };
                state.handle(1, request).unwrap();
                assert_eq!(
                    state.remembered(),
                    (1, 1),
                    "a late rank will ask for the outcome"
                );
            }
            let payload = vec![0; 100];
            state
                .handle(
                    rank,
                    Request::Post {
                        key,
                        round,
                        payload,
                    },
                )
                .unwrap();
        }
        assert_eq!(state.remembered(), (1, 0));
    }
    assert_eq!(
        unsent.load(Ordering::SeqCst),
        300_000,
        "one outcome for each rank and round"
    );
    drop(outgoing);
    assert_eq!(unsent.load(Ordering::SeqCst), 0);
}

#[test]
fn groups_are_forgotten_with_their_last_end_once_nobody_is_owed_an_outcome() {
    let ends = TcpStore::loopback(3).unwrap();
    on_every(&ends, |end| {
        for group in 0..100 {
            let everybody = [Rank(0), Rank(1), Rank(2)];
            let group = end.subgroup(&group.to_string(), &everybody).unwrap();
            let late = end.rank() == Rank(1);
            if late {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _either = group.all_gather("maybe", b"", Duration::from_millis(1));
            group.all_gather("certainly", b"", LONG).unwrap();
        }
        end.all_gather("end", b"", LONG).unwrap();
    });
    let host = ends[0].link.host().unwrap();
    // The store reads what the last round followed, of every rank.
    for _ in 0..500 {
        if host.remembered() == (1, 0) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(host.remembered(), (1, 0));
}

#[test]
fn ranks_remember_nothing_of_finished_rounds() {
    on_every_rank(2, |end| {
        for round in 0..300 {
            end.all_gather(&round.to_string(), b"", LONG).unwrap();
        }
        assert_eq!(end.link.remembered(), (0, 1));
        let group = end.subgroup("g", &[Rank(1), Rank(0)]).unwrap();
        let again = end.subgroup("g", &[Rank(1), Rank(0)]).unwrap();
        assert!(
            end.subgroup("g", &[Rank(0), Rank(1)]).is_err(),
            "other members on one rank"
        );
        drop(group);
        again.all_gather("a", b"", LONG).unwrap();
        assert_eq!(end.link.remembered(), (0, 2));
        drop(again);
        assert_eq!(end.link.remembered(), (0, 1));
    });
}

#[test]
fn the_store_ends_with_the_last_end_in_any_order() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut ends: Vec<_> = TcpStore::loopback(3)
            .unwrap()
            .into_iter()
            .map(Some)
            .collect();
        let store = ends[0].as_ref().unwrap().link.host().unwrap().store();
        for rank in order {
            assert!(store.upgrade().is_some());
            ends[rank] = None;
        }
        let mut waited = Duration::ZERO;
        while store.upgrade().is_some() {
            assert!(waited < LONG, "the store is still there");
            std::thread::sleep(Duration::from_millis(1));
            waited += Duration::from_millis(1);
        }
    }
}

#[test]
fn a_world_that_never_met_ends_too() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let join = crate::tcp_store::Join::new(Rank(0), 4, "127.0.0.1", port);
    let end = join.listener(listener).join().unwrap();
    assert!(end.all_gather("a", b"", SHORT).is_err());
    let store = end.link.host().unwrap().store();
    drop(end);
    let mut waited = Duration::ZERO;
    while store.upgrade().is_some() {
        assert!(waited < LONG, "the store is still there");
        std::thread::sleep(Duration::from_millis(1));
        waited += Duration::from_millis(1);
    }
}
