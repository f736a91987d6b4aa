//! What a hit costs: `acquire` and `complete` of an unclaimed slot on its own stream.
//!
//! ```text
//! cargo bench -p collectives-alloc --features metrics --bench lease
//! ```
#![expect(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/pool/mock.rs"]
#[expect(dead_code, reason = "shared with the tests of the pool")]
mod mock;

use std::hint::black_box;
use std::time::Instant;

use collectives_alloc::arena::Arena;
use collectives_alloc::budget::Budget;
use collectives_alloc::geometric::Geometric;
use collectives_alloc::options::{DomainMode, OnMiss, Options, Seal};
use collectives_alloc::policy::Policy;
use collectives_alloc::pool::Pool;
use collectives_core::communicator::Communicator;
use collectives_core::scratch::{Request, ScratchAllocator, Site};
use collectives_host::world::HostWorld;
use criterion::{Criterion, criterion_group, criterion_main};

/// Nanoseconds that one call takes, at these percentiles, the clock's own share taken off.
fn percentiles(mut call: impl FnMut()) -> [u64; 2] {
    let sample = |call: &mut dyn FnMut()| {
        let mut times: Vec<_> = (0..200_000)
            .map(|_| {
                let begun = Instant::now();
                call();
                begun.elapsed().as_nanos()
            })
            .collect();
        times.sort_unstable();
        times
    };
    let clock = sample(&mut || {})[100_000];
    let times = sample(&mut call);
    [100_000, 198_000].map(|index| u64::try_from(times[index].saturating_sub(clock)).unwrap())
}

/// What is asked for in turn, so that no slot and no size is always the same.
const ASKED: [usize; 4] = [10 << 10, 640 << 10, 3 << 20, 9 << 20];

/// Times one request after another on slots that are there.
fn time(
    criterion: &mut Criterion,
    name: &str,
    comm: &mut dyn Communicator,
    pool: &mut Pool,
    asked: &[usize],
) {
    let stream = comm.device().create_stream().unwrap();
    let site = Site {
        stream: &stream,
        capture: None,
    };
    let mut turn = 0;
    let mut hit = || {
        turn = (turn + 1) % asked.len();
        let request = Request::new(black_box(asked[turn]));
        let lease = pool.acquire(comm, request, site).unwrap();
        black_box(lease.operand());
        lease.complete().unwrap();
    };
    (0..100).for_each(|_| hit());
    let [p50, p99] = percentiles(&mut hit);
    println!("{name}: p50 {p50} ns, p99 {p99} ns");
    criterion.bench_function(name, |bencher| bencher.iter(&mut hit));
    let stats = pool.stats();
    assert_eq!(stats.growths, 0, "something else than hits was timed");
}

fn lease(criterion: &mut Criterion) {
    for slots in [1, 4] {
        let mut comm = mock::MockComm::alone();
        let mut pool = Pool::new(Box::new(Geometric::default()), Options::default());
        let sizes = (0..slots).map(|slot| Request::new((2 << 20) << slot));
        let _ = pool.reserve(&mut comm, &sizes.collect::<Vec<_>>()).unwrap();
        let name = format!("a device that does nothing, {slots} slots");
        time(criterion, &name, &mut comm, &mut pool, &[1 << 20]);
    }
}

/// The host backend, with a pool as it is by default, and with everything that can be asked of one.
fn features(criterion: &mut Criterion) {
    let reserved = [1 << 20, 4 << 20, 16 << 20].map(Request::new);
    let mut run = |name: &str, policy: Box<dyn Policy>, options: Options| {
        let mut comm = HostWorld::new(1).connect().unwrap().remove(0);
        let mut pool = Pool::new(policy, options).with_budget(Budget::new(1 << 30));
        let _ = pool.reserve(&mut comm, &reserved).unwrap();
        time(criterion, name, &mut comm, &mut pool, &ASKED);
    };
    run("host", Box::<Geometric>::default(), Options::default());
    let everything = |domain| {
        let mut options = Options::default();
        options.domain = domain;
        options.cap = Some(64 << 20);
        options.limit = Some(256 << 20);
        options.max_windows = Some(100);
        options.on_miss = OnMiss::Fallback;
        options.seal = Seal::AfterReserve;
        options
    };
    #[cfg(feature = "metrics")]
    metrics::set_global_recorder(&metrics::NoopRecorder).unwrap();
    tracing::subscriber::set_global_default(Listener).unwrap();
    let geometric = Box::<Geometric>::default;
    let arena = || Box::new(Arena::new(Arena::DEFAULT_GROWTH).unwrap());
    run(
        "host, everything on",
        geometric(),
        everything(DomainMode::Shared),
    );
    run(
        "host, everything on, a domain a stream",
        geometric(),
        everything(DomainMode::Stream),
    );
    run(
        "host, everything on, a domain a graph",
        geometric(),
        everything(DomainMode::Graph),
    );
    run(
        "host, everything on, arena, a domain a stream",
        arena(),
        everything(DomainMode::Stream),
    );
}

/// Wants to hear everything, and does nothing with it.
struct Listener;

impl tracing::Subscriber for Listener {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        black_box(event);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

criterion_group!(benches, lease, features);
criterion_main!(benches);
