//! A hit allocates nothing: its own binary, because it replaces the global allocator.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "pool/mock.rs"]
#[expect(dead_code, reason = "shared with the tests of the pool")]
mod mock;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use collectives_alloc::exact::Exact;
use collectives_alloc::geometric::Geometric;
use collectives_alloc::geometric_class::GeometricClass;
use collectives_alloc::options::{DomainMode, Options};
use collectives_alloc::policy::Policy;
use collectives_alloc::pool::Pool;
use collectives_alloc::replace::Replace;
use collectives_core::addr::Addr;
use collectives_core::collectives::Collectives;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::tensor::RawTensor;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Nothing is counted while a thread ends.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: Everything is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: The caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: The caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(body: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    body();
    ALLOCATIONS.get() - before
}

// invariant 48
#[test]
fn a_hit_and_its_release_allocate_and_free_nothing() {
    let policies: [fn() -> Box<dyn Policy>; 4] = [
        || Box::new(Exact::new()),
        || Box::new(Replace::default()),
        || Box::new(Geometric::default()),
        || Box::new(GeometricClass::default()),
    ];
    for policy in policies {
        for domain in [DomainMode::Shared, DomainMode::Stream] {
            mock::alone(|comm| {
                let mut options = Options::default();
                options.domain = domain;
                let (mut pool, stream) = (Pool::new(policy(), options), comm.stream());
                let mut hit = |released| {
                    let lease = pool
                        .acquire(comm, Request::new(1 << 20), &stream, None)
                        .unwrap();
                    if released {
                        pool.release(lease).unwrap();
                    } else {
                        lease.complete().unwrap();
                    }
                };
                assert_ne!(allocations(|| hit(true)), 0, "the counter works");
                let hits = allocations(|| {
                    for turn in 0..1000 {
                        hit(turn % 3 > 0);
                    }
                });
                assert_eq!(hits, 0);
            });
        }
    }
}

#[test]
fn a_call_that_hits_allocates_and_frees_nothing_whole_or_in_pieces() {
    mock::world(2, |comm| {
        let mut options = Options::default();
        options.piece = Some(1 << 20);
        let stream = comm.stream();
        let pool = Pool::new(Box::new(Geometric::default()), options);
        let mut on = Collectives::new(comm, pool);
        for (count, pieces) in [(1 << 20, 1), (10 << 20, 10)] {
            let addr = Addr::from_ptr(std::ptr::without_provenance_mut::<u8>(1 << 12));
            // SAFETY: This device and its communicator touch no bytes.
            let mut tensor = unsafe { RawTensor::from_ptr(addr.as_ptr::<u8>(), count) };
            let mut hit = || on.all_reduce(&mut tensor, ReduceOp::Sum, &stream).unwrap();
            assert_eq!(hit().pieces, pieces);
            let hits = allocations(|| {
                for _ in 0..100 {
                    hit();
                }
            });
            assert_eq!(hits, 0, "in {pieces} pieces");
        }
        assert_eq!(on.stats().pieces, 1010);
    });
}
