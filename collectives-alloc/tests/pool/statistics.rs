//! What is counted, and what is said of it.

use collectives_alloc::exact::Exact;
use collectives_alloc::geometric::Geometric;
use collectives_alloc::geometric_class::GeometricClass;
use collectives_alloc::options::OnMiss;
use collectives_alloc::policy::Policy;
use collectives_alloc::replace::Replace;
use collectives_core::communicator::Communicator;
use collectives_core::scratch::{Request, ScratchAllocator};
use proptest::prelude::*;
use rstest::rstest;

use crate::mock::{MockGraph, alone, world};
use crate::{MIB, acquire, balanced, geometric, pool, touch, warnings};

type Figures = (usize, usize, u64, usize);

fn boxed(policy: impl Policy + 'static) -> Box<dyn Policy> {
    Box::new(policy)
}

// invariant 10
#[rstest]
#[case::exact(|| boxed(Exact::new()), (51_118_080, 62_914_560, 12, 0))]
#[case::geometric_class(|| boxed(GeometricClass::default()), (15_728_640, 16_777_216, 4, 0))]
#[case::geometric(|| boxed(Geometric::default()), (14_680_064, 14_680_064, 3, 0))]
#[case::replace(|| boxed(Replace::default()), (14_680_064, 14_680_064, 3, 2))]
fn the_seed_trace_comes_to_its_table_on_four_ranks_with_captures(
    #[case] policy: fn() -> Box<dyn Policy>,
    #[case] expected: Figures,
) {
    let all = world(4, |comm| {
        let mut pool = collectives_alloc::pool::Pool::new(policy(), crate::options(|_| {}));
        let (stream, padded) = (comm.stream(), |tokens: usize| {
            tokens.next_multiple_of(64) * 10_240
        });
        let mut graphs: Vec<MockGraph> = Vec::new();
        for batch in [1, 8, 64, 128, 256].map(padded) {
            let _ = pool.reserve(comm, &[Request::new(batch)]).unwrap();
            comm.mock.begin(&stream);
            // Two layers.
            touch(&mut pool, comm, batch, &stream);
            touch(&mut pool, comm, batch, &stream);
            graphs.push(comm.mock.end(&stream));
        }
        let prompts = [
            37, 64, 101, 150, 192, 230, 300, 350, 410, 480, 505, 570, 640, 655, 700, 768,
        ];
        let mut after_first = 0;
        for _ in 0..2 {
            after_first = pool.stats().registrations;
            for prompt in prompts.map(padded) {
                touch(&mut pool, comm, prompt, &stream);
            }
        }
        let stats = pool.stats();
        // invariant 8
        assert_eq!(
            stats.registrations, after_first,
            "nothing new in the second sweep"
        );
        assert_eq!(stats.largest_request, padded(768));
        assert_eq!(stats.requests, 42);
        if let Some(bound) = stats.promised_bound {
            let live = stats.slots.iter().filter(|slot| !slot.retired);
            assert!(live.map(|slot| slot.capacity).sum::<usize>() <= bound);
        }
        balanced(&pool);
        let retired = stats.slots.iter().filter(|slot| slot.retired);
        let owned = retired.filter(|slot| slot.claimed).count();
        (
            stats.capacity_bytes(),
            stats.mapped_bytes(),
            stats.registrations,
            owned,
        )
    });
    assert_eq!(all, [expected; 4]);
}

// invariant 50
#[test]
fn every_request_is_counted_once_by_its_outcome() {
    alone(|comm| {
        let stream = comm.stream();
        let mut pool = pool(Geometric::default(), |options| {
            options.cap = Some(8 * MIB);
            options.on_miss = OnMiss::Fallback;
        });
        let _ = pool.reserve(comm, &[Request::new(MIB)]).unwrap();
        touch(&mut pool, comm, MIB, &stream);
        touch(&mut pool, comm, 3 * MIB, &stream);
        touch(&mut pool, comm, 3 * MIB, &stream);
        assert!(acquire(&mut pool, comm, 9 * MIB, &stream).is_err());
        pool.seal();
        assert!(acquire(&mut pool, comm, 8 * MIB, &stream).is_err());
        assert!(acquire(&mut pool, comm, 0, &stream).is_err());
        let _ = pool.close(comm).unwrap();
        assert!(acquire(&mut pool, comm, MIB, &stream).is_err());
        let stats = pool.stats();
        assert_eq!((stats.requests, stats.hits, stats.growths), (6, 2, 1));
        assert_eq!((stats.fallback_count(), stats.refusals), (2, 1));
        assert_eq!((stats.registrations, stats.deregistrations), (2, 2));
        assert_eq!(stats.histogram.0[20], 2);
        assert_eq!(stats.histogram.0[21], 2);
        assert_eq!(stats.histogram.0[23], 2);
        assert_eq!(stats.histogram.0.iter().sum::<u64>(), stats.requests);
        balanced(&pool);
    });
}

// invariant 9
#[test]
fn mapped_bytes_are_whole_granules_and_what_the_backend_took() {
    alone(|comm| {
        let mut pool = pool(Exact::new(), |_| {});
        for bytes in [1, 2 * MIB, 2 * MIB + 1, 5 * MIB] {
            touch(&mut pool, comm, bytes, &comm.stream());
        }
        let stats = pool.stats();
        let info = comm.info();
        for slot in &stats.slots {
            assert_eq!(slot.mapped, info.mapped(slot.capacity));
        }
        let taken: usize = comm.ranges().values().map(|(_, bytes)| bytes).sum();
        assert_eq!(stats.mapped_bytes(), taken);
        assert_eq!(stats.peak_mapped_bytes, taken);
    });
}

#[test]
fn the_digest_follows_every_decision() {
    let digest = |sizes: &[usize]| {
        alone(|comm| {
            let (mut pool, stream) = (geometric(), comm.stream());
            for &bytes in sizes {
                touch(&mut pool, comm, bytes, &stream);
            }
            pool.stats().digest
        })
    };
    assert_eq!(digest(&[1, 2, MIB]), digest(&[1, 2, MIB]));
    assert_ne!(digest(&[1, 2, MIB]), digest(&[2, 1, MIB]));
    assert_ne!(digest(&[1]), digest(&[1, 1]));
}

proptest! {
    // invariant 50
    #[test]
    fn statistics_equal_the_replayed_trace(
        sizes in prop::collection::vec(0..40_usize, 0..60),
        sealed_at in 0..60_usize,
    ) {
        alone(|comm| {
            let stream = comm.stream();
            let mut pool = pool(Geometric::default(), |options| options.cap = Some(32 * MIB));
            let (mut slots, mut expected) = (Vec::<usize>::new(), [0_u64; 4]);
            for (turn, size) in sizes.iter().map(|size| size * MIB).enumerate() {
                if turn == sealed_at {
                    pool.seal();
                }
                let largest = slots.iter().copied().max().unwrap_or(0);
                let outcome = match size {
                    0 => None,
                    size if size > 32 * MIB => Some(2),
                    size if size <= largest => Some(0),
                    _ if turn >= sealed_at => Some(3),
                    size => {
                        slots.push(size.max(2 * largest).next_multiple_of(2 * MIB));
                        Some(1)
                    }
                };
                if let Some(outcome) = outcome {
                    expected[outcome] += 1;
                }
                let _ = acquire(&mut pool, comm, size, &stream);
            }
            let stats = pool.stats();
            let counted = [stats.hits, stats.growths, stats.fallback_count(), stats.refusals];
            assert_eq!(counted, expected);
            assert_eq!(stats.requests, expected.iter().sum::<u64>());
            assert_eq!(stats.capacity_bytes(), slots.iter().sum::<usize>());
            assert_eq!(stats.registrations, expected[1]);
        });
    }
}

#[test]
fn growth_while_serving_is_a_warning_with_the_reserve_that_prevents_it() {
    let run = |before: &[Request]| {
        let mut misses = 0;
        let texts = warnings::during(|| {
            alone(|comm| {
                let (mut pool, stream) = (geometric(), comm.stream());
                let _ = pool.reserve(comm, before).unwrap();
                touch(&mut pool, comm, 3 * MIB, &stream);
                touch(&mut pool, comm, 2 * MIB, &stream);
                misses = pool.stats().misses;
            });
        });
        (texts, misses)
    };
    let (texts, misses) = run(&[]);
    assert_eq!((texts.len(), misses), (1, 1), "{texts:?}");
    let call = "reserve(&[Request::new(3145728)])";
    assert!(texts[0].contains(call), "{texts:?}");
    assert!(texts[0].contains("domain=\"shared\""), "{texts:?}");
    // Who makes that call is warned of nothing.
    let (texts, misses) = run(&[Request::new(3_145_728)]);
    assert_eq!((texts.len(), misses), (0, 0), "{texts:?}");
}
