use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::thread;
use std::time::Duration;

use super::{LONG, SHORT, on_every, on_every_rank, warnings};
use crate::bootstrap::Bootstrap;
use crate::error::ErrorKind;
use crate::rank::Rank;
use crate::tcp_store::wire::hello::{self, Answer};
use crate::tcp_store::wire::message::Reply;
use crate::tcp_store::{Join, TcpStore};

impl TcpStore {
    /// What the end of the process would do to the connection.
    fn die(&self) {
        self.link.stream().shutdown(Shutdown::Both).unwrap();
    }
}

#[test]
fn a_lost_connection_fails_everybody_at_once_in_every_group_it_was_in() {
    let results = on_every_rank(4, |end| {
        let with = [Rank(1), Rank(2), Rank(3)];
        let without = [Rank(0), Rank(1), Rank(3)];
        let group = |name, members: &[Rank]| {
            members
                .contains(&end.rank())
                .then(|| end.subgroup(name, members).unwrap())
        };
        let (with, without) = (group("with", &with), group("without", &without));
        if let Some(with) = &with {
            with.all_gather("a", b"", LONG).unwrap();
        }
        if end.rank() == Rank(2) {
            end.die();
            return None;
        }
        let error = end.all_gather("a", b"", LONG).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::PeerFailed { rank: Rank(2), .. }),
            "{error}"
        );
        if let Some(with) = with {
            let error = with.all_gather("b", b"", LONG).unwrap_err();
            assert!(matches!(
                error.kind(),
                ErrorKind::PeerFailed { rank: Rank(1), .. }
            ));
            assert_eq!(with.failure().unwrap().0, Rank(1));
        }
        let without = without.unwrap();
        assert!(without.all_gather("a", b"", LONG).is_ok(), "others go on");
        // A group that is made after the failure knows of it too.
        let pair = [Rank(2), end.rank()];
        let late = end
            .subgroup(&format!("late {}", end.rank()), &pair)
            .unwrap();
        let error = late.all_gather("a", b"", LONG).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::PeerFailed { rank: Rank(0), .. }),
            "{error}"
        );
        Some(end.failure().unwrap().0)
    });
    assert_eq!(results, [Some(Rank(2)), Some(Rank(2)), None, Some(Rank(2))]);
}

#[test]
fn a_rank_that_takes_leave_fails_only_the_rounds_that_need_it() {
    let mut ends = TcpStore::loopback(3).unwrap();
    on_every(&ends, |end| end.all_gather("a", b"", LONG).unwrap());
    drop(ends.remove(1));
    on_every(&ends, |end| {
        let pair = end.subgroup("pair", &[Rank(0), Rank(2)]).unwrap();
        pair.all_gather("a", b"", LONG).unwrap();
        let error = end.all_gather("b", b"", LONG).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::PeerFailed { rank: Rank(1), .. }),
            "{error}"
        );
        assert_eq!(end.failure(), None, "to leave is no failure");
        pair.all_gather("b", b"", LONG).unwrap();
    });
}

#[test]
fn the_store_serves_on_after_rank_0_has_left() {
    let mut ends = TcpStore::loopback(3).unwrap();
    drop(ends.remove(0));
    on_every(&ends, |end| {
        let pair = end.subgroup("pair", &[Rank(1), Rank(2)]).unwrap();
        pair.all_gather("a", b"", LONG).unwrap();
    });
}

#[test]
fn rank_0_waits_a_moment_for_a_late_rank_that_is_owed_an_outcome() {
    let mut ends = TcpStore::loopback(2).unwrap();
    let (late, host) = (ends.pop().unwrap(), ends.pop().unwrap());
    let told = host.all_gather("a", b"", SHORT).unwrap_err();
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            thread::sleep(SHORT);
            late.all_gather("a", b"", LONG).unwrap_err()
        });
        let store = host.link.host().unwrap().store();
        drop(host);
        assert!(store.upgrade().is_none_or(|store| !store.lock().is_owing()));
        assert_eq!(late.join().unwrap().kind(), told.kind());
    });
}

/// A store that says who failed, and goes.
#[test]
fn the_first_failure_stays_when_the_store_is_lost_after_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        hello::read(&mut stream).unwrap();
        stream.write_all(&Answer::Welcome.encode()).unwrap();
        let (key, cause) = (Vec::new(), "on fire".to_owned());
        let failed = Reply::Failed {
            key,
            rank: 2,
            cause,
        };
        stream.write_all(&failed.encode()).unwrap();
    });
    let end = Join::new(Rank(1), 3, "127.0.0.1", port).join().unwrap();
    serving.join().unwrap();
    let error = end.all_gather("a", b"", LONG).unwrap_err();
    let (rank, cause) = (Rank(2), "on fire".to_owned());
    assert_eq!(error.kind(), &ErrorKind::PeerFailed { rank, cause });
    assert_eq!(end.failure().unwrap().0, Rank(2));
}

#[test]
fn a_rank_that_panics_says_so_as_it_leaves() {
    let mut ends = TcpStore::loopback(2).unwrap();
    let last = ends.pop().unwrap();
    let panicked = thread::spawn(move || {
        let _end = last;
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    let error = ends[0].all_gather("a", b"", LONG).unwrap_err();
    let ErrorKind::PeerFailed {
        rank: Rank(1),
        cause,
    } = error.kind()
    else {
        panic!("{error}")
    };
    assert!(cause.contains("panicked"));
}

/// A store that welcomes a rank and never says another word, as a stopped process would.
fn silent() -> (u16, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        hello::read(&mut stream).unwrap();
        stream.write_all(&Answer::Welcome.encode()).unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    });
    (port, serving)
}

#[test]
fn a_store_that_does_not_answer_is_given_up() {
    let (port, serving) = silent();
    let join = Join::new(Rank(1), 3, "127.0.0.1", port).patience(SHORT);
    let end = join.join().unwrap();
    let group = end.subgroup("without rank 0", &[Rank(2), Rank(1)]).unwrap();
    let error = end.all_gather("a", b"", SHORT).unwrap_err();
    let ErrorKind::PeerFailed {
        rank: Rank(0),
        cause,
    } = error.kind()
    else {
        panic!("{error}")
    };
    assert!(cause.contains("does not answer"), "{cause}");
    serving.join().expect("the connection ended with it");
    assert_eq!(end.failure().unwrap().0, Rank(0));
    let error = group.all_gather("a", b"", LONG).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::System(_)), "{error}");
    assert_eq!(group.failure().unwrap().0, group.rank());
    group.publish_failure("nobody hears it");
}

#[test]
fn a_warning_names_the_absent_ranks_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let join = |rank| {
        let place = Join::new(Rank(rank), 4, "127.0.0.1", port);
        place.warn_after(Duration::from_millis(20))
    };
    let _host = join(0).listener(listener).join().unwrap();
    let end = join(2).join().unwrap();
    let texts = warnings::during(|| {
        end.all_gather("slow", b"", SHORT * 3).unwrap_err();
    });
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(
        texts[0].contains("absent=[0, 1, 3]") && texts[0].contains("slow"),
        "{texts:?}"
    );
}
