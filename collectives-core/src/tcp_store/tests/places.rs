//! Where the store is, and when.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use rstest::rstest;

use super::{LONG, SHORT};
use crate::bootstrap::Bootstrap;
use crate::error::{ErrorKind, Misuse};
use crate::rank::Rank;
use crate::tcp_store::{Join, TcpStore};

/// A port that nobody has, on a loopback address that nobody else takes.
fn vacant(unique: u8) -> (String, u16) {
    let process = std::process::id().to_le_bytes();
    let host = format!("127.{}.{}.{unique}", process[0], process[1] | 1);
    let listener = TcpListener::bind((host.as_str(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (host, port)
}

fn pair(first: Join, second: Join) {
    thread::scope(|scope| {
        let meet = |end: TcpStore| end.all_gather("a", &[7], LONG).unwrap();
        let ranks = [first, second].map(|join| scope.spawn(move || meet(join.join().unwrap())));
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), [[7], [7]]);
        }
    });
}

#[rstest]
#[case("127.0.0.1:0", "127.0.0.1")]
#[case("[::1]:0", "::1")]
#[case("[::1]:0", "[::1]")]
#[case("127.0.0.1:0", "localhost")]
#[case("[::]:0", "::1")]
#[case("[::]:0", "127.0.0.1")]
#[case("0.0.0.0:0", "127.0.0.1")]
fn both_families_serve(#[case] bound: &str, #[case] host: &str) {
    let listener = match TcpListener::bind(bound) {
        Ok(listener) => listener,
        // A machine without IPv6 has nothing to show here.
        Err(error) => return assert!(bound.contains(':'), "{error}"),
    };
    let port = listener.local_addr().unwrap().port();
    let join = |rank| Join::new(Rank(rank), 2, host, port);
    pair(join(0).listener(listener), join(1));
}

#[test]
fn ranks_may_start_long_before_the_store() {
    let (host, port) = vacant(1);
    let join = |rank| Join::new(Rank(rank), 2, host.clone(), port);
    thread::scope(|scope| {
        let early = scope.spawn(|| join(1).join().unwrap().all_gather("a", b"", LONG).unwrap());
        thread::sleep(SHORT * 2);
        let end = join(0).join().unwrap();
        end.all_gather("a", b"", LONG).unwrap();
        early.join().unwrap();
    });
}

#[test]
fn a_port_that_becomes_free_in_time_is_taken() {
    let (host, port) = vacant(2);
    let before = TcpListener::bind((host.as_str(), port)).unwrap();
    thread::scope(|scope| {
        let join = Join::new(Rank(0), 1, host.clone(), port);
        let rank = scope.spawn(|| join.join().unwrap().all_gather("a", b"", LONG).unwrap());
        thread::sleep(SHORT);
        drop(before);
        rank.join().unwrap();
    });
}

#[test]
fn a_port_in_use_is_a_typed_error_that_names_it() {
    let (host, port) = vacant(3);
    let _taken = TcpListener::bind((host.as_str(), port)).unwrap();
    let join = Join::new(Rank(0), 2, host.clone(), port).deadline(SHORT);
    let error = join.join().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::System(_)));
    assert!(
        error.to_string().contains(&format!("{host}:{port}")),
        "{error}"
    );
}

#[rstest]
#[case::nobody_listens(true)]
#[case::nobody_answers(false)]
fn a_store_that_never_comes_is_a_timeout_that_names_rank_0(#[case] closed: bool) {
    let (host, port) = vacant(4 + u8::from(closed));
    let _open = (!closed).then(|| TcpListener::bind((host.as_str(), port)).unwrap());
    let join = Join::new(Rank(1), 2, host.clone(), port).deadline(SHORT);
    let error = join.join().unwrap_err();
    let absent = vec![Rank(0)];
    assert_eq!(
        error.kind(),
        &ErrorKind::Timeout {
            absent,
            waited: SHORT
        }
    );
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains(&format!("{host}:{port}")), "{source}");
    let expected = match closed {
        true => "refused",
        false => "took the connection, and sent no answer to this rank's greeting within",
    };
    assert!(source.contains(expected), "{source}");
}

#[test]
fn what_says_nothing_keeps_no_rank_from_the_address_behind_it() {
    let (silent, port) = vacant(6);
    let _silent = TcpListener::bind((silent.as_str(), port)).unwrap();
    let (host, _) = vacant(7);
    let store = TcpListener::bind((host.as_str(), port)).unwrap();
    let join = |rank| Join::new(Rank(rank), 2, host.clone(), port);
    let hosts = [silent, host.clone()];
    pair(join(0).listener(store), join(1).hosts(hosts));
}

#[test]
fn every_host_is_named_with_what_was_found_there() {
    let (host, port) = vacant(8);
    let hosts = [host.clone(), "no.such.host.invalid".to_owned()];
    let join = Join::new(Rank(1), 2, "", port).hosts(hosts.clone());
    let error = join.once(SHORT).join().unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    for part in [&hosts[0], &hosts[1], &format!("{host}:{port}: ")] {
        assert!(source.contains(part), "{part}: {source}");
    }
}

#[test]
fn a_name_that_means_nothing_is_a_timeout_that_says_so() {
    let join = Join::new(Rank(1), 2, "no.such.host.invalid", 1).deadline(SHORT);
    let error = join.join().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
}

#[test]
fn places_outside_the_world_are_misuse() {
    for (rank, world_size) in [(2, 2), (0, 0)] {
        let join = Join::new(Rank(rank), world_size, "127.0.0.1", 1).deadline(Duration::ZERO);
        let error = join.join().unwrap_err();
        assert!(
            matches!(error.misuse(), Some(Misuse::RankOutOfRange { .. })),
            "{error}"
        );
    }
    let join = Join::new(Rank(0), 1, "127.0.0.1", 1).token("t".repeat(300));
    assert!(join.join().unwrap_err().misuse().is_some());
    assert!(TcpStore::loopback(0).unwrap().is_empty());
}
