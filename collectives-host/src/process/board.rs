//! What each rank says of an operation, written where the others read it.
//!
//! A board holds a [`Post`], payload that is small enough to lie beside it, and what the post points
//! to: vectors of counts, and the posts of a group. Pointers in it are offsets into the board.

use std::ptr;

use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::error::{Error, Result, Unsupported};
use collectives_core::rank::Rank;

use super::segment::{BOARD, Segment};
use crate::compare::Posts;
use crate::post::{CAPTURED, EAGER, GROUP, INLINE, Post};

/// Where payload begins.
const PAYLOAD: usize = 128;
/// Where what posts point to begins.
const REST: usize = PAYLOAD + EAGER;

/// Writes one board, from the front.
struct Pen {
    board: *mut u8,
    at: usize,
}

impl Pen {
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

    /// The post of a call, with what it points to on the board.
    fn post(
        &mut self,
        call: &Collective<'_>,
        rank: Rank,
        ranks: usize,
        inline: bool,
    ) -> Result<Post> {
        let mut post = Post::NONE;
        post.fill(call, rank, ranks, inline);
        if let (false, Counts::Uneven(counts)) = (post.counts.is_null(), call.counts) {
            post.counts = ptr::without_provenance(self.put(counts)?);
        }
        if let (false, Op::AllToAll { recv_counts }) = (post.recv_counts.is_null(), call.op)
            && let Counts::Uneven(counts) = recv_counts
        {
            post.recv_counts = ptr::without_provenance(self.put(counts)?);
        }
        Ok(post)
    }
}

/// Says what this rank is about to do. The board is this rank's, and nobody reads it any more.
///
/// # Safety
///
/// The operands are valid, as for `enqueue`.
pub(super) unsafe fn write(
    segment: &Segment,
    rank: Rank,
    number: u64,
    calls: &[Collective<'_>],
    is_captured: bool,
) -> Result<()> {
    let board = segment.board(rank.index(), number);
    let mut pen = Pen { board, at: REST };
    let ranks = segment.ranks();
    let mut head = match calls {
        [call] => {
            let inline = !is_captured && call.send.window.is_none() && call.recv.window.is_none();
            let post = pen.post(call, rank, ranks, inline)?;
            if post.head.is(INLINE) && call.send.bytes > 0 {
                let to = board.wrapping_add(PAYLOAD);
                // SAFETY: By the caller, and `INLINE` means that it fits.
                unsafe { ptr::copy_nonoverlapping(call.send.addr.as_ptr(), to, call.send.bytes) };
            }
            post
        }
        calls => {
            let posts = calls
                .iter()
                .map(|call| pen.post(call, rank, ranks, false))
                .collect::<Result<Vec<_>>>()?;
            let at = pen.put(&posts)?;
            Post::of_group(calls.len(), ptr::without_provenance(at))
        }
    };
    if is_captured {
        head.head.flags |= CAPTURED;
    }
    // SAFETY: A board begins with a post.
    unsafe { board.cast::<Post>().write(head) };
    Ok(())
}

/// The posts of all ranks, with pointers into this process's map of their boards.
pub(super) struct Boards {
    posts: Vec<Post>,
    places: Vec<*const u8>,
}

impl Boards {
    /// # Safety
    ///
    /// All ranks have arrived in this operation, and this rank has not left it.
    pub(super) unsafe fn read(segment: &Segment, number: u64) -> Self {
        let places: Vec<_> = (0..segment.ranks())
            .map(|rank| segment.board(rank, number).cast_const())
            .collect();
        let post = |place: &*const u8| {
            // SAFETY: By the caller, its rank has written a post there.
            let post = unsafe { place.cast::<Post>().read() };
            rebased(post, *place)
        };
        Self {
            posts: places.iter().map(post).collect(),
            places,
        }
    }

    /// Whether every rank's payload lies on its board.
    pub(super) fn are_inline(&self) -> bool {
        self.posts.iter().all(|post| post.head.is(INLINE))
    }

    /// Where payload of a rank lies.
    pub(super) fn payload(&self, rank: usize) -> *const u8 {
        self.places[rank].wrapping_add(PAYLOAD)
    }

    /// The posts of one member of the group that all ranks posted.
    ///
    /// # Safety
    ///
    /// All posted groups of one length, of which the index is less.
    pub(super) unsafe fn member(&self, index: usize) -> Self {
        let member = |(post, place): (&Post, &*const u8)| {
            if !post.head.is(GROUP) {
                return *post;
            }
            let at = post.counts.cast::<Post>().wrapping_add(index);
            // SAFETY: By the caller.
            rebased(unsafe { at.read() }, *place)
        };
        Self {
            posts: self.posts.iter().zip(&self.places).map(member).collect(),
            places: self.places.clone(),
        }
    }
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

impl Posts for Boards {
    fn world_size(&self) -> usize {
        self.posts.len()
    }

    fn post(&self, rank: usize) -> &Post {
        &self.posts[rank]
    }
}
