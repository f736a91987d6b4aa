use std::io::{self, Read};
use std::time::Duration;

use proptest::prelude::*;

use crate::tcp_store::wire::hello::{self, Answer, Hello, Refusal};
use crate::tcp_store::wire::message::{Outcome, Reply, Request};
use crate::tcp_store::wire::{MAX_CAUSE, read_frame};

const LIMIT: usize = 1 << 12;

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..20)
}

fn span() -> impl Strategy<Value = Duration> {
    (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos))
}

fn request() -> impl Strategy<Value = Request> {
    let ranks = prop::collection::vec(any::<u32>(), 0..9);
    let bytes = prop::collection::vec(any::<u8>(), 0..99);
    prop_oneof![
        (key(), ranks).prop_map(|(key, members)| Request::Open { key, members }),
        key().prop_map(|key| Request::Close { key }),
        (key(), ".*", bytes).prop_map(|(key, round, payload)| Request::Post {
            key,
            round,
            payload
        }),
        (key(), ".*", span()).prop_map(|(key, round, waited)| Request::Abort {
            key,
            round,
            waited
        }),
        (key(), ".*").prop_map(|(key, round)| Request::Who { key, round }),
        (key(), ".*").prop_map(|(key, cause)| Request::Publish { key, cause }),
        prop::option::of(".*").prop_map(|cause| Request::Leave { cause }),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let parts = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9);
    let ranks = prop::collection::vec(any::<u32>(), 0..9);
    prop_oneof![
        parts.prop_map(Outcome::All),
        (ranks, span()).prop_map(|(absent, waited)| Outcome::Timeout { absent, waited }),
        (any::<u32>(), ".*").prop_map(|(rank, cause)| Outcome::PeerFailed { rank, cause }),
        ".*".prop_map(Outcome::Misuse),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    let ranks = prop::collection::vec(any::<u32>(), 0..9);
    prop_oneof![
        (key(), ".*", outcome()).prop_map(|(key, round, outcome)| Reply::Outcome {
            key,
            round,
            outcome
        }),
        (key(), ".*", ranks).prop_map(|(key, round, ranks)| Reply::Absent { key, round, ranks }),
        (key(), any::<u32>(), ".*").prop_map(|(key, rank, cause)| Reply::Failed {
            key,
            rank,
            cause
        }),
    ]
}

/// Gives its bytes in pieces of one size.
struct Dripping<'a>(&'a [u8], usize);

impl Read for Dripping<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(self.1);
        self.0.read(&mut buffer[..length])
    }
}

proptest! {
    #[test]
    fn messages_survive_the_wire(requests in prop::collection::vec(request(), 0..5),
                                 replies in prop::collection::vec(reply(), 0..5),
                                 piece in 1..50_usize) {
        let bytes: Vec<_> = requests.iter().flat_map(Request::encode).collect();
        let mut from = Dripping(&bytes, piece);
        for request in requests {
            let body = read_frame(&mut from, LIMIT).unwrap().unwrap();
            prop_assert_eq!(Request::decode(&body), Ok(request));
        }
        prop_assert!(read_frame(&mut from, LIMIT).unwrap().is_none());
        for reply in replies {
            prop_assert_eq!(Reply::decode(&reply.encode()[4..]), Ok(reply));
        }
    }

    #[test]
    fn garbage_is_refused_and_never_panics(tag in 0..10_u8, mut bytes: Vec<u8>) {
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
        let _ = Hello::decode(&bytes);
        let _ = Answer::decode(&bytes);
        let _ = hello::read(&mut &*bytes);
        let _ = read_frame(&mut &*bytes, LIMIT);
        bytes.insert(0, tag);
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
    }

    /// Bytes that were a message, with some of them changed, or cut.
    #[test]
    fn what_was_a_message_is_refused_or_another(request in request(), reply in reply(),
                                                changes in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 1..4),
                                                cut: prop::sample::Index) {
        for mut bytes in [request.encode(), reply.encode()] {
            for (index, byte) in &changes {
                let index = index.index(bytes.len());
                bytes[index] = *byte;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            if let Ok(Some(body)) = read_frame(&mut &*bytes, LIMIT) {
                prop_assert!(body.len() <= LIMIT);
            }
            if let Some(body) = bytes.get(4..) {
                let _ = Request::decode(body);
                let _ = Reply::decode(body);
            }
        }
    }

    #[test]
    fn greetings_survive_the_wire(rank: u32, world_size: u32, token in "[ -~]{0,256}") {
        let hello = Hello { rank, world_size, token: token.into_bytes() };
        let body = hello::read(&mut &*hello.encode()).unwrap();
        prop_assert_eq!(Hello::decode(&body), Ok(hello));
        let answers = [
            Answer::Welcome,
            Answer::Refused(Refusal::WorldSize(world_size)),
            Answer::Refused(Refusal::RankOutOfRange),
            Answer::Refused(Refusal::Duplicate),
            Answer::Refused(Refusal::Busy),
            Answer::Refused(Refusal::Token),
            Answer::Refused(Refusal::Malformed),
        ];
        for answer in answers {
            let body = hello::read(&mut &*answer.encode()).unwrap();
            prop_assert_eq!(Answer::decode(&body), Ok(answer));
        }
    }
}

#[test]
fn a_frame_at_the_limit_passes_and_one_above_does_not() {
    let frame = |length: u32| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.resize(4 + length as usize, 1);
        read_frame(&mut &*bytes, LIMIT)
    };
    let limit = u32::try_from(LIMIT).unwrap();
    assert_eq!(frame(limit).unwrap().unwrap().len(), LIMIT);
    assert_eq!(
        frame(limit + 1).unwrap_err().kind(),
        io::ErrorKind::InvalidData
    );
    let cut = [9, 0, 0, 0, 1];
    assert_eq!(
        read_frame(&mut &cut[..], LIMIT).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
}

#[test]
fn a_long_cause_is_cut_between_two_characters() {
    let cause = "é".repeat(MAX_CAUSE);
    let request = Request::Publish {
        key: Vec::new(),
        cause: format!("x{cause}"),
    };
    let Ok(Request::Publish { cause, .. }) = Request::decode(&request.encode()[4..]) else {
        panic!("it is a message");
    };
    assert_eq!(cause.len(), MAX_CAUSE - 1);
}
