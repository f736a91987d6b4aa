//! What each rank says of an operation, written where the others read it.
//!
//! A board holds the word that announces it, a [`Post`], payload that is small enough to lie beside it,
//! and what the post points to: vectors of counts, and the posts of a group. Pointers in it are offsets
//! into the board. The word, what mostly has to be compared and a payload of few bytes are one cache
//! line, so that a peer which waits for the word gets them with it.

use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::AtomicU64;

use collectives_core::collective::{Collective, Counts, Op, OpKind};
use collectives_core::error::{Error, Result, Unsupported};
use collectives_core::rank::Rank;

use super::segment::{BOARD, Segment};
use crate::compare::Posts;
use crate::meeting::prefetch_for_writing;
use crate::post::{Asked, CAPTURED, EAGER, GROUP, INLINE, Post, SMALL, UNEVEN, WINDOWS};

/// What a board begins with.
#[repr(C)]
struct Front {
    /// [`Segment::word`].
    _word: AtomicU64,
    post: Post,
}

/// Where payload begins that is too large for a post.
const PAYLOAD: usize = size_of::<Front>();
const _: () = assert!(PAYLOAD == 2 * LINE);

const LINE: usize = 64;
/// Where what posts point to begins.
const REST: usize = PAYLOAD + EAGER;

/// Writes one board, from the front.
struct Pen {
    board: *mut u8,
    at: usize,
}

impl Pen {
    fn new(board: *mut u8) -> Self {
        Self { board, at: REST }
    }

    /// The offset of a copy of these values.
    fn put<T: Copy>(&mut self, values: &[T]) -> Result<usize> {
        let at = self.at.next_multiple_of(align_of::<T>());
        let end = at + size_of_val(values);
        if end > BOARD {
            let text = "the group, or the world, is too large for one operation";
            let text = Unsupported::Operation(text.to_owned());
            return Err(Error::unsupported(text));
        }
        let to = self.board.wrapping_add(at).cast::<T>();
        // SAFETY: The values fit into the board, which only its rank writes.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()) };
        self.at = end;
        Ok(at)
    }

    /// Puts the vectors on the board that a post points to, and has it point there.
    #[cold]
    fn put_counts(&mut self, call: &Collective<'_>, post: &mut Post) -> Result<()> {
        if let (false, Counts::Uneven(counts)) = (post.counts.is_null(), call.counts) {
            post.counts = ptr::without_provenance(self.put(counts)?);
        }
        if let (false, Op::AllToAll { recv_counts }) = (post.recv_counts.is_null(), call.op)
            && let Counts::Uneven(counts) = recv_counts
        {
            post.recv_counts = ptr::without_provenance(self.put(counts)?);
        }
        Ok(())
    }
}

/// Says on this rank's board what it is about to do, and keeps in `own` what it said, but for a small
/// payload. Nobody reads the board any more.
///
/// # Safety
///
/// The operands are valid, as for `enqueue`.
#[inline]
pub(super) unsafe fn write(
    board: *mut u8,
    (rank, ranks): (Rank, usize),
    call: &Collective<'_>,
    is_captured: bool,
    own: &mut Post,
) -> Result<()> {
    let inline = !is_captured && call.send.window.is_none() && call.recv.window.is_none();
    *own = Post::of(call, rank, ranks, inline);
    own.hide_addresses();
    if is_captured {
        own.head.flags |= CAPTURED;
    }
    if !own.counts.is_null() || !own.recv_counts.is_null() {
        Pen::new(board).put_counts(call, own)?;
    }
    let front = front(board);
    front.become_like(own);
    if own.head.is(INLINE) && call.send.bytes > 0 {
        let to = match call.send.bytes {
            0..=SMALL => front.small.as_mut_ptr(),
            _ => board.wrapping_add(PAYLOAD),
        };
        // SAFETY: By the caller, and `INLINE` means that it fits.
        unsafe { ptr::copy_nonoverlapping(call.send.addr.as_ptr(), to, call.send.bytes) };
    }
    Ok(())
}

/// [`write()`] for a group, whose operands do not lie on the board.
pub(super) fn write_group(
    board: *mut u8,
    (rank, ranks): (Rank, usize),
    calls: &[Collective<'_>],
    is_captured: bool,
    own: &mut Post,
) -> Result<()> {
    let mut pen = Pen::new(board);
    let posts = calls
        .iter()
        .map(|call| {
            let mut post = Post::of(call, rank, ranks, false);
            post.hide_addresses();
            pen.put_counts(call, &mut post)?;
            Ok(post)
        })
        .collect::<Result<Vec<_>>>()?;
    let at = pen.put(&posts)?;
    *own = Post::of_group(calls.len(), ptr::without_provenance(at));
    if is_captured {
        own.head.flags |= CAPTURED;
    }
    front(board).become_like(own);
    Ok(())
}

/// What a rank asks for that wrote this board and keeps `own` of it.
///
/// # Safety
///
/// The board is this rank's own, and was written for `own`.
#[cold]
pub(super) unsafe fn asked(board: *const u8, own: &Post) -> Asked {
    // SAFETY: By the caller, a group's posts lie on the board.
    unsafe { rebased(*own, board).asked() }
}

/// The post at the front of this rank's own board.
#[inline]
fn front<'a>(board: *mut u8) -> &'a mut Post {
    let front = board.wrapping_add(offset_of!(Front, post)).cast::<Post>();
    // SAFETY: A board begins with its front, zeroes at first, which nobody else uses while its rank
    // writes it.
    unsafe { &mut *front }
}

/// Takes the front of a board, and room for as much payload, away from the peers that read it last.
#[inline]
fn take_back(segment: &Segment, rank: usize, number: u64, payload: usize) {
    let board = segment.board(rank, number).cast_const();
    let bytes = if payload > SMALL {
        PAYLOAD + payload
    } else {
        1
    };
    for line in (0..bytes).step_by(LINE) {
        prefetch_for_writing(board.wrapping_add(line));
    }
}

/// The post at the front of a board.
///
/// # Safety
///
/// Its rank has arrived with it, and meanwhile does not write it again.
unsafe fn posted<'a>(board: *const u8) -> &'a Post {
    let post = board.wrapping_add(offset_of!(Front, post)).cast::<Post>();
    // SAFETY: By the caller.
    unsafe { &*post }
}

/// What all ranks say of one operation.
///
/// What this rank said is kept here and not read from its board again: a peer that has read that may
/// have the line for itself by then, and taking it back takes as long as sending a word.
pub(super) struct Boards<'a> {
    segment: &'a Segment,
    me: usize,
    number: u64,
    said: Said<'a>,
}

enum Said<'a> {
    /// All the same as this rank; only scalars may differ.
    Alike(&'a Post),
    /// Each its own, with pointers into this process's map of its board.
    Each(Vec<Post>),
}

impl<'a> Boards<'a> {
    /// # Safety
    ///
    /// All ranks have arrived in this operation, and this rank does not leave it before the boards are
    /// dropped.
    #[inline]
    pub(super) unsafe fn read(segment: &'a Segment, me: usize, number: u64, own: &'a Post) -> Self {
        let board = |rank| segment.board(rank, number).cast_const();
        // SAFETY: By the caller.
        let is_alike = |rank| are_alike(own, unsafe { posted(board(rank)) });
        let mut peers = (0..segment.ranks()).filter(|&rank| rank != me);
        let plain = own.head.flags & (UNEVEN | GROUP) == 0 && own.head.kind != OpKind::AllToAll;
        let said = match plain && peers.all(is_alike) {
            true => Said::Alike(own),
            // SAFETY: By the caller.
            false => Said::Each(unsafe { Self::each(segment, me, number, own) }),
        };
        Self {
            segment,
            me,
            number,
            said,
        }
    }

    /// # Safety
    ///
    /// As for [`Boards::read`].
    #[cold]
    unsafe fn each(segment: &Segment, me: usize, number: u64, own: &Post) -> Vec<Post> {
        let board = |rank| segment.board(rank, number).cast_const();
        let post = |rank| match rank == me {
            true => *own,
            // SAFETY: By the caller.
            false => *unsafe { posted(board(rank)) },
        };
        (0..segment.ranks())
            .map(|rank| rebased(post(rank), board(rank)))
            .collect()
    }

    /// Whether all ranks say the same, so that nothing is left to compare.
    pub(super) fn are_alike(&self) -> bool {
        matches!(self.said, Said::Alike(_))
    }

    fn place(&self, rank: usize) -> *const u8 {
        self.segment.board(rank, self.number).cast_const()
    }

    /// Whether every rank's payload lies on its board.
    pub(super) fn are_inline(&self) -> bool {
        match &self.said {
            Said::Alike(post) => post.head.is(INLINE),
            Said::Each(posts) => posts.iter().all(|post| post.head.is(INLINE)),
        }
    }

    /// Has the board of the next operation ready, which will likely be like this one.
    #[inline]
    pub(super) fn make_ready_for_next(&self, rank: usize) {
        let payload = match &self.said {
            Said::Alike(post) if post.head.is(INLINE) => post.count * post.head.dtype.size(),
            _ => 0,
        };
        take_back(self.segment, rank, self.number + 1, payload.min(EAGER));
    }

    /// Where payload of a peer lies; all ranks said the same of its length. This rank's own is nearer
    /// where it came from.
    pub(super) fn payload(&self, rank: usize) -> *const u8 {
        let place = self.place(rank);
        match self.post(rank).small_holds_payload(self.segment.ranks()) {
            // SAFETY: Every rank has arrived, and this one has not left.
            true => unsafe { posted(place) }.small.as_ptr(),
            false => place.wrapping_add(PAYLOAD),
        }
    }

    /// The scalar of a rank.
    pub(super) fn scalar(&self, rank: usize) -> u64 {
        match &self.said {
            Said::Alike(own) if rank == self.me => own.scalar,
            // SAFETY: Every rank has arrived, and this one has not left.
            Said::Alike(_) => unsafe { posted(self.place(rank)) }.scalar,
            Said::Each(posts) => posts[rank].scalar,
        }
    }

    /// The posts of one member of the group that all ranks posted.
    ///
    /// # Safety
    ///
    /// All posted groups of one length, of which the index is less.
    pub(super) unsafe fn member(&self, index: usize) -> Self {
        let member = |rank: usize| {
            let post = self.post(rank);
            if !post.head.is(GROUP) {
                return *post;
            }
            let at = post.counts.cast::<Post>().wrapping_add(index);
            // SAFETY: By the caller.
            rebased(unsafe { at.read() }, self.place(rank))
        };
        Self {
            segment: self.segment,
            me: self.me,
            number: self.number,
            said: Said::Each((0..self.segment.ranks()).map(member).collect()),
        }
    }
}

/// Whether two ranks say the same single operation, if the posts alone tell that.
#[inline]
fn are_alike(one: &Post, other: &Post) -> bool {
    one.head == other.head
        && one.count == other.count
        && (!one.head.is(WINDOWS) || one.is_at_place_of(other))
}

/// Offsets into a board as pointers.
fn rebased(mut post: Post, board: *const u8) -> Post {
    let at = |offset: *const usize| match offset.is_null() {
        true => offset,
        false => board.wrapping_add(offset.addr()).cast(),
    };
    post.counts = at(post.counts);
    post.recv_counts = at(post.recv_counts);
    post
}

impl Posts for Boards<'_> {
    fn world_size(&self) -> usize {
        self.segment.ranks()
    }

    fn post(&self, rank: usize) -> &Post {
        match &self.said {
            Said::Alike(post) => post,
            Said::Each(posts) => &posts[rank],
        }
    }
}
