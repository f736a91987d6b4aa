//! Ranks that agree, and ranks that do not.

use std::error::Error as _;
use std::sync::atomic;
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_alloc::exact::Exact;
use collectives_alloc::geometric::Geometric;
use collectives_alloc::options::Seal;
use collectives_alloc::replace::Replace;
use collectives_core::agreement::Record;
use collectives_core::communicator::Communicator as _;
use collectives_core::error::{ErrorKind, Field, Misuse};
use collectives_core::rank::Rank;
use collectives_core::scratch::{Request, ScratchAllocator};
use proptest::prelude::*;
use rstest::rstest;

use crate::mock::{Call, MockComm, alone, world};
use crate::{MIB, acquire, geometric, kind, pool, touch};

/// How long ranks wait for each other.
const DEADLINE: Duration = Duration::from_secs(20);

fn shared_calls(calls: Vec<Call>) -> Vec<Call> {
    let shared = |call: &Call| matches!(call, Call::Agree | Call::Register(_) | Call::Retire(_));
    calls.into_iter().filter(shared).collect()
}

// invariant 36
#[rstest]
fn a_rank_that_asks_for_other_bytes_is_named_on_every_rank_before_anything_is_registered(
    #[values(0, 1, 2)] odd: usize,
) {
    let kinds = world(3, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        let bytes = if comm.rank() == odd { 5 * MIB } else { MIB };
        let failed = kind(acquire(&mut pool, comm, bytes, &stream));
        assert_eq!(comm.mock.calls(), [Call::Agree]);
        assert_eq!(pool.stats().agreement_failures, 1);
        assert!(pool.stats().slots.is_empty());
        // Nothing moved, so the call may be repeated rightly.
        touch(&mut pool, comm, MIB, &stream);
        failed
    });
    assert!(kinds.iter().all(|kind| *kind == kinds[0]));
    let ErrorKind::Mismatch {
        rank,
        field,
        theirs,
        ours,
    } = &kinds[0]
    else {
        panic!("{:?}", kinds[0]);
    };
    assert_eq!((*rank, *field), (Rank::new(odd), Field::Bytes));
    assert_eq!((theirs, ours), (&(5 * MIB).to_string(), &MIB.to_string()));
}

fn configured(table: &str) -> ScratchConfig {
    ScratchConfig::from_toml(&format!("[scratch]\n{table}")).unwrap()
}

/// What three ranks get of their first request, of which the one in the middle is configured otherwise.
fn configured_otherwise(otherwise: &str, bytes: usize) -> Vec<(ErrorKind, Vec<Call>)> {
    world(3, |comm| {
        let stream = comm.stream();
        let table = if comm.rank() == 1 { otherwise } else { "" };
        let mut pool = configured(table).build().unwrap();
        let mut ask = |comm: &mut MockComm| {
            let capture = comm.capture(&stream);
            kind(pool.acquire(comm, Request::new(bytes), &stream, capture))
        };
        let failed = ask(comm);
        // It stays so, and never becomes a silent agreement.
        assert_eq!(ask(comm), failed);
        (failed, comm.mock.calls())
    })
}

// invariant 36
#[rstest]
#[case::policy("policy = 'replace'", "policy = replace", "policy = geometric")]
#[case::growth("growth = 1.5", "growth = 1.5", "growth = 2")]
#[case::cap("cap = '1MiB'", "cap = 1MiB", "cap = none")]
#[case::piece("piece = '1MiB'", "piece = 1MiB", "piece = none")]
#[case::limit("limit = '1MiB'", "limit = 1MiB", "limit = none")]
#[case::windows("max_windows = 3", "max_windows = 3", "max_windows = none")]
#[case::seal("seal = 'never'", "seal = never", "seal = explicit")]
#[case::on_miss("on_miss = 'fallback'", "on_miss = fallback", "on_miss = error")]
#[case::domain("domain = 'graph'", "domain = graph", "domain = shared")]
#[case::order("ordering = 'caller'", "ordering = caller", "ordering = events")]
#[case::check("check = true", "check = true", "check = false")]
fn ranks_with_different_configurations_are_told_the_key_and_both_values(
    #[case] otherwise: &str,
    #[case] theirs: &str,
    #[case] ours: &str,
    // The second is more than one rank's rules allow, which refuses it without the others.
    #[values(MIB, 9 * MIB)] bytes: usize,
) {
    for (failed, calls) in configured_otherwise(otherwise, bytes) {
        let expected = ErrorKind::Mismatch {
            rank: Rank(1),
            field: Field::Configuration,
            theirs: theirs.to_owned(),
            ours: ours.to_owned(),
        };
        assert_eq!(failed, expected);
        assert_eq!(calls, [Call::Agree, Call::Agree]);
    }
}

#[rstest]
#[case::classes(
    "policy = 'geometric-class'",
    "classes_per_octave = 4",
    "classes_per_octave = 4"
)]
#[case::growth_of_reserved("max_request = '1MiB'", "growth = 3", "growth = 3")]
#[case::growth_of_replace("policy = 'replace'", "growth = 3", "growth = 3")]
#[case::growth_of_arena("policy = 'arena'", "growth = 3", "growth = 3")]
fn every_policy_names_what_it_is_configured_by(
    #[case] alike: &str,
    #[case] otherwise: &str,
    #[case] theirs: &str,
) {
    let said = world(2, |comm| {
        let otherwise = if comm.rank() == 1 { otherwise } else { "" };
        let config = configured(&format!("{alike}\n{otherwise}"));
        let mut pool = config.build().unwrap();
        kind(pool.reserve(comm, &[Request::new(MIB)]))
    });
    assert_eq!(said[0], said[1]);
    let ErrorKind::Mismatch { theirs: named, .. } = &said[0] else {
        panic!("{:?}", said[0]);
    };
    assert_eq!(named, theirs);
}

#[test]
fn a_bound_that_differs_is_named() {
    let said = world(2, |comm| {
        let config = configured(&format!("max_request = '{}MiB'", 1 + comm.rank()));
        let mut pool = config.build().unwrap();
        kind(pool.reserve(comm, &[Request::new(MIB)])).to_string()
    });
    let expected = "rank 1 disagrees on the configuration: it has max_request = 2MiB, the others \
                    have max_request = 1MiB";
    assert_eq!(said, [expected, expected]);
}

#[test]
fn ranks_that_are_refused_alike_compare_once_and_not_in_a_capture() {
    world(2, |comm| {
        let stream = comm.stream();
        let mut pool = pool(Geometric::default(), |options| options.cap = Some(MIB));
        comm.mock.begin(&stream);
        assert!(acquire(&mut pool, comm, 2 * MIB, &stream).is_err());
        drop(comm.mock.end(&stream));
        assert_eq!(comm.mock.calls(), []);
        for _ in 0..2 {
            assert!(acquire(&mut pool, comm, 2 * MIB, &stream).is_err());
        }
        assert_eq!(comm.mock.calls(), [Call::Agree]);
    });
}

#[test]
fn ranks_that_meet_for_different_reasons_are_told_so() {
    let kinds = world(2, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        if comm.rank() == 0 {
            kind(pool.trim(comm))
        } else {
            kind(pool.reserve(comm, &[Request::new(3 * MIB)]))
        }
    });
    assert_eq!(kinds[0], kinds[1]);
    assert!(matches!(
        kinds[0],
        ErrorKind::Mismatch {
            field: Field::Operation,
            ..
        }
    ));
    let text = kinds[0].to_string();
    assert!(
        text.contains("it has reserve, the others have trim"),
        "{text}"
    );
}

#[test]
fn ranks_that_reserve_different_workloads_are_told_so() {
    let kinds = world(2, |comm| {
        let mut pool = geometric();
        let second = MIB * (1 + comm.rank());
        let requests = [Request::new(MIB), Request::new(second)];
        let failed = kind(pool.reserve(comm, &requests));
        assert_eq!(comm.mock.calls(), [Call::Agree]);
        failed
    });
    assert_eq!(kinds[0], kinds[1]);
    assert!(matches!(
        kinds[0],
        ErrorKind::Mismatch {
            field: Field::Bytes,
            ..
        }
    ));
}

#[test]
fn ranks_at_different_places_of_their_histories_are_told_so() {
    let kinds = world(3, |comm| {
        let stream = comm.stream();
        // Alike in all but what happened to them: one has met before, and made nothing then.
        let (mut used, mut fresh) = (geometric(), geometric());
        let _ = used.reserve(comm, &[]).unwrap();
        let next = if comm.rank() == 1 {
            &mut fresh
        } else {
            &mut used
        };
        kind(acquire(next, comm, MIB, &stream))
    });
    for kind in kinds {
        let ErrorKind::Mismatch {
            rank,
            field,
            theirs,
            ours,
        } = kind
        else {
            panic!("{kind:?}");
        };
        assert_eq!((rank, field), (Rank(1), Field::Order));
        assert_eq!((theirs.as_str(), ours.as_str()), ("0", "1"));
    }
}

#[test]
fn a_round_in_which_one_rank_made_another_call_counts_for_nobody() {
    world(3, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        for _ in 0..2 {
            let failed = match comm.rank() {
                1 => Record::check_equal(&comm.agree(&Record::new(), DEADLINE).unwrap()),
                _ => acquire(&mut pool, comm, MIB, &stream).map(drop),
            };
            let failed = failed.unwrap_err();
            assert!(
                matches!(failed.kind(), ErrorKind::Mismatch { .. }),
                "{failed}"
            );
        }
        touch(&mut pool, comm, MIB, &stream);
    });
}

#[test]
fn ranks_whose_slots_differ_are_told_so() {
    let kinds = world(2, |comm| {
        let stream = comm.stream();
        let (mut first, mut second) = (pool(Exact::new(), |_| {}), pool(Exact::new(), |_| {}));
        let (filled, empty) = if comm.rank() == 0 {
            (&mut first, &mut second)
        } else {
            (&mut second, &mut first)
        };
        // As many rounds with either, so that only what they hold tells them apart.
        touch(filled, comm, MIB, &stream);
        for _ in 0..2 {
            let _ = empty.reserve(comm, &[]).unwrap();
        }
        assert_eq!(filled.stats().agreements, empty.stats().agreements);
        kind(acquire(&mut first, comm, 3 * MIB, &stream))
    });
    assert_eq!(kinds[0], kinds[1]);
    let ErrorKind::Mismatch { field, .. } = kinds[0] else {
        panic!("{:?}", kinds[0]);
    };
    assert_eq!(field, Field::Slots);
}

#[test]
fn votes_that_a_defective_backend_gives_ranks_differently_are_found_before_a_window_goes() {
    let kinds = world(2, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        touch(&mut pool, comm, 3 * MIB, &stream);
        if comm.rank() == 1 {
            comm.mishears = 0b01;
        }
        let _ = comm.mock.calls();
        let failed = kind(pool.trim(comm));
        let retired = |call: &Call| matches!(call, Call::Retire(_));
        assert!(!comm.mock.calls().iter().any(retired));
        failed
    });
    assert_eq!(kinds[0], kinds[1]);
    let ErrorKind::Mismatch { field, .. } = kinds[0] else {
        panic!("{:?}", kinds[0]);
    };
    assert_eq!(field, Field::Count);
}

// invariant 39
#[test]
fn a_rank_that_never_comes_is_reported_within_the_deadline_and_to_itself() {
    let kinds = world(3, |comm| {
        let stream = comm.stream();
        let mut pool = pool(Geometric::default(), |options| {
            options.agree_deadline = Duration::from_millis(50);
        });
        if comm.rank() == 2 {
            std::thread::sleep(Duration::from_millis(300));
        }
        let failed = kind(acquire(&mut pool, comm, MIB, &stream));
        assert!(
            !comm
                .mock
                .calls()
                .iter()
                .any(|call| matches!(call, Call::Allocate(_)))
        );
        failed
    });
    for kind in kinds {
        let ErrorKind::Timeout { absent, .. } = kind else {
            panic!("{kind:?}");
        };
        assert_eq!(absent, [Rank(2)]);
    }
}

// invariant 24
#[test]
fn a_miss_in_capture_is_the_same_error_on_every_rank() {
    let kinds = world(3, |comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        comm.mock.begin(&stream);
        let failed = kind(acquire(&mut pool, comm, MIB, &stream));
        drop(comm.mock.end(&stream));
        failed
    });
    assert!(kinds.iter().all(|kind| *kind == kinds[0]));
}

#[test]
fn a_pool_serves_one_communicator_only() {
    alone(|comm| {
        let (mut pool, stream) = (geometric(), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        alone(|other| {
            let mut pool = geometric();
            touch(&mut pool, other, MIB, &other.stream());
        });
        let _ = comm.mock.calls();
    });
    let pool = std::sync::Mutex::new(geometric());
    alone(|comm| touch(&mut pool.lock().unwrap(), comm, MIB, &comm.stream()));
    alone(|comm| {
        let failed = acquire(&mut pool.lock().unwrap(), comm, MIB, &comm.stream());
        assert!(failed.unwrap_err().misuse().is_some());
        assert!(pool.lock().unwrap().trim(comm).is_err());
        assert!(pool.lock().unwrap().close(comm).is_err());
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    // invariants 33, 37 and 38
    #[test]
    fn all_ranks_decide_register_and_retire_alike(
        sizes in prop::collection::vec(1..64_usize, 1..24),
        trims in prop::collection::vec(any::<bool>(), 24),
    ) {
        let seen = world(3, |comm| {
            let mut pool = pool(Replace::default(), |_| {});
            let streams = [comm.stream(), comm.stream()];
            let mut slots = Vec::new();
            for (turn, (&size, &trim)) in sizes.iter().zip(&trims).enumerate() {
                // Which stream a rank uses is its own business.
                let stream = &streams[(turn + comm.rank()) % 2];
                slots.push(touch(&mut pool, comm, size * MIB, stream));
                if trim {
                    let _ = pool.trim(comm).unwrap();
                }
            }
            let stats = pool.stats();
            (slots, shared_calls(comm.mock.calls()), stats.digest, stats.agreements)
        });
        prop_assert!(seen.iter().all(|rank| *rank == seen[0]), "{seen:?}");
    }
}

#[test]
fn a_step_that_fails_for_another_reason_than_memory_is_no_want_of_memory() {
    let kinds = world(3, |comm| {
        let (mut pool, stream) = (pool(Exact::new(), |_| {}), comm.stream());
        touch(&mut pool, comm, MIB, &stream);
        let on = comm.rank() == 1;
        comm.mock.fenceless.store(on, atomic::Ordering::Relaxed);
        let error = acquire(&mut pool, comm, 2 * MIB, &stream).unwrap_err();
        assert!(!error.poisons(), "nothing moved: {error}");
        assert_eq!(error.source().is_some(), on, "its own error, on that rank");
        assert_eq!(pool.fallback_reason(&error), None, "a failure is final");
        assert_eq!(pool.stats().slots.len(), 1, "what is idle is not given up");
        comm.mock.fenceless.store(false, atomic::Ordering::Relaxed);
        touch(&mut pool, comm, 2 * MIB, &stream);
        error.kind().clone()
    });
    let expected = ErrorKind::PeerFailed {
        rank: Rank(1),
        cause: "no events".to_owned(),
    };
    assert_eq!(kinds, [(); 3].map(|()| expected.clone()));
}

#[rstest]
#[case::more_than_the_cap(9 * MIB)]
#[case::nothing(0)]
fn a_reservation_that_one_rank_gets_wrong_is_the_same_error_everywhere(#[case] odd: usize) {
    let kinds = world(3, |comm| {
        let mut pool = pool(Exact::new(), |options| options.cap = Some(8 * MIB));
        let bytes = if comm.rank() == 1 { odd } else { MIB };
        let failed = kind(pool.reserve(comm, &[Request::new(bytes)]));
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        failed
    });
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field: Field::Bytes,
        theirs: odd.to_string(),
        ours: MIB.to_string(),
    };
    assert_eq!(kinds, [(); 3].map(|()| expected.clone()));
}

#[test]
fn a_rank_that_alone_has_sealed_is_named() {
    let kinds = world(3, |comm| {
        let mut pool = pool(Exact::new(), |options| options.seal = Seal::Explicit);
        if comm.rank() == 1 {
            pool.seal();
        }
        kind(pool.reserve(comm, &[Request::new(MIB)]))
    });
    let expected = ErrorKind::PeerFailed {
        rank: Rank(1),
        cause: Misuse::Sealed.to_string(),
    };
    assert_eq!(kinds, [(); 3].map(|()| expected.clone()));
}
