//! What a hit costs: `acquire` and `release` of an unclaimed slot on its own stream.
//!
//! ```text
//! cargo bench -p collectives-alloc --all-features --bench lease
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
use collectives_core::addr::Operand;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::scratch::{Lease, Request, ScratchAllocator};
use collectives_host::world::HostWorld;
use criterion::{Criterion, criterion_group, criterion_main};

/// What is asked for in turn, so that no slot and no size is always the same.
const ASKED: [usize; 4] = [10 << 10, 640 << 10, 3 << 20, 9 << 20];

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

/// Times `use_of` one size after another.
fn in_turn(
    criterion: &mut Criterion,
    name: &str,
    asked: &[usize],
    mut use_of: impl FnMut(usize) -> Result<()>,
) {
    let mut turn = 0;
    let mut next = || {
        turn = (turn + 1) % asked.len();
        use_of(black_box(asked[turn])).unwrap();
    };
    (0..100).for_each(|_| next());
    let [p50, p99] = percentiles(&mut next);
    println!("{name}: p50 {p50} ns, p99 {p99} ns");
    criterion.bench_function(name, |bencher| bencher.iter(&mut next));
}

/// Times one request after another on slots that are there, with this end of leases.
fn time<A: ScratchAllocator + ?Sized>(
    criterion: &mut Criterion,
    name: &str,
    comm: &mut dyn Communicator,
    pool: &mut A,
    asked: &[usize],
    end: impl Fn(&mut A, Lease) -> Result<()>,
) {
    let stream = comm.device().create_stream().unwrap();
    in_turn(criterion, name, asked, |bytes| {
        let lease = pool.acquire(comm, Request::new(bytes), &stream, None)?;
        black_box(lease.operand());
        end(pool, lease)
    });
    let stats = pool.stats();
    assert_eq!(stats.growths, 0, "something else than hits was timed");
}

/// What the rows below take without an allocator.
fn frame(criterion: &mut Criterion) {
    in_turn(criterion, "the frame alone", &ASKED, |bytes| {
        black_box(Operand {
            bytes,
            ..Operand::EMPTY
        });
        Ok(())
    });
}

fn lease(criterion: &mut Criterion) {
    for slots in [1, 4] {
        let mut comm = mock::MockComm::alone();
        let mut pool = Pool::new(Box::new(Geometric::default()), Options::default());
        let sizes = (0..slots).map(|slot| Request::new((2 << 20) << slot));
        let _ = pool.reserve(&mut comm, &sizes.collect::<Vec<_>>()).unwrap();
        let name = format!("a device that does nothing, {slots} slots");
        let asked = [1 << 20];
        time(
            criterion,
            &name,
            &mut comm,
            &mut pool,
            &asked,
            Pool::release,
        );
    }
}

/// A pool on the host backend, with its slots.
fn host(policy: Box<dyn Policy>, options: Options) -> (impl Communicator, Pool) {
    let reserved = [1 << 20, 4 << 20, 16 << 20].map(Request::new);
    let mut comm = HostWorld::new(1).connect().unwrap().remove(0);
    let mut pool = Pool::new(policy, options).with_budget(Budget::new(1 << 30));
    let _ = pool.reserve(&mut comm, &reserved).unwrap();
    (comm, pool)
}

/// Everything that can be asked of a pool.
fn everything(domain: DomainMode) -> Options {
    let mut options = Options::default();
    options.domain = domain;
    options.cap = Some(64 << 20);
    options.limit = Some(256 << 20);
    options.max_windows = Some(100);
    options.on_miss = OnMiss::Fallback;
    options.seal = Seal::AfterReserve;
    options
}

/// The host backend, with a pool as it is by default, and with everything on.
fn features(criterion: &mut Criterion) {
    let geometric = || -> Box<dyn Policy> { Box::<Geometric>::default() };
    let arena = || -> Box<dyn Policy> { Box::new(Arena::new(Arena::DEFAULT_GROWTH).unwrap()) };
    let mut run = |name: &str, policy: Box<dyn Policy>, options: Options| {
        let (mut comm, mut pool) = host(policy, options);
        time(criterion, name, &mut comm, &mut pool, &ASKED, Pool::release);
    };
    run("host", geometric(), Options::default());
    #[cfg(feature = "metrics")]
    metrics::set_global_recorder(&metrics::NoopRecorder).unwrap();
    tracing::subscriber::set_global_default(Listener).unwrap();
    for (name, policy, domain) in [
        ("shared", geometric(), DomainMode::Shared),
        ("a domain a stream", geometric(), DomainMode::Stream),
        ("a domain a graph", geometric(), DomainMode::Graph),
        ("arena, a domain a stream", arena(), DomainMode::Stream),
    ] {
        let name = format!("host, everything on, {name}");
        run(&name, policy, everything(domain));
    }
}

/// With everything on: an allocator whose type is not known, and leases that end by themselves.
fn ways(criterion: &mut Criterion) {
    let fresh = || host(Box::<Geometric>::default(), everything(DomainMode::Shared));
    let (mut comm, mut pool) = fresh();
    let pool: &mut dyn ScratchAllocator = &mut pool;
    time(
        criterion,
        "host, everything on, as `dyn ScratchAllocator`",
        &mut comm,
        pool,
        &ASKED,
        |pool, lease| pool.release(lease),
    );
    let (mut comm, mut pool) = fresh();
    time(
        criterion,
        "host, everything on, leases that end by themselves",
        &mut comm,
        &mut pool,
        &ASKED,
        |_, lease| lease.complete(),
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

criterion_group!(benches, frame, lease, features, ways);
criterion_main!(benches);
