//! What one operation sees of the ranks that have met in it, and how it leaves.

use collectives_core::collective::Collective;
use collectives_core::error::Result;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;

use crate::compare::Posts;
use crate::endpoint::Endpoint;
use crate::exchange::View;
use crate::meeting::Meeting;
use crate::post::{GROUP, INLINE, Post, UNEVEN, WINDOWS};
use crate::reduce::{Reducer, Scratch, Source};

/// Leaves a meeting, also when the rank panics inside.
pub(crate) struct Leave<'a>(pub(crate) &'a Meeting<'a>);

impl Leave<'_> {
    #[inline]
    pub(crate) fn now(self, stay: bool) {
        let meeting = self.0;
        std::mem::forget(self);
        meeting.leave(stay);
        if stay {
            meeting.wait_until_left();
        }
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave(true);
    }
}

/// The posts of a meeting of single operations, or the heads of groups.
pub(crate) struct Single<'a> {
    pub(crate) meeting: &'a Meeting<'a>,
    pub(crate) endpoint: &'a Endpoint,
    /// What this rank posted.
    pub(crate) mine: &'a Post,
}

impl Single<'_> {
    /// Whether all ranks posted the same, and it takes no closer look. Sets `stay` if somebody's
    /// payload is not in its slot.
    #[inline]
    pub(crate) fn all_plain_alike(&self, stay: &mut bool) -> bool {
        let mine = self.mine;
        let windows = mine.head.is(WINDOWS);
        let mut alike = mine.head.flags & (UNEVEN | GROUP) == 0;
        *stay |= !mine.head.is(INLINE);
        for peer in self.meeting.peers() {
            let post = self.post(peer);
            alike &= post.head == mine.head && post.count == mine.count;
            // A side without elements on some rank makes places differ, and takes the closer look.
            alike &= !windows || post.is_at_place_of(mine);
            *stay |= !post.head.is(INLINE);
        }
        alike
    }

    /// An all-reduce of inputs that all lie in the slots: apart from the others, because it is the
    /// operation whose latency counts most.
    ///
    /// Nothing of a peer's post is looked at but the payload, so that all else is done while that is
    /// on its way.
    ///
    /// # Safety
    ///
    /// All posts are alike, and inline; this rank's output is valid.
    #[inline]
    pub(crate) unsafe fn all_reduce_inline(
        &self,
        call: &Collective<'_>,
        op: ReduceOp,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let small = self.mine.small_holds_payload(self.world_size());
        let scaled = matches!(op, ReduceOp::PreMulSum(_));
        let source = |rank| {
            let slot = self.meeting.slot(rank);
            let addr = if rank == self.meeting.rank.index() {
                self.mine.send.addr.cast_const()
            } else if small {
                slot.small()
            } else {
                slot.eager()
            };
            let scalar = if scaled { self.post(rank).scalar } else { 0 };
            Source { addr, scalar }
        };
        let sources = (0..self.world_size()).map(source);
        let job = scratch.job(self.mine.count, sources, [self.mine.recv.addr]);
        // SAFETY: By the caller inputs and output have `count` elements; only this rank touches its
        // output, which is apart from its input or the same range.
        unsafe { Reducer::new(call.dtype, op)?.run(job) };
        Ok(())
    }
}

impl Posts for Single<'_> {
    #[inline]
    fn world_size(&self) -> usize {
        self.meeting.fabric.world_size()
    }

    #[inline]
    fn post(&self, rank: usize) -> &Post {
        if rank == self.meeting.rank.index() {
            return self.mine;
        }
        // SAFETY: It is made after all have arrived and used before this rank leaves.
        unsafe { self.meeting.post(rank) }
    }
}

impl View for Single<'_> {
    fn rank(&self) -> Rank {
        self.meeting.rank
    }

    #[inline]
    fn input(&self, rank: usize) -> *const u8 {
        if rank == self.meeting.rank.index() {
            return self.mine.send.addr;
        }
        let post = self.post(rank);
        if !post.head.is(INLINE) {
            return self.endpoint.input_of(self, rank);
        }
        if post.small_holds_payload(self.world_size()) {
            post.small.as_ptr()
        } else {
            self.meeting.slot(rank).eager()
        }
    }
}

/// The posts of one operation of a group.
pub(crate) struct Member<'a> {
    pub(crate) meeting: &'a Meeting<'a>,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) index: usize,
}

impl Posts for Member<'_> {
    fn world_size(&self) -> usize {
        self.meeting.fabric.world_size()
    }

    fn post(&self, rank: usize) -> &Post {
        // SAFETY: It is made after all have arrived and used before this rank leaves.
        let group = unsafe { self.meeting.post(rank) };
        let post = group.counts.cast::<Post>().wrapping_add(self.index);
        // SAFETY: All groups have the same length, of which the index is less, and the posts live
        // until everybody has left.
        unsafe { &*post }
    }
}

impl View for Member<'_> {
    fn rank(&self) -> Rank {
        self.meeting.rank
    }

    fn input(&self, rank: usize) -> *const u8 {
        self.endpoint.input_of(self, rank)
    }
}
