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
use collectives_core::scratch::{Request, ScratchAllocator, Site};

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
                let site = Site {
                    stream: &stream,
                    capture: None,
                };
                let mut hit = |released| {
                    let lease = pool.acquire(comm, Request::new(1 << 20), site).unwrap();
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
