//! Traces as text: what is written reads back, and what is wrong is named by line and column.
#![forbid(unsafe_code)]

use proptest::prelude::*;
use rstest::rstest;

use collectives_alloc::trace::{self, Call, Event, HEADER, Outcome};
use collectives_core::error::{ErrorKind, Result};

fn read(lines: &str) -> Result<Vec<Event>> {
    trace::read(format!("{HEADER}\n{lines}").as_bytes())
}

#[test]
fn every_call_is_read() {
    let events = read(
        "0,reserve,8388608,,,done,\n\
         1,acquire,10240,0,,hit,1\n\
         1,release,,,,,\r\n\
         2,acquire,20480,1,0,fallback,\n\
         3,seal,,,,done,\n\
         4,trim,,,,failed,\n\
         5,close,,,,done,\n",
    )
    .unwrap();
    let acquire = |bytes, stream, capture, outcome, generation| Call::Acquire {
        bytes,
        stream,
        capture,
        outcome,
        generation,
    };
    let calls = [
        (
            0,
            Call::Reserve {
                bytes: 8 << 20,
                outcome: Outcome::Done,
            },
        ),
        (1, acquire(10240, 0, None, Outcome::Hit, Some(1))),
        (1, Call::Release),
        (2, acquire(20480, 1, Some(0), Outcome::Fallback, None)),
        (3, Call::Seal),
        (4, Call::Trim(Outcome::Failed)),
        (5, Call::Close(Outcome::Done)),
    ];
    assert_eq!(
        events,
        calls.map(|(sequence, call)| Event::new(sequence, call))
    );
}

#[test]
fn a_trace_in_pieces_keeps_one_piece_whatever_is_asked_for() {
    use collectives_alloc::geometric::Geometric;
    use collectives_alloc::options::Options;
    use collectives_alloc::replay::{Replay, in_pieces};

    const MIB: usize = 1 << 20;
    let sizes = [3 * MIB, 9 * MIB, 64 * MIB, 65 * MIB, 40 * MIB];
    let events: Vec<_> = sizes
        .iter()
        .zip(0..)
        .flat_map(|(&bytes, sequence)| {
            let (stream, capture, outcome) = (0, None, Outcome::Hit);
            let acquire = Call::Acquire {
                bytes,
                stream,
                capture,
                outcome,
                generation: Some(1),
            };
            [acquire, Call::Release].map(|call| Event::new(sequence, call))
        })
        .collect();
    let mut options = Options::default();
    options.cap = Some(64 * MIB);
    options.piece = Some(4 * MIB);
    let totals = |events: &[Event]| {
        let replay = Replay {
            policy: &Geometric::default(),
            options: &options,
            granule: 2 * MIB,
            overhead: 0,
        };
        replay.run(events)
    };
    let (whole, split) = (totals(&events), totals(&in_pieces(&events, &options)));
    assert_eq!((whole.fallbacks, split.fallbacks), (1, 1), "above the cap");
    assert_eq!(
        (split.largest_request, split.mapped_bytes),
        (4 * MIB, 4 * MIB)
    );
    assert!(whole.mapped_bytes > 64 * MIB);
}

const ACQUIRED: &str = "must be one of hit, grow, fallback, refused, failed, failed-fallback";

#[rstest]
#[case::no_number(
    "x,seal,,,,done,",
    1,
    "sequence",
    "x",
    "is no whole number, or too large"
)]
#[case::negative(
    "-1,seal,,,,done,",
    1,
    "sequence",
    "-1",
    "is no whole number, or too large"
)]
#[case::call(
    "0,aquire,1,0,,hit,1",
    3,
    "call",
    "aquire",
    "must be one of acquire, release, reserve, seal, trim, close; did you mean `acquire`?"
)]
#[case::zero("0,acquire,0,0,,hit,1", 11, "bytes", "0", "must be more than zero")]
#[case::overflow(
    "0,acquire,99999999999999999999,0,,hit,1",
    11,
    "bytes",
    "99999999999999999999",
    "is no whole number, or too large"
)]
#[case::stream(
    "0,acquire,4096,,,hit,1",
    16,
    "stream",
    "",
    "is no whole number, or too large"
)]
#[case::capture(
    "0,acquire,4096,0,yes,hit,1",
    18,
    "capture",
    "yes",
    "is no whole number, or too large"
)]
#[case::outcome("0,acquire,4096,0,,hti,1", 19, "outcome", "hti", ACQUIRED_HINT)]
#[case::done("0,acquire,4096,0,,done,1", 19, "outcome", "done", ACQUIRED)]
#[case::no_slot(
    "0,acquire,4096,0,,hit,",
    23,
    "generation",
    "",
    "is no whole number, or too large"
)]
#[case::slot(
    "0,acquire,4096,0,,refused,7",
    27,
    "generation",
    "7",
    "must be empty for this call"
)]
#[case::release("0,release,1,,,,", 11, "bytes", "1", "must be empty for this call")]
#[case::seal("0,seal,,,,failed,", 11, "outcome", "failed", "must be done")]
#[case::trim(
    "0,trim,,,,hit,",
    11,
    "outcome",
    "hit",
    "must be one of done, refused, failed"
)]
fn a_bad_field_is_named(
    #[case] line: &str,
    #[case] column: usize,
    #[case] field: &str,
    #[case] text: &str,
    #[case] what: &str,
) {
    let error = read(&format!("0,seal,,,,done,\n{line}\n")).unwrap_err();
    let expected = format!("trace, line 3, column {column}: `{field}` is `{text}`, which {what}");
    assert_eq!(error.kind(), &ErrorKind::Config(expected));
}

const ACQUIRED_HINT: &str =
    "must be one of hit, grow, fallback, refused, failed, failed-fallback; did you mean `hit`?";

#[rstest]
#[case::empty(b"", "trace, line 1, column 1: a trace begins with the header `")]
#[case::header(
    b"tokens,kind\n",
    "trace, line 1, column 1: a trace begins with the header `"
)]
#[case::blank(
    b"sequence,call,bytes,stream,capture,outcome,generation\n\n",
    "trace, line 2, column 1: 1 fields instead of 7"
)]
#[case::short(
    b"sequence,call,bytes,stream,capture,outcome,generation\n0,seal,,\n",
    "trace, line 2, column 9: 4 fields instead of 7"
)]
#[case::long(
    b"sequence,call,bytes,stream,capture,outcome,generation\n0,seal,,,,done,,\n",
    "trace, line 2, column 17: 8 fields instead of 7"
)]
#[case::not_text(
    b"sequence,call,bytes,stream,capture,outcome,generation\n\xff\n",
    "trace, line 2: stream did not contain valid UTF-8"
)]
fn a_bad_file_is_refused(#[case] text: &[u8], #[case] expected: &str) {
    let error = trace::read(text).unwrap_err();
    let ErrorKind::Config(message) = error.kind() else {
        panic!("{error:?}");
    };
    assert!(message.starts_with(expected), "{message}");
}

fn call() -> impl Strategy<Value = Call> {
    let leased = prop::sample::select(vec![Outcome::Hit, Outcome::Grow]);
    let unserved = prop::sample::select(vec![
        Outcome::Fallback,
        Outcome::Refused,
        Outcome::Failed,
        Outcome::FailedFallback,
    ]);
    let ended = || prop::sample::select(vec![Outcome::Done, Outcome::Refused, Outcome::Failed]);
    let outcome = prop_oneof![
        (leased, any::<u64>().prop_map(Some)),
        unserved.prop_map(|outcome| (outcome, None)),
    ];
    prop_oneof![
        (1_usize.., any::<u32>(), any::<Option<u32>>(), outcome).prop_map(
            |(bytes, stream, capture, (outcome, generation))| Call::Acquire {
                bytes,
                stream,
                capture,
                outcome,
                generation,
            }
        ),
        Just(Call::Release),
        (any::<usize>(), ended()).prop_map(|(bytes, outcome)| Call::Reserve { bytes, outcome }),
        Just(Call::Seal),
        ended().prop_map(Call::Trim),
        ended().prop_map(Call::Close),
    ]
}

proptest! {
    #[test]
    fn what_is_written_reads_back(calls in prop::collection::vec((any::<u64>(), call()), 0..20)) {
        let calls = calls.into_iter();
        let events: Vec<_> = calls.map(|(sequence, call)| Event::new(sequence, call)).collect();
        let mut text = Vec::new();
        trace::write(&mut text, &events).unwrap();
        prop_assert_eq!(trace::read(&*text).unwrap(), events);
    }

    #[test]
    fn garbage_is_refused_or_read_but_never_panics(
        bytes: Vec<u8>,
        text: String,
        line in "[0-9]{0,25},(acquire|release|reserve|seal|trim|[a-z]*)(,[0-9a-z-]{0,8}){5}",
    ) {
        let _ = trace::read(&*bytes);
        let _ = read(&text);
        let _ = read(&line);
    }
}
