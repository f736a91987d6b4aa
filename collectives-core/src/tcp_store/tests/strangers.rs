//! Whoever else connects: the store refuses or ignores them, and the world does not notice.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rstest::rstest;

use super::{LONG, SHORT, on_every, warnings};
use crate::bootstrap::Bootstrap;
use crate::error::{Error, ErrorKind, Misuse, Unsupported};
use crate::rank::Rank;
use crate::tcp_store::reception::{self, READY};
use crate::tcp_store::server::Host;
use crate::tcp_store::wire::hello::{self, Answer, Hello, MAGIC, Refusal, Unread, VERSION};
use crate::tcp_store::{Join, TcpStore};

const WORLD: u32 = 3;

struct Site {
    port: u16,
    host: TcpStore,
}

impl Site {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let join = Self::place(port, 0).introduction(SHORT * 6);
        let host = join.listener(listener).join().unwrap();
        Self { port, host }
    }

    fn place(port: u16, rank: u32) -> Join {
        Join::new(Rank(rank), WORLD as usize, "127.0.0.1", port).token("session")
    }

    fn join(&self, rank: u32) -> TcpStore {
        Self::place(self.port, rank).join().unwrap()
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).unwrap()
    }

    /// The other ranks come, and everything works.
    fn works(self) {
        let ends = [self.join(1), self.join(2), self.host];
        on_every(&ends, |end| {
            let all = end.all_gather("a", &[9], LONG).unwrap();
            assert_eq!(all, [[9], [9], [9]]);
            assert_eq!(end.failure(), None);
        });
    }
}

fn hello(rank: u32) -> Vec<u8> {
    let token = b"session".to_vec();
    Hello {
        rank,
        world_size: WORLD,
        token,
    }
    .encode()
}

#[rstest]
#[case::nothing(b"")]
#[case::half_a_magic(b"\xC0L")]
#[case::half_a_greeting(b"\xC0LST\x01\x00\x30\x00\x01\x00")]
#[case::a_web_browser(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")]
#[case::an_absurd_length(b"\xC0LST\x01\x00\xFF\xFF")]
#[case::zeros(&[0; 4096])]
#[case::ones(&[0xFF; 4096])]
fn strangers_are_ignored(#[case] words: &[u8]) {
    let site = Site::new();
    for shutdown in [true, false] {
        let mut stream = site.connect();
        let _ = stream.write_all(words);
        if shutdown {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let mut heard = Vec::new();
        // It is told nothing, and the store hangs up.
        let _ = stream.read_to_end(&mut heard);
        assert_eq!(heard, b"");
    }
    site.works();
}

#[test]
fn a_rank_that_dies_while_it_introduces_itself_may_come_again() {
    let site = Site::new();
    for rank in [1, 2, 1] {
        loop {
            let mut stream = site.connect();
            stream.write_all(&hello(rank)).unwrap();
            let body = hello::read(&mut stream).unwrap();
            match Answer::decode(&body).unwrap() {
                Answer::Welcome => break,
                // The store has not noticed yet that the one before has died.
                answer => assert_eq!(answer, Answer::Refused(Refusal::Busy)),
            }
        }
    }
    let mut impolite = site.connect();
    impolite.write_all(&hello(1)).unwrap();
    impolite.write_all(&[!READY]).unwrap();
    site.works();
}

#[test]
fn the_slow_and_the_many_do_not_keep_anybody_out() {
    let site = Site::new();
    let mut slow = site.connect();
    let port = site.port;
    let dripping = thread::spawn(move || {
        for &byte in hello(1).iter().cycle() {
            if slow.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(15));
        }
    });
    let many: Vec<_> = (0..300)
        .map_while(|_| TcpStream::connect(("127.0.0.1", port)).ok())
        .collect();
    site.works();
    dripping.join().expect("the store hung up");
    drop(many);
}

#[test]
fn what_connects_and_says_nothing_is_named() {
    let pair = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = TcpStream::connect(pair.local_addr().unwrap()).unwrap();
    let (accepted, _) = pair.accept().unwrap();
    let host = Host::start(pair, WORLD, b"session".to_vec(), SHORT).unwrap();
    let texts = warnings::during(|| {
        let store = host.store().upgrade().unwrap();
        assert_eq!(reception::receive(&store, &accepted), None);
    });
    let from = silent.local_addr().unwrap().to_string();
    for part in [from.as_str(), "which rank it is", "within 60ms"] {
        assert!(texts[0].contains(part), "{part}: {texts:?}");
    }
    assert_eq!(texts.len(), 1, "{texts:?}");
}

fn refused(site: &Site, join: Join) -> Error {
    let error = join.join().unwrap_err();
    assert!(site.host.failure().is_none());
    error
}

#[test]
fn who_does_not_belong_is_told_why() {
    let site = Site::new();
    let one = site.join(1);
    let join = |rank, world_size| {
        let join = Join::new(Rank(rank), world_size, "127.0.0.1", site.port);
        join.token("session").deadline(SHORT * 10)
    };
    let text = |error: Error| match error.kind() {
        ErrorKind::Config(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    assert!(text(refused(&site, join(1, 3))).contains("rank 1 already"));
    assert!(text(refused(&site, join(3, 4))).contains("one of 3"));
    assert!(text(refused(&site, join(2, 3).token("another"))).contains("tokens differ"));
    let mut raw = site.connect();
    raw.write_all(&hello(7)).unwrap();
    let body = hello::read(&mut raw).unwrap();
    assert_eq!(
        Answer::decode(&body),
        Ok(Answer::Refused(Refusal::RankOutOfRange))
    );
    drop(one);
    assert!(text(refused(&site, join(1, 3))).contains("or had one"));
}

#[test]
fn another_version_is_told_ours_and_is_an_error_of_its_own() {
    let site = Site::new();
    let mut raw = site.connect();
    let mut newer = hello(1);
    newer[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    raw.write_all(&newer).unwrap();
    let body = hello::read(&mut raw).unwrap();
    assert_eq!(
        Answer::decode(&body),
        Ok(Answer::Refused(Refusal::Version(VERSION)))
    );
    site.works();

    // A store of another version answers in its own, of which only the header is known.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        hello::read(&mut stream).unwrap();
        let mut answer = MAGIC.to_vec();
        answer.extend([9, 0, 3, 0, 1, 2, 3]);
        stream.write_all(&answer).unwrap();
        let unread = hello::read(&mut &*answer);
        assert!(matches!(unread, Err(Unread::Version(9))));
    });
    let error = Join::new(Rank(1), 2, "127.0.0.1", port).join().unwrap_err();
    other.join().unwrap();
    let ErrorKind::Unsupported(Unsupported::Version(text)) = error.kind() else {
        panic!("{error}");
    };
    assert!(text.contains("version 9"), "{text}");
}

/// A rank that is one, as far as anybody can tell, and then says this.
#[rstest]
#[case::an_absurd_length(&[0xFF; 4])]
#[case::an_unknown_kind(&[1, 0, 0, 0, 99])]
#[case::an_empty_frame(&[0; 4])]
#[case::a_group_nobody_opened(&[6, 0, 0, 0, 1, 1, 0, 0, 0, 7])]
#[case::half_a_frame(&[8, 0, 0, 0, 1])]
fn a_rank_that_breaks_the_protocol_has_failed(#[case] words: &[u8]) {
    let site = Site::new();
    let two = site.join(2);
    let mut rogue = site.connect();
    rogue.write_all(&hello(1)).unwrap();
    hello::read(&mut rogue).unwrap();
    rogue.write_all(&[READY]).unwrap();
    rogue.write_all(words).unwrap();
    rogue.shutdown(Shutdown::Write).unwrap();
    on_every(&[site.host, two], |end| {
        let error = end.all_gather("a", b"", LONG).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::PeerFailed { rank: Rank(1), .. }),
            "{error}"
        );
    });
}

#[test]
fn a_service_that_is_no_store_is_named_as_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .write_all(b"220 mail.example ESMTP ready\r\n")
            .unwrap();
        // It hears the greeting, and closing the connection does not take its words back.
        let _ = hello::read(&mut stream);
    });
    let join = Join::new(Rank(1), 2, "127.0.0.1", port);
    let error = join.once(LONG).join().unwrap_err();
    other.join().unwrap();
    assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("no store of ours"), "{source}");
    let out_of_range = Join::new(Rank(5), 2, "127.0.0.1", port).join().unwrap_err();
    assert!(matches!(
        out_of_range.misuse(),
        Some(Misuse::RankOutOfRange { .. })
    ));
}
