//! What the pool promises, on a backend that remembers every call.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod accounts;
mod graphs;
mod growth;
#[cfg(loom)]
mod interleavings;
mod lifecycle;
mod mock;
mod prices;
mod promises;
mod ranks;
mod releases;
mod statistics;
mod streams;
mod verdicts;
#[path = "../../../collectives-core/src/tcp_store/tests/warnings.rs"]
mod warnings;

use collectives_alloc::geometric::Geometric;
use collectives_alloc::options::Options;
use collectives_alloc::policy::Policy;
use collectives_alloc::pool::Pool;
use collectives_alloc::replace::Replace;
use collectives_core::error::{ErrorKind, Result};
use collectives_core::scratch::{Lease, Request, ScratchAllocator};
use collectives_core::stream::StreamRef;

use crate::mock::MockComm;

const MIB: usize = 1 << 20;

/// Options that differ from the default by what `change` does.
fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

fn pool(policy: impl Policy + 'static, change: impl FnOnce(&mut Options)) -> Pool {
    Pool::new(Box::new(policy), options(change))
}

fn geometric() -> Pool {
    pool(Geometric::default(), |_| {})
}

fn replace() -> Pool {
    pool(Replace::default(), |_| {})
}

fn acquire(
    pool: &mut Pool,
    comm: &mut MockComm,
    bytes: usize,
    stream: &StreamRef,
) -> Result<Lease> {
    let capture = comm.capture(stream);
    pool.acquire(comm, Request::new(bytes), stream, capture)
}

/// Acquires and gives back, as the collectives do; returns the slot.
fn touch(pool: &mut Pool, comm: &mut MockComm, bytes: usize, stream: &StreamRef) -> u64 {
    let lease = acquire(pool, comm, bytes, stream).unwrap();
    let slot = lease.slot().0;
    pool.release(lease).unwrap();
    slot
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind().clone()
}

/// The bookkeeping identity that holds after every call.
fn balanced(pool: &Pool) {
    let stats = pool.stats();
    let outcomes = stats.hits + stats.growths + stats.fallback_count() + stats.refusals;
    assert_eq!(stats.requests, outcomes, "{stats:?}");
    assert_eq!(stats.registrations_after_seal, 0);
    let live = stats.registrations - stats.deregistrations;
    assert!(stats.slots.len() as u64 <= live, "{stats:?}");
}
