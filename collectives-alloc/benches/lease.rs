//! What a hit costs: `acquire` and `complete` of an unclaimed slot on its own stream.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/pool/mock.rs"]
#[expect(dead_code, reason = "shared with the tests of the pool")]
mod mock;

use std::hint::black_box;
use std::time::Instant;

use collectives_alloc::geometric::Geometric;
use collectives_alloc::options::Options;
use collectives_alloc::pool::Pool;
use collectives_core::scratch::{Request, ScratchAllocator, Site};
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

fn lease(criterion: &mut Criterion) {
    for slots in [1, 4] {
        let mut comm = mock::MockComm::alone();
        let mut pool = Pool::new(Box::new(Geometric::default()), Options::default());
        let stream = comm.stream();
        let site = Site {
            stream: &stream,
            capture: None,
        };
        let mut hit = |bytes| {
            let lease = pool.acquire(&mut comm, Request::new(bytes), site).unwrap();
            black_box(lease.operand());
            lease.complete().unwrap();
        };
        for slot in 0..slots {
            hit((2 << 20) << slot);
        }
        let [p50, p99] = percentiles(|| hit(black_box(1 << 20)));
        println!("hit, {slots} slots: p50 {p50} ns, p99 {p99} ns");
        criterion.bench_function(&format!("hit, {slots} slots"), |bencher| {
            bencher.iter(|| hit(black_box(1 << 20)));
        });
    }
}

criterion_group!(benches, lease);
criterion_main!(benches);
