//! That pieces cover a call exactly once, alike on all ranks.

use proptest::prelude::*;

use super::*;
use crate::addr::{Addr, WindowId, WindowSlice};
use crate::collective::Op;
use crate::dtype::DType;
use crate::path::{PathRule, PathTable};
use crate::rank::{CommId, Rank};
use crate::reduce::ReduceOp;

const OPS: [Op<'static>; 5] = [
    Op::AllReduce(ReduceOp::Sum),
    Op::ReduceScatter(ReduceOp::Sum),
    Op::AllGather,
    Op::Broadcast { root: Rank(1) },
    Op::Reduce {
        op: ReduceOp::Sum,
        root: Rank(0),
    },
];

/// Kernels that serve operands of some bytes.
fn rows(bytes: &[(std::ops::RangeInclusive<usize>, Sides)], world_size: usize) -> Rows {
    let rule = |op: Op<'_>, bytes: &std::ops::RangeInclusive<usize>, needs| {
        let call = Collective {
            op,
            ..Collective::BARRIER
        };
        PathRule {
            op: call.kind(),
            dtypes: &DType::ALL,
            reductions: call.reduction().map_or(&[], |_| &[0]),
            world: 2..=64,
            bytes: bytes.clone(),
            needs,
            stage_from: 0,
            stage_from_captured: 0,
            kernel: "k",
            forced: false,
        }
    };
    let of = |op| {
        bytes
            .iter()
            .map(move |(bytes, needs)| rule(op, bytes, *needs))
    };
    Rows::of(
        &PathTable(OPS.into_iter().flat_map(of).collect()),
        world_size,
    )
}

/// The call as one rank makes it, out of place in ordinary memory.
fn call(
    op: Op<'static>,
    dtype: DType,
    count: usize,
    rank: Rank,
    world: usize,
) -> Collective<'static> {
    let mut call = Collective {
        op,
        dtype,
        counts: Counts::Even(count),
        ..Collective::BARRIER
    };
    let (send, recv) = call.elements(rank, world).unwrap();
    let at = |start: usize, elements: usize| match elements {
        0 => Operand::EMPTY,
        _ => {
            let addr = Addr::from_ptr(std::ptr::without_provenance_mut::<u8>(start));
            Operand::new(addr, elements * dtype.size())
        }
    };
    (call.send, call.recv) = (at(1 << 30, send), at(1 << 40, recv));
    call
}

fn lease(bytes: usize) -> Operand {
    let addr = Addr::from_ptr(std::ptr::without_provenance_mut::<u8>(1 << 20));
    let (comm, window) = (CommId::from_raw(1), WindowId(0));
    Operand::new(addr, bytes).in_window(WindowSlice {
        comm,
        window,
        offset: 0,
    })
}

/// Where in a tensor a piece reads or writes: what is copied, or else the operand itself.
fn touched(
    tensor: Operand,
    operand: Operand,
    copied: Option<Vec<(Addr, usize)>>,
) -> Vec<Range<usize>> {
    let touched = copied.unwrap_or_else(|| vec![(operand.addr, operand.bytes)]);
    let touched = touched.into_iter().filter(|(_, bytes)| *bytes > 0);
    let at = |(addr, bytes): (Addr, usize)| {
        let start = addr.value() - tensor.addr.value();
        start..start + bytes
    };
    touched.map(at).collect()
}

/// Whether ranges are one another's continuation, from zero to `end`.
fn cover(mut ranges: Vec<Range<usize>>, end: usize) -> bool {
    ranges.sort_by_key(|range| range.start);
    let mut next = 0;
    let mut continues =
        |range: &Range<usize>| std::mem::replace(&mut next, range.end) == range.start;
    ranges.iter().all(&mut continues) && next == end
}

proptest! {
    #[test]
    fn pieces_cover_every_element_once_and_are_equal_on_all_ranks(
        (op, dtype, sides) in (0..5_usize, 0..12_usize, 0..3_usize),
        (world, units, count) in (2..9_usize, 1..40_usize, 1..300_000_usize),
    ) {
        let (op, dtype) = (OPS[op], DType::ALL[dtype]);
        let sides = [Sides::Send, Sides::Recv, Sides::Both][sides];
        let piece = units * SCRATCH_ALIGNMENT;
        let rows = rows(&[(0..=usize::MAX, sides)], world);
        let ranks = (0..world).map(Rank::new);
        let calls: Vec<_> = ranks.map(|rank| call(op, dtype, count, rank, world)).collect();
        let cut = |call| Cut::of(call, sides, piece, &rows, world);
        let Some(first) = cut(&calls[0]) else {
            prop_assert!(!has_equal_sides(calls[0].kind()) && units <= world, "there is room");
            return Ok(());
        };
        let whole = staged::scratch_bytes(&calls[0], first.needs, world).unwrap();
        prop_assert!(first.pieces() >= whole.div_ceil(piece));
        for (rank, call) in calls.iter().enumerate() {
            prop_assert_eq!(cut(call), Some(first), "rank {}", rank);
            let staged = first.sides(call, sides, false);
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            for index in 0..first.pieces() {
                let one = first.piece(call, index, staged, lease(piece), world).unwrap();
                one.call.check(Rank::new(rank), world).unwrap();
                prop_assert!(staged::scratch_bytes(&one.call, staged, world).unwrap() <= piece);
                prop_assert_eq!(one.call.counts, Counts::Even(first.range(index).len()));
                for (side, in_window) in [(one.call.send, staged.send()), (one.call.recv, staged.recv())] {
                    prop_assert!(side.bytes == 0 || side.window.is_some() == in_window);
                }
                let into = staged.send().then(|| one.into.each().map(|copy| (copy.src, copy.bytes)).collect());
                let out = staged.recv().then(|| one.out.each().map(|copy| (copy.dst, copy.bytes)).collect());
                sent.extend(touched(call.send, one.call.send, into));
                received.extend(touched(call.recv, one.call.recv, out));
            }
            prop_assert!(cover(sent, call.send.bytes), "rank {} sends", rank);
            prop_assert!(cover(received, call.recv.bytes), "rank {} receives", rank);
        }
    }

    #[test]
    fn parts_lie_side_by_side_in_the_lease_and_in_rank_order(
        (gathers, dtype) in (any::<bool>(), 0..12_usize),
        (world, units, count) in (2..9_usize, 9..40_usize, 1..300_000_usize),
    ) {
        let op = if gathers { OPS[2] } else { OPS[1] };
        let call = call(op, DType::ALL[dtype], count, Rank(0), world);
        let (needs, tensor) = if gathers { (Sides::Recv, call.recv) } else { (Sides::Send, call.send) };
        let (lease, part) = (lease(units * SCRATCH_ALIGNMENT), count * call.dtype.size());
        let rows = rows(&[(0..=usize::MAX, needs)], world);
        let cut = Cut::of(&call, needs, lease.bytes, &rows, world).unwrap();
        for index in 0..cut.pieces() {
            let range = cut.range(index);
            let (start, bytes) = (range.start * call.dtype.size(), range.len() * call.dtype.size());
            let piece = cut.piece(&call, index, needs, lease, world).unwrap();
            let places: Vec<_> = match gathers {
                true => piece.out.each().map(|copy| (copy.src, copy.dst, copy.bytes)).collect(),
                false => piece.into.each().map(|copy| (copy.dst, copy.src, copy.bytes)).collect(),
            };
            let expected = |rank| (lease.addr.offset(rank * bytes), tensor.addr.offset(rank * part + start), bytes);
            prop_assert_eq!(places, Vec::from_iter((0..world).map(expected)));
        }
    }

    #[test]
    fn pieces_are_alike(elements in 1..1_usize << 40, room in 1..10_000_usize) {
        let piece = room * SCRATCH_ALIGNMENT;
        let call = call(OPS[0], DType::F32, elements, Rank(0), 2);
        let cut = Cut::needing(&call, Sides::Both, piece, 2).unwrap();
        prop_assert_eq!(cut.pieces(), (elements * 4).div_ceil(piece));
        let bytes = |index| cut.range(index).len() * 4;
        prop_assert!(bytes(0) <= piece);
        let apart = bytes(0) - bytes(cut.pieces() - 1);
        prop_assert!(apart < 2 * SCRATCH_ALIGNMENT);
        prop_assert_eq!(cut.range(cut.pieces() - 1).end, elements);
    }
}

#[test]
fn what_cannot_be_cut_stays_whole() {
    let rows = rows(&[(0..=usize::MAX, Sides::Both)], 2);
    let cut = |call: &Collective<'_>, piece| Cut::of(call, Sides::Both, piece, &rows, 2);
    let mut gather = call(OPS[2], DType::F32, 10_000, Rank(0), 2);
    assert!(cut(&gather, 3 * SCRATCH_ALIGNMENT).is_some());
    assert_eq!(cut(&gather, 3 * SCRATCH_ALIGNMENT - 1), None, "no room");
    gather.counts = Counts::Uneven(&[10_000, 10_000]);
    assert!(cut(&gather, 1 << 20).is_some(), "equal counts are even");
    gather.counts = Counts::Uneven(&[10_000, 10_001]);
    assert_eq!(cut(&gather, 1 << 20), None, "uneven");
    gather.op = Op::AllToAll {
        recv_counts: Counts::Even(10_000),
    };
    gather.counts = Counts::Even(10_000);
    assert_eq!(cut(&gather, 1 << 20), None, "all-to-all");
    let sum = call(OPS[0], DType::F32, 10_000, Rank(0), 2);
    assert_eq!(cut(&sum, 0), None);
}

#[test]
fn pieces_get_the_sides_that_kernels_for_their_size_need() {
    let large = 64 * SCRATCH_ALIGNMENT;
    let scatter = call(OPS[1], DType::U8, large, Rank(0), 2);
    let table = [
        (1..=large - 1, Sides::Both),
        (large..=usize::MAX, Sides::Send),
    ];
    let cut =
        |rows: &Rows, units| Cut::of(&scatter, Sides::Send, units * SCRATCH_ALIGNMENT, rows, 2);
    let needs = |units| cut(&rows(&table, 2), units).unwrap().needs;
    assert_eq!(needs(64), Sides::Send);
    assert_eq!(needs(63), Sides::Both);
    // Where no kernel serves the pieces, the call is not cut.
    assert_eq!(cut(&rows(&table[1..], 2), 63), None);
}

#[test]
fn the_longest_and_the_shortest_piece_are_both_asked() {
    // Five units of elements in leases with room for three: a piece of three and one of two, so operands of six
    // and of four.
    let unit = SCRATCH_ALIGNMENT;
    let scatter = call(OPS[1], DType::U8, 5 * unit, Rank(0), 2);
    let needs = |table: &[(std::ops::RangeInclusive<usize>, Sides)]| {
        let cut = Cut::of(&scatter, Sides::Send, 6 * unit, &rows(table, 2), 2);
        cut.map(|cut| cut.needs)
    };
    let (short, long) = (1..=5 * unit, 5 * unit + 1..=usize::MAX);
    let both = |needed| [(short.clone(), needed), (long.clone(), Sides::Send)];
    assert_eq!(needs(&both(Sides::Send)), Some(Sides::Send));
    // The kernel of either piece may need more than the other's.
    assert_eq!(needs(&both(Sides::Both)), Some(Sides::Both));
    let table = [(short.clone(), Sides::Send), (long.clone(), Sides::Both)];
    assert_eq!(needs(&table), Some(Sides::Both));
    // And either may have none, so that it would take another path than the rest.
    assert_eq!(needs(&[(long, Sides::Send)]), None);
    assert_eq!(needs(&[(short, Sides::Send)]), None);
}
