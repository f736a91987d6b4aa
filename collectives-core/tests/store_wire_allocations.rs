//! What the wire decoder of the TCP store allocates for bytes of strangers.
//!
//! The module is built a second time, into this binary, because the counting allocator must be the
//! only one there is and the decoder is nobody else's business.

#![expect(unsafe_code, reason = "an allocator is unsafe")]

#[expect(dead_code, reason = "only the decoders are used")]
#[path = "../src/tcp_store/wire/mod.rs"]
mod wire;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use wire::hello::{self, Answer, Hello};
use wire::message::{Reply, Request};

struct Counting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(address, layout, bytes) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The largest single allocation that `body` made.
fn largest(body: impl FnOnce()) -> usize {
    LARGEST.set(0);
    body();
    LARGEST.get()
}

const LIMIT: usize = 1 << 17;
/// Errors and short texts.
const SMALL: usize = 1 << 8;

#[test]
fn a_length_that_nothing_follows_costs_one_piece_at_most() {
    for announced in [0, 1, 1000, LIMIT, LIMIT + 1, u32::MAX as usize] {
        let bytes = u32::try_from(announced).unwrap().to_le_bytes();
        let cost = largest(|| drop(wire::read_frame(&mut &bytes[..], LIMIT)));
        assert!(
            cost <= announced.clamp(SMALL, 1 << 16),
            "{announced} cost {cost}"
        );
        if announced > LIMIT {
            assert!(cost <= SMALL, "{announced} cost {cost}");
        }
    }
}

#[test]
fn a_frame_that_comes_whole_costs_its_length() {
    let mut bytes = u32::try_from(LIMIT).unwrap().to_le_bytes().to_vec();
    bytes.resize(4 + LIMIT, 7);
    let cost = largest(|| assert!(wire::read_frame(&mut &*bytes, LIMIT).unwrap().is_some()));
    assert_eq!(cost, LIMIT);
}

#[test]
fn no_message_costs_more_than_a_multiple_of_its_own_bytes() {
    let parts = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        any::<u32>().prop_map(|number| number.to_le_bytes().to_vec()),
        (0..9_u32).prop_map(|number| number.to_le_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..40),
        (0..400_usize).prop_map(|zeros| vec![0; zeros]),
    ];
    let bytes = (0..9_u8, prop::collection::vec(parts, 0..12))
        .prop_map(|(tag, parts)| [vec![tag], parts.concat()].concat());
    let decode = |bytes: Vec<u8>| {
        let cost = largest(|| {
            let _ = Request::decode(&bytes);
            let _ = Reply::decode(&bytes);
            let _ = Hello::decode(&bytes);
            let _ = Answer::decode(&bytes);
            let _ = hello::read(&mut &*bytes);
        });
        // An empty part takes four bytes on the wire and a vector's three words here, and the
        // table of them may have doubled once too often. A greeting is 1 KiB at most.
        let bound = (bytes.len() * 12).max(1 << 10);
        prop_assert!(cost <= bound, "{} bytes cost {}", bytes.len(), cost);
        Ok(())
    };
    TestRunner::default().run(&bytes, decode).unwrap();
}
