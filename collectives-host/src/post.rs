//! What a rank says about one operation, for its peers to compare and to act on.

use std::ptr;

use collectives_core::addr::Operand;
use collectives_core::collective::{Collective, Counts, Op, OpKind};
use collectives_core::dtype::DType;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;

/// Payload that fits beside the head of a post, in the line that is transferred anyway.
pub(crate) const SMALL: usize = 32;

/// Payload that is copied into the slot, so that nobody has to wait until peers have read it.
pub(crate) const EAGER: usize = 1 << 10;

/// The reduction code of an operation that does not reduce.
const NO_REDUCTION: u8 = u8::MAX;

/// The root of an operation that has none.
const NO_ROOT: u32 = u32::MAX;

/// The payload is in the slot.
pub(crate) const INLINE: u8 = 1;
/// A side lies in a window.
pub(crate) const WINDOWS: u8 = 2;
/// Counts differ between ranks, so vectors have to be looked at.
pub(crate) const UNEVEN: u8 = 4;
/// The post stands for a group: `count` posts at `counts`.
pub(crate) const GROUP: u8 = 8;
/// The operation is recorded and not run.
pub(crate) const CAPTURED: u8 = 16;

/// What must be equal on all ranks and fits into a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct Head {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DType,
    pub(crate) reduction: u8,
    pub(crate) flags: u8,
    pub(crate) root: u32,
}

/// One operand on one rank.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Side {
    /// Null where the rank has no such operand, or none with elements.
    pub(crate) addr: *mut u8,
    /// The ordinal of the window plus one; zero outside any window.
    pub(crate) window: u64,
    /// The offset in the window; in place, that of the operand this one is a part of.
    pub(crate) offset: usize,
}

/// One operation on one rank. The head, the count and a small payload share a cache line with the
/// word that announces them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Post {
    pub(crate) head: Head,
    /// Elements; of all ranks together where `counts` is not null.
    pub(crate) count: usize,
    /// The scalar of a pre-multiplied sum, or how many elements an all-to-all receives.
    pub(crate) scalar: u64,
    pub(crate) small: [u8; SMALL],
    pub(crate) send: Side,
    pub(crate) recv: Side,
    /// The counts vector, null where counts are even; of a group, its posts.
    pub(crate) counts: *const usize,
    /// What an all-to-all receives from each rank.
    pub(crate) recv_counts: *const usize,
}

const _: () = assert!(size_of::<Post>() == 120);

/// What a rank asks for in an operation, apart from operands: what a rank that comes late is compared
/// with.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) digest: u64,
    /// The same for people.
    pub(crate) words: String,
}

impl Asked {
    /// What the calls with these posts ask for.
    pub(crate) fn of(posts: &[Post]) -> Self {
        let digest = posts.iter().fold(posts.len() as u64, |digest, post| {
            let head = post.head;
            let codes = [
                head.kind as u8,
                head.dtype as u8,
                head.reduction,
                head.flags & CAPTURED,
            ];
            let words = [
                u64::from(u32::from_le_bytes(codes)),
                u64::from(head.root),
                // What each rank sends in an all-to-all is its own.
                if head.kind == OpKind::AllToAll {
                    0
                } else {
                    post.count as u64
                },
            ];
            words.into_iter().fold(digest, |digest, word| {
                (digest ^ word)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .rotate_left(29)
            })
        });
        let words = match posts {
            [post] => post.words(),
            posts => format!("a group of {}", posts.len()),
        };
        Self { digest, words }
    }
}

impl Head {
    pub(crate) const fn is(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) const fn reduces(self) -> bool {
        self.reduction != NO_REDUCTION
    }

    /// The operation with its reduction and element type, where it has them.
    pub(crate) fn call_name(self) -> String {
        let (kind, dtype) = (self.kind.name(), self.dtype.name());
        match self.reduction {
            _ if self.kind == OpKind::Barrier => kind.to_owned(),
            NO_REDUCTION => format!("{kind} {dtype}"),
            _ => format!("{kind} {} {dtype}", self.reduction_name()),
        }
    }

    /// The name of the reduction.
    pub(crate) const fn reduction_name(self) -> &'static str {
        match self.reduction {
            0 => "sum",
            1 => "product",
            2 => "min",
            3 => "max",
            4 => "average",
            5 => "premulsum",
            _ => "none",
        }
    }

    pub(crate) fn root_name(self) -> String {
        match self.root {
            NO_ROOT => "none".to_owned(),
            root => root.to_string(),
        }
    }
}

impl Side {
    const NONE: Self = Self {
        addr: ptr::null_mut(),
        window: 0,
        offset: 0,
    };

    #[inline]
    fn new(operand: Operand, part: usize) -> Self {
        if operand.bytes == 0 {
            return Self::NONE;
        }
        Self {
            addr: operand.addr.as_ptr(),
            window: operand.window.map_or(0, |slice| slice.window.0 + 1),
            offset: operand
                .window
                .map_or(0, |slice| slice.offset.wrapping_sub(part)),
        }
    }
}

impl Post {
    /// What slots hold before their first use.
    pub(crate) const NONE: Self = Self::of_group(0, ptr::null());

    /// The post of a group with these posts.
    pub(crate) const fn of_group(length: usize, posts: *const Self) -> Self {
        Self {
            head: Head {
                kind: OpKind::Barrier,
                dtype: DType::U8,
                reduction: NO_REDUCTION,
                flags: GROUP,
                root: NO_ROOT,
            },
            count: length,
            scalar: 0,
            small: [0; SMALL],
            send: Side::NONE,
            recv: Side::NONE,
            counts: posts.cast(),
            recv_counts: ptr::null(),
        }
    }

    /// The operation and how much of it, for people.
    pub(crate) fn words(&self) -> String {
        match (self.head.kind, self.count) {
            _ if self.head.is(GROUP) => format!("a group of {}", self.count),
            (OpKind::Barrier | OpKind::AllToAll, _) => self.head.call_name(),
            (_, count) => format!("{} of {count}", self.head.call_name()),
        }
    }

    /// What a single operation, or a group with its posts at [`Post::counts`], asks for.
    ///
    /// # Safety
    ///
    /// If it is of a group, its posts are there.
    pub(crate) unsafe fn asked(&self) -> Asked {
        if !self.head.is(GROUP) {
            return Asked::of(std::slice::from_ref(self));
        }
        // SAFETY: By the caller.
        Asked::of(unsafe { std::slice::from_raw_parts(self.counts.cast::<Self>(), self.count) })
    }

    /// Writes all but `small` to where peers read it.
    ///
    /// Field by field, because a copy in wider words would wait for the narrow stores that made
    /// this post.
    #[inline]
    pub(crate) fn publish(&self, slot: &mut Self) {
        slot.head = self.head;
        slot.count = self.count;
        slot.scalar = self.scalar;
        slot.send = self.send;
        slot.recv = self.recv;
        slot.counts = self.counts;
        slot.recv_counts = self.recv_counts;
    }

    /// Whether both sides lie at the same place of the same windows as another's.
    #[inline]
    pub(crate) fn is_at_place_of(&self, other: &Self) -> bool {
        let place = |side: &Side| (side.window, side.offset);
        place(&self.send) == place(&other.send) && place(&self.recv) == place(&other.recv)
    }

    /// The post of one operation. A small payload is to go into the slot if `inline` allows it;
    /// `small` is empty here.
    ///
    /// Always inline: who copies a post out of the frame of a function that made it waits for its
    /// stores.
    #[inline(always)]
    pub(crate) fn of(call: &Collective<'_>, rank: Rank, world_size: usize, inline: bool) -> Self {
        let (counts, even) = vector(call.counts);
        let mut flags = if counts.is_null() { 0 } else { UNEVEN };
        let (mut reduction, mut root) = (NO_REDUCTION, NO_ROOT);
        let (mut scalar, mut recv_counts) = (0, ptr::null());
        match call.op {
            Op::AllReduce(op) | Op::ReduceScatter(op) => (reduction, scalar) = reducing(op),
            Op::Reduce { op, root: to } => {
                (reduction, scalar) = reducing(op);
                root = to.0;
            }
            Op::AllToAll {
                recv_counts: counts,
            } => {
                let (vector, even_recv) = vector(counts);
                recv_counts = vector;
                scalar = even_recv as u64;
                if !vector.is_null() || even_recv != even {
                    flags |= UNEVEN;
                }
            }
            _ => root = call.root().map_or(NO_ROOT, |root| root.0),
        }
        let (mut send_part, mut recv_part) = (0, 0);
        if call.send.window.is_some() || call.recv.window.is_some() {
            flags |= WINDOWS;
            (send_part, recv_part) = parts(call, rank);
        }
        let kind = call.kind();
        if inline && flags & UNEVEN == 0 && payload(kind, even, call.dtype, world_size) <= EAGER {
            flags |= INLINE;
        }
        Self {
            head: Head {
                kind,
                dtype: call.dtype,
                reduction,
                flags,
                root,
            },
            count: even,
            scalar,
            small: [0; SMALL],
            send: Side::new(call.send, send_part),
            recv: Side::new(call.recv, recv_part),
            counts,
            recv_counts,
        }
    }

    /// Forgets where operands lie, but not whether there are any: an address means nothing to another
    /// process.
    pub(crate) fn hide_addresses(&mut self) {
        for side in [&mut self.send, &mut self.recv] {
            if !side.addr.is_null() {
                side.addr = ptr::without_provenance_mut(1);
            }
        }
    }

    /// Becomes like another in all but `small`, and leaves the line alone that peers seldom read where it
    /// is the same already: who writes it would have to take it away from them.
    ///
    /// Field by field, as for [`Post::publish`].
    #[inline]
    pub(crate) fn become_like(&mut self, other: &Self) {
        let sides = |post: &Self| {
            let place = |side: &Side| (side.addr, side.window, side.offset);
            (
                place(&post.send),
                place(&post.recv),
                post.counts,
                post.recv_counts,
            )
        };
        if sides(self) == sides(other) {
            self.head = other.head;
            self.count = other.count;
            self.scalar = other.scalar;
        } else {
            other.publish(self);
        }
    }

    /// Whether a payload in the slot is in the post itself.
    #[inline]
    pub(crate) fn small_holds_payload(&self, world_size: usize) -> bool {
        payload(self.head.kind, self.count, self.head.dtype, world_size) <= SMALL
    }

    /// Elements this rank sends to `to` in an all-to-all.
    pub(crate) fn sends(&self, to: usize) -> usize {
        entry(self.counts, self.count, to)
    }

    /// Elements this rank receives from `from` in an all-to-all.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it was made from a `usize`"
    )]
    pub(crate) fn receives(&self, from: usize) -> usize {
        entry(self.recv_counts, self.scalar as usize, from)
    }
}

/// The code and the scalar of a reduction.
#[inline]
fn reducing(op: ReduceOp) -> (u8, u64) {
    let scalar = match op {
        ReduceOp::PreMulSum(own) => own.bits(),
        _ => 0,
    };
    (op.code(), scalar)
}

/// Bytes of payload one sender has at most; the same on every rank.
fn payload(kind: OpKind, count: usize, dtype: DType, world_size: usize) -> usize {
    let parts = match kind {
        OpKind::ReduceScatter | OpKind::AllToAll | OpKind::Scatter => world_size,
        _ => 1,
    };
    count.saturating_mul(dtype.size()).saturating_mul(parts)
}

/// Where in place each operand begins inside the other, in bytes.
fn parts(call: &Collective<'_>, rank: Rank) -> (usize, usize) {
    if call.send.bytes == 0 || call.recv.bytes == 0 || !call.is_in_place(rank) {
        return (0, 0);
    }
    let before = call.counts.before(rank) * call.dtype.size();
    match call.op {
        Op::ReduceScatter(_) | Op::Scatter { .. } => (0, before),
        Op::AllGather | Op::Gather { .. } => (before, 0),
        _ => (0, 0),
    }
}

/// The vector and the sum of uneven counts, or null and the count of even ones. A vector of equal
/// entries is even.
fn vector(counts: Counts<'_>) -> (*const usize, usize) {
    match counts {
        Counts::Even(count) => (ptr::null(), count),
        Counts::Uneven(counts) => match counts.first() {
            Some(first) if counts.iter().any(|count| count != first) => {
                (counts.as_ptr(), counts.iter().sum())
            }
            first => (ptr::null(), first.copied().unwrap_or(0)),
        },
        _ => (ptr::null(), 0),
    }
}

fn entry(vector: *const usize, even: usize, rank: usize) -> usize {
    if vector.is_null() {
        return even;
    }
    // SAFETY: Vectors have one entry per rank, by `Collective::check`, and their owner stays in
    // the operation until every peer has left it, because uneven operations are never inline.
    unsafe { *vector.wrapping_add(rank) }
}
