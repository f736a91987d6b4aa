use super::*;

const WRITE: Use = Use {
    memory: 1,
    start: 4096,
    bytes: 64,
    writes: true,
};
const READ: Use = Use {
    writes: false,
    ..WRITE
};

fn stream(id: u64) -> StreamId {
    StreamId::from_raw(id)
}

fn capture(id: u64) -> CaptureId {
    CaptureId::from_raw(id)
}

/// A use of other bytes.
fn of(what: Use, start: usize, bytes: usize) -> Use {
    Use {
        start,
        bytes,
        ..what
    }
}

/// Conflicts of eager uses, each on a stream of this number, which nothing orders.
fn conflicts(uses: &[(u64, Use)]) -> usize {
    let mut clocks = Clocks::default();
    for &(on, what) in uses {
        clocks.used(stream(on), None, what);
    }
    clocks.conflicts().len()
}

#[test]
fn two_uses_conflict_when_one_of_them_writes() {
    assert_eq!(conflicts(&[(1, WRITE), (2, WRITE)]), 1);
    assert_eq!(conflicts(&[(1, WRITE), (2, READ)]), 1);
    assert_eq!(conflicts(&[(1, READ), (2, WRITE)]), 1);
    assert_eq!(conflicts(&[(1, READ), (2, READ)]), 0);
}

#[test]
fn one_stream_is_in_order() {
    assert_eq!(conflicts(&[(1, WRITE), (1, READ), (1, WRITE)]), 0);
    // It knows of itself alone.
    assert_eq!(conflicts(&[(1, WRITE), (2, READ), (2, WRITE)]), 2);
}

#[test]
fn only_common_bytes_of_one_memory_conflict() {
    let of = |start, bytes| of(WRITE, start, bytes);
    for (one, other, common) in [
        (of(100, 50), of(100, 50), true),
        (of(100, 50), of(120, 1), true),
        (of(120, 1), of(100, 50), true),
        (of(100, 50), of(149, 50), true),
        (of(149, 50), of(100, 50), true),
        (of(100, 50), of(150, 50), false),
        (of(150, 50), of(100, 50), false),
        (of(100, 50), of(151, 50), false),
        (of(0, usize::MAX), of(usize::MAX - 1, usize::MAX), true),
    ] {
        let found = conflicts(&[(1, one), (2, other)]);
        assert_eq!(found, usize::from(common), "{one:?} and {other:?}");
    }
    let elsewhere = Use { memory: 2, ..WRITE };
    assert_eq!(conflicts(&[(1, WRITE), (2, elsewhere)]), 0);
}

#[test]
fn a_fence_orders_and_its_absence_is_found() {
    let mut clocks = Clocks::default();
    clocks.used(stream(1), None, WRITE);
    clocks.records(stream(1), None, 7);
    clocks.waits(stream(2), None, 7);
    clocks.used(stream(2), None, WRITE);
    assert!(clocks.conflicts().is_empty());
    clocks.used(stream(3), None, WRITE);
    assert_eq!(clocks.conflicts().len(), 1);
}

#[test]
fn a_fence_orders_what_came_before_its_latest_record() {
    let mut clocks = Clocks::default();
    clocks.records(stream(1), None, 7);
    clocks.used(stream(1), None, WRITE);
    clocks.waits(stream(2), None, 7);
    clocks.used(stream(2), None, WRITE);
    assert_eq!(clocks.conflicts().len(), 1, "a record before the use");
    let mut clocks = Clocks::default();
    clocks.used(stream(1), None, WRITE);
    clocks.records(stream(1), None, 7);
    clocks.records(stream(3), None, 7);
    clocks.waits(stream(2), None, 7);
    clocks.used(stream(2), None, WRITE);
    assert_eq!(clocks.conflicts().len(), 1, "a later record of another");
    let mut clocks = Clocks::default();
    clocks.used(stream(1), None, WRITE);
    clocks.records(stream(1), None, 7);
    clocks.waits(stream(2), None, 8);
    clocks.used(stream(2), None, WRITE);
    assert_eq!(clocks.conflicts().len(), 1, "another fence");
}

#[test]
fn streams_are_ordered_one_way_and_through_others() {
    let mut clocks = Clocks::default();
    clocks.used(stream(1), None, WRITE);
    clocks.orders(stream(1), stream(2));
    clocks.orders(stream(2), stream(3));
    clocks.used(stream(3), None, WRITE);
    assert!(clocks.conflicts().is_empty());
    clocks.used(stream(2), None, of(WRITE, 0, 8));
    clocks.used(stream(1), None, of(WRITE, 0, 8));
    assert_eq!(clocks.conflicts().len(), 1, "1 does not come after 2");
    // What a stream learns does not take back what it knew.
    clocks.orders(stream(4), stream(3));
    clocks.used(stream(3), None, WRITE);
    assert_eq!(clocks.conflicts().len(), 1);
}

#[test]
fn the_host_learns_by_waiting() {
    let mut clocks = Clocks::default();
    clocks.used(stream(1), None, WRITE);
    clocks.host_waits(stream(1));
    clocks.used(stream(2), None, WRITE);
    assert!(clocks.conflicts().is_empty());
    clocks.used(stream(1), None, WRITE);
    assert_eq!(clocks.conflicts().len(), 1, "it has not waited for 2");
    // What it knows is in fences and orders too.
    let mut clocks = Clocks::default();
    clocks.used(stream(1), None, WRITE);
    clocks.host_waits(stream(1));
    clocks.records(stream(2), None, 7);
    clocks.waits(stream(3), None, 7);
    clocks.used(stream(3), None, WRITE);
    assert!(clocks.conflicts().is_empty());
}

#[test]
fn a_use_that_others_follow_is_not_forgotten() {
    // A read after a write hides it from nobody.
    let mut clocks = Clocks::default();
    clocks.used(stream(1), None, WRITE);
    clocks.orders(stream(1), stream(2));
    clocks.used(stream(2), None, READ);
    clocks.used(stream(3), None, READ);
    assert_eq!(clocks.conflicts().len(), 1, "{:?}", clocks.conflicts());
    // Nor does a write of a part of it, at either end.
    for part in [of(WRITE, 4096, 63), of(WRITE, 4097, 63)] {
        let mut clocks = Clocks::default();
        clocks.used(stream(1), None, WRITE);
        clocks.orders(stream(1), stream(2));
        clocks.used(stream(2), None, part);
        let rest = if part.start == 4096 { 4159 } else { 4096 };
        clocks.used(stream(3), None, of(READ, rest, 1));
        assert_eq!(clocks.conflicts().len(), 1, "{part:?}");
    }
    // Nor a write of other memory, or one that came without order.
    let elsewhere = Use { memory: 2, ..WRITE };
    assert_eq!(conflicts(&[(1, WRITE), (1, elsewhere), (2, READ)]), 1);
    let mut clocks = Clocks::default();
    clocks.used(stream(1), None, WRITE);
    clocks.used(stream(2), None, WRITE);
    clocks.orders(stream(2), stream(3));
    clocks.used(stream(3), None, WRITE);
    assert_eq!(clocks.conflicts().len(), 2, "3 comes after 2 alone");
}

#[test]
fn what_a_later_use_covers_is_compared_no_more() {
    let left = |later: Use| {
        let mut clocks = Clocks::default();
        for (start, bytes) in [(4096, 64), (4096, 10), (4150, 10), (4100, 10), (4090, 10)] {
            clocks.used(stream(1), None, of(READ, start, bytes));
        }
        clocks.used(stream(1), None, later);
        clocks.past.len()
    };
    assert_eq!(left(WRITE), 2);
    assert_eq!(left(READ), 2);
    assert_eq!(left(of(READ, 4200, 1)), 6, "it covers none");
    let mut clocks = Clocks::default();
    clocks.used(stream(1), None, WRITE);
    clocks.used(stream(1), None, READ);
    assert_eq!(clocks.past.len(), 2, "a read covers no write");
}

#[test]
fn a_memory_that_has_gone_conflicts_no_more() {
    let mut clocks = Clocks::default();
    let elsewhere = Use { memory: 2, ..WRITE };
    clocks.used(stream(1), None, WRITE);
    clocks.used(stream(1), None, elsewhere);
    clocks.forget(1);
    clocks.used(stream(2), None, elsewhere);
    assert_eq!(clocks.conflicts().len(), 1, "that is there still");
    assert_eq!(clocks.past.len(), 2);
}

#[test]
fn a_replay_waits_and_records_where_it_was_captured_to() {
    let capture = capture(1);
    let mut clocks = Clocks::default();
    clocks.waits(stream(1), Some(capture), 7);
    clocks.used(stream(1), Some(capture), WRITE);
    clocks.records(stream(1), Some(capture), 7);
    let steps = clocks.take_capture(capture);
    clocks.replays(stream(1), &steps);
    clocks.replays(stream(2), &steps);
    assert!(clocks.conflicts().is_empty(), "fences order replays");
    clocks.replays(stream(3), &steps[1..]);
    assert_eq!(clocks.conflicts().len(), 1);
    let mut clocks = Clocks::default();
    clocks.replays(stream(1), &steps[..2]);
    clocks.replays(stream(2), &steps);
    assert_eq!(clocks.conflicts().len(), 1, "the first recorded nothing");
}

#[test]
fn what_is_captured_happens_at_each_replay_and_not_before() {
    let mut clocks = Clocks::default();
    clocks.used(stream(1), Some(capture(1)), WRITE);
    clocks.used(stream(2), None, WRITE);
    assert!(clocks.conflicts().is_empty());
    let steps = clocks.take_capture(capture(1));
    assert_eq!(steps, [Step::Use(WRITE)]);
    assert_eq!(clocks.take_capture(capture(1)), [], "it was taken");
    clocks.replays(stream(1), &steps);
    assert_eq!(clocks.conflicts().len(), 1);
}

#[test]
fn a_child_happens_at_its_place_in_its_parent() {
    let mut clocks = Clocks::default();
    clocks.records(stream(1), Some(capture(1)), 7);
    clocks.embeds(capture(1), &[Step::Use(WRITE), Step::Wait(8)]);
    clocks.waits(stream(1), Some(capture(1)), 9);
    clocks.waits(stream(1), Some(capture(2)), 10);
    let steps = clocks.take_capture(capture(1));
    let wanted = [
        Step::Record(7),
        Step::Use(WRITE),
        Step::Wait(8),
        Step::Wait(9),
    ];
    assert_eq!(steps, wanted);
}

#[test]
fn a_conflict_names_both_uses_and_their_streams() {
    let mut clocks = Clocks::default();
    clocks.used(stream(11), None, WRITE);
    clocks.used(stream(12), None, READ);
    let wanted = "a read of 64 bytes at 4096 of memory #1 on stream 12 is not ordered after a write of \
                  64 bytes at 4096 of memory #1 on stream 11";
    assert_eq!(clocks.conflicts(), [wanted]);
}
