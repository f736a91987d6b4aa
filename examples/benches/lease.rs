//! The hot path of scratch under criterion: a lease on a hit of an unclaimed slot.

#[path = "figures/hit.rs"]
mod hit;

use collectives_host::world::HostWorld;
use criterion::{Criterion, criterion_group, criterion_main};

use crate::hit::Hits;

fn lease(criterion: &mut Criterion) {
    let comm = HostWorld::new(1).connect().expect("a rank").remove(0);
    let mut hits = Hits::new(Box::new(comm)).expect("slots");
    criterion.bench_function("lease, hit of an unclaimed slot", |bencher| {
        bencher.iter(|| hits.hit().expect("a hit"));
    });
    let (hits, registrations) = hits.counts();
    println!("{hits} hits, {registrations} registrations");
}

criterion_group!(benches, lease);
criterion_main!(benches);
