//! One rank's engine: runs its operations in order, each as one meeting with the other ranks.

use std::cell::UnsafeCell;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use collectives_core::bootstrap::{Bootstrap, DEFAULT_DEADLINE};
use collectives_core::collective::{Collective, Op};
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;

use crate::compare::{self, Posts};
use crate::course::{self, Course, Milestone};
use crate::exchange;
use crate::fabric::Fabric;
use crate::flat;
use crate::meeting::Meeting;
use crate::model::{DeviceModel, Skew};
use crate::post::{CAPTURED, INLINE, Post, SMALL};
use crate::reduce::Scratch;
use crate::tickets::{Ticket, Tickets};
use crate::view::{Leave, Member, Single};

/// The name of this backend in errors and reports.
pub(crate) const BACKEND: &str = "host";

/// The cause of those who wait for a rank that comes no more.
pub(crate) const SHUT: &str = "it shut the communicator down";

/// One rank of one communicator, shared by its handle, by queued operations and by graphs.
pub(crate) struct Endpoint {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) bootstrap: Arc<dyn Bootstrap>,
    pub(crate) rank: Rank,
    pub(crate) model: DeviceModel,
    tickets: Tickets,
    closed: AtomicBool,
    deadline: AtomicU64,
    seat: UnsafeCell<Seat>,
    course: Course,
}

/// What only the operation uses whose turn it is.
struct Seat {
    /// The number of the last operation.
    number: u64,
    scratch: Scratch,
    /// The posts of a group.
    posts: Vec<Post>,
    skew: u64,
}

// SAFETY: The seat is used by whoever has the turn, one at a time; the rest is `Sync` by itself.
unsafe impl Sync for Endpoint {}
// SAFETY: As above; the pointers among a group's posts are used during its meeting only.
unsafe impl Send for Endpoint {}

impl AsRef<Tickets> for &Endpoint {
    fn as_ref(&self) -> &Tickets {
        &self.tickets
    }
}

impl Endpoint {
    pub(crate) fn new(
        fabric: Arc<Fabric>,
        bootstrap: Arc<dyn Bootstrap>,
        model: DeviceModel,
    ) -> Self {
        let rank = bootstrap.rank();
        let skew = model
            .skew()
            .map_or(0, |skew| skew.seed ^ u64::from(rank.0).rotate_left(32));
        let endpoint = Self {
            fabric,
            bootstrap,
            rank,
            model,
            tickets: Tickets::new(),
            closed: AtomicBool::new(false),
            deadline: AtomicU64::new(0),
            seat: UnsafeCell::new(Seat {
                number: 0,
                scratch: Scratch::default(),
                posts: Vec::new(),
                skew,
            }),
            course: Course::default(),
        };
        endpoint.set_deadline(DEFAULT_DEADLINE);
        endpoint
    }

    pub(crate) fn tickets(&self) -> &Tickets {
        &self.tickets
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Relaxed))
    }

    pub(crate) fn set_deadline(&self, deadline: Duration) {
        let nanos = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.deadline.store(nanos, Ordering::Relaxed);
    }

    /// Whether this call closed it.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Checks that the communicator is neither closed nor broken.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) || self.fabric.is_broken() {
            return Err(self.refusal());
        }
        Ok(())
    }

    /// Why the communicator does not work.
    #[cold]
    pub(crate) fn refusal(&self) -> Error {
        let error = if self.closed.load(Ordering::Acquire) {
            Error::new(ErrorKind::Closed)
        } else {
            let lost = || Error::new(ErrorKind::System("the first failure is lost".to_owned()));
            self.fabric.failure(self.rank).unwrap_or_else(lost)
        };
        self.named(error)
    }

    pub(crate) fn named(&self, error: Error) -> Error {
        error.on_backend(BACKEND).on_rank(self.rank)
    }

    /// Fails the communicator on all ranks.
    pub(crate) fn fail(&self, cause: &str, aborted: bool) {
        self.fabric.fail(self.rank, cause, aborted);
        self.bootstrap.publish_failure(cause);
    }

    /// Ends the communicator on all ranks with an error that is the same on all of them; if another
    /// failure was published before, with that.
    #[cold]
    pub(crate) fn publish(&self, error: &Error) {
        self.bootstrap.publish_failure(&error.kind().to_string());
        self.look_for_failures([]);
    }

    /// From now on operations need tickets. Only for the enqueueing call.
    pub(crate) fn need_tickets(&self) {
        if !self.tickets.are_needed() {
            self.course.set(self.inline_operations());
            self.tickets.need();
        }
    }

    /// Operations that ran so far, each inside the call that enqueued it. No ticket was needed yet, and
    /// the caller is that of the communicator.
    fn inline_operations(&self) -> u64 {
        debug_assert!(!self.tickets.are_needed(), "the number may change");
        // SAFETY: Nothing runs but inside the calls of the communicator, of which this is one.
        unsafe { &*self.seat.get() }.number
    }

    /// Counts a call that takes a ticket.
    pub(crate) fn count(&self, calls: &[Collective<'_>]) {
        if course::meets(calls) {
            self.course.call();
        }
    }

    /// Counts a launch of a recorded call.
    pub(crate) fn count_launch(&self) {
        self.course.call();
    }

    /// How far this rank has come. Only for calls of the communicator.
    pub(crate) fn milestone(&self) -> Milestone {
        self.course.at(match self.tickets.are_needed() {
            true => self.course.operations(),
            false => self.inline_operations(),
        })
    }

    /// All ranks have completed a round that began there.
    pub(crate) fn settle(&self, there: Milestone) {
        self.course.settle(there);
    }

    /// Comes to a round that other ranks may have been told not to come to any more.
    pub(crate) fn enter_round(&self, rounds: u64, call: &str) -> Result<()> {
        let idle = self.tickets.is_idle();
        let standing = &self.fabric.member(self.rank.index()).standing;
        standing.enter(rounds, idle, call);
        // One that has been in this round left its outcome there.
        let gone = |&peer: &usize| {
            let member = self.fabric.member(peer);
            member.gone.load(Ordering::SeqCst) && member.standing.rounds() <= rounds
        };
        match (0..self.fabric.world_size()).find(gone) {
            None => Ok(()),
            Some(peer) => {
                standing.leave(rounds);
                self.fabric.fail(Rank::new(peer), SHUT, false);
                Err(self.refusal())
            }
        }
    }

    /// The round before which it made so many has its outcome.
    pub(crate) fn leave_round(&self, rounds: u64) {
        let standing = &self.fabric.member(self.rank.index()).standing;
        standing.leave(rounds + 1);
    }

    /// Says that this rank comes no more, to those too who wait for it in a round.
    pub(crate) fn leave_for_good(&self) {
        let member = self.fabric.member(self.rank.index());
        member.gone.store(true, Ordering::SeqCst);
        self.fabric.lobby.wake();
        let rounds = member.standing.rounds();
        let waits = |peer| self.fabric.member(peer).standing.waits_in(rounds);
        if (0..self.fabric.world_size()).any(waits) {
            self.bootstrap.publish_failure(SHUT);
        }
    }

    /// The error of a round as all ranks have it.
    #[cold]
    pub(crate) fn round_failed(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Mismatch { .. } if error.poisons() => self.publish(&error),
            ErrorKind::PeerFailed { .. } => self.look_for_failures([]),
            _ => return error,
        }
        self.fabric.failure(self.rank).unwrap_or(error)
    }

    /// Takes over a failure that reached only the control plane, and treats a peer that is awaited
    /// but was shut down as failed.
    #[cold]
    pub(crate) fn look_for_failures(&self, awaited: impl IntoIterator<Item = usize>) {
        if let Some((rank, cause)) = self.bootstrap.failure() {
            self.fabric.fail(rank, &cause, false);
        }
        let gone = |&peer: &usize| self.fabric.member(peer).gone.load(Ordering::Acquire);
        if let Some(peer) = awaited.into_iter().find(gone) {
            self.fabric.fail(Rank::new(peer), SHUT, false);
        }
    }

    /// Runs operations when the ticket's turn comes.
    ///
    /// # Safety
    ///
    /// As for [`Communicator::enqueue`], whose work this is; each call passed
    /// [`Collective::check`].
    ///
    /// [`Communicator::enqueue`]: collectives_core::communicator::Communicator::enqueue
    pub(crate) unsafe fn run<T: AsRef<Tickets>>(
        &self,
        ticket: &Ticket<T>,
        calls: &[Collective<'_>],
    ) -> Result<()> {
        let broken = || self.fabric.is_broken().then(|| self.refusal());
        let _turn = ticket.turn(broken)?;
        // SAFETY: By the caller, and the turn is this operation's alone.
        unsafe { self.run_in_turn(calls, self.prepare(calls).as_ref()) }
    }

    /// What this rank is going to post for a single collective. It can be made before the turn
    /// comes, which begins with an instruction that waits for all before it.
    #[inline]
    pub(crate) fn prepare(&self, calls: &[Collective<'_>]) -> Option<Post> {
        match calls {
            [call] if !call.kind().is_point_to_point() => Some(self.post_of::<false>(call)),
            _ => None,
        }
    }

    /// Runs operations now.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::run`], nothing else of this rank runs, and `post` is what
    /// [`Endpoint::prepare`] made of the calls.
    #[inline]
    pub(crate) unsafe fn run_in_turn(
        &self,
        calls: &[Collective<'_>],
        post: Option<&Post>,
    ) -> Result<()> {
        if self.fabric.is_broken() {
            return Err(self.refusal());
        }
        // SAFETY: By the caller.
        let seat = unsafe { &mut *self.seat.get() };
        self.drift(seat);
        let result = match (calls, post) {
            // SAFETY: By the caller.
            ([call], Some(post)) => unsafe { self.single::<false>(seat, call, post) },
            // SAFETY: By the caller.
            (calls, _) => unsafe { self.group(seat, calls) },
        };
        result.map_err(|error| self.context(error, calls))
    }

    /// Meets the other ranks over operations that are being captured, so that ranks that disagree
    /// find out now and not in a replay. Nothing moves, and messages are left to their replays.
    pub(crate) fn compare_captured<T: AsRef<Tickets>>(
        &self,
        ticket: &Ticket<T>,
        calls: &[Collective<'_>],
    ) -> Result<()> {
        let collectives: Vec<_> = calls
            .iter()
            .filter(|call| !call.kind().is_point_to_point())
            .collect();
        if collectives.is_empty() {
            return Ok(());
        }
        let broken = || self.fabric.is_broken().then(|| self.refusal());
        let _turn = ticket.turn(broken)?;
        if let Some(error) = broken() {
            return Err(error);
        }
        // SAFETY: The turn is this operation's alone.
        let seat = unsafe { &mut *self.seat.get() };
        self.drift(seat);
        let result = match collectives.as_slice() {
            // SAFETY: Captured operations touch no operand.
            [call] => unsafe { self.single::<true>(seat, call, &self.post_of::<true>(call)) },
            // SAFETY: As above.
            calls => unsafe { self.several::<true>(seat, calls) },
        };
        result.map_err(|error| self.context(error, calls))
    }

    #[cold]
    fn context(&self, error: Error, calls: &[Collective<'_>]) -> Error {
        let operation = match calls {
            [call] => call.kind().name(),
            _ => "group",
        };
        self.course.note(&error);
        self.named(error.during(operation))
    }

    /// Sleeps a while where the model wants ranks to drift apart.
    #[inline]
    fn drift(&self, seat: &mut Seat) {
        if let Some(skew) = self.model.skew() {
            Self::sleep_up_to(skew, seat);
        }
    }

    #[cold]
    fn sleep_up_to(skew: Skew, seat: &mut Seat) {
        seat.skew = seat
            .skew
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695);
        let share = u32::try_from(seat.skew >> 40).unwrap_or(0);
        thread::sleep(
            skew.longest
                .mul_f64(f64::from(share) / f64::from(1_u32 << 24)),
        );
    }

    #[inline]
    fn meeting(&self, seat: &mut Seat) -> Meeting<'_> {
        seat.number += 1;
        Meeting {
            endpoint: self,
            fabric: &self.fabric,
            me: self.fabric.member(self.rank.index()),
            rank: self.rank,
            number: seat.number,
            deadline: self.deadline.load(Ordering::Relaxed),
        }
    }

    /// What this rank posts for one collective.
    #[inline]
    fn post_of<const IS_CAPTURED: bool>(&self, call: &Collective<'_>) -> Post {
        let inline = !IS_CAPTURED
            && !(self.model.multicast()
                && (call.send.window.is_some() || call.recv.window.is_some()));
        let mut post = Post::of(call, self.rank, self.fabric.world_size(), inline);
        if IS_CAPTURED {
            post.head.flags |= CAPTURED;
        }
        post
    }

    /// One collective, for which this rank posts `mine`.
    ///
    /// It reads its own post there and not in its slot: a peer that has read the slot may have the
    /// line for itself by then, and taking it back takes as long as sending a word.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::run`], unless the operation is captured: that one is only compared.
    unsafe fn single<const IS_CAPTURED: bool>(
        &self,
        seat: &mut Seat,
        call: &Collective<'_>,
        mine: &Post,
    ) -> Result<()> {
        let meeting = self.meeting(seat);
        let leave = Leave(&meeting);
        if meeting.is_open() {
            // SAFETY: By the caller; the slot is this rank's own.
            unsafe { self.announce(&meeting, mine, call) };
        }
        // SAFETY: It is of a single operation.
        unsafe { meeting.meet(mine) }?;
        let posts = Single {
            meeting: &meeting,
            endpoint: self,
            mine,
        };
        let mut stay = false;
        let alike = posts.all_plain_alike(&mut stay);
        let compared = match alike {
            true => Ok(()),
            false => compare::shapes(&posts).and_then(|()| compare::operations(&posts)),
        };
        let result = match (compared, call.op) {
            // SAFETY: All ranks posted the same, and by the caller the output is valid.
            (Ok(()), Op::AllReduce(op)) if alike && mine.head.is(INLINE) => unsafe {
                posts.all_reduce_inline(call, op, &mut seat.scratch)
            },
            // SAFETY: By the caller, and all ranks said the same.
            (Ok(()), _) if !IS_CAPTURED => unsafe {
                exchange::run(&posts, call, &mut seat.scratch)
            },
            (compared, _) => compared,
        };
        leave.now(stay || result.is_err());
        result
    }

    /// Writes this rank's slot.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::run`], and nobody has given up on this rank.
    #[inline]
    unsafe fn announce(&self, meeting: &Meeting<'_>, mine: &Post, call: &Collective<'_>) {
        let slot = meeting.own_slot();
        // SAFETY: Everybody has left the operation two before this one, so nobody reads the slot.
        let post = unsafe { &mut *slot.post() };
        mine.publish(post);
        if mine.head.is(INLINE) && call.send.bytes > 0 {
            let target = match call.send.bytes {
                0..=SMALL => post.small.as_mut_ptr(),
                _ => slot.eager(),
            };
            let source = call.send.addr.as_ptr::<u8>();
            // SAFETY: By the caller the operand is valid, and `INLINE` means that it fits.
            unsafe { ptr::copy_nonoverlapping(source, target, call.send.bytes) };
        }
    }

    /// A group: its messages are posted, its collectives are one meeting, its messages are awaited.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::run`].
    unsafe fn group(&self, seat: &mut Seat, calls: &[Collective<'_>]) -> Result<()> {
        let (messages, collectives): (Vec<_>, Vec<_>) = calls
            .iter()
            .partition(|call| call.kind().is_point_to_point());
        // SAFETY: By the caller.
        let posted = unsafe { self.fabric.mail.post(self, &messages) };
        let met = match collectives.as_slice() {
            [] => Ok(()),
            // SAFETY: By the caller.
            [call] => unsafe { self.single::<false>(seat, call, &self.post_of::<false>(call)) },
            // SAFETY: By the caller.
            calls => unsafe { self.several::<false>(seat, calls) },
        };
        let delivered = posted.wait(self);
        met.and(delivered)
    }

    /// # Safety
    ///
    /// As for [`Endpoint::single`].
    unsafe fn several<const IS_CAPTURED: bool>(
        &self,
        seat: &mut Seat,
        calls: &[&Collective<'_>],
    ) -> Result<()> {
        let meeting = self.meeting(seat);
        let world_size = self.fabric.world_size();
        let post = |call: &&Collective<'_>| Post::of(call, self.rank, world_size, false);
        seat.posts.clear();
        seat.posts.extend(calls.iter().map(post));
        let mut mine = Post::of_group(calls.len(), seat.posts.as_ptr());
        if IS_CAPTURED {
            mine.head.flags |= CAPTURED;
        }
        if meeting.is_open() {
            // SAFETY: Everybody has left the operation two before this one.
            unsafe { meeting.own_slot().post().write(mine) };
        }
        let leave = Leave(&meeting);
        // SAFETY: Its posts are the seat's, and the turn is this operation's.
        unsafe { meeting.meet(&mine) }?;
        let each = |index| Member {
            meeting: &meeting,
            endpoint: self,
            index,
        };
        let single = Single {
            meeting: &meeting,
            endpoint: self,
            mine: &mine,
        };
        let mut result = compare::shapes(&single);
        for index in 0..calls.len() {
            result = result.and_then(|()| compare::operations(&each(index)));
        }
        for (index, call) in calls.iter().enumerate().filter(|_| !IS_CAPTURED) {
            // SAFETY: By the caller, and all ranks said the same.
            result = result
                .and_then(|()| unsafe { exchange::run(&each(index), call, &mut seat.scratch) });
        }
        leave.now(true);
        result
    }

    /// Where `rank`'s input is read: where it says, or, in a reduction under the multicast of the
    /// model, where this rank believes its window to be.
    pub(crate) fn input_of(&self, posts: &impl Posts, rank: usize) -> *const u8 {
        let me = self.rank.index();
        let mine = posts.post(me);
        if self.model.multicast() && mine.head.reduces() && mine.send.window > 0 && rank != me {
            return flat::address(&self.fabric, me, rank, mine.send);
        }
        posts.post(rank).send.addr
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("rank", &self.rank)
            .field("fabric", &self.fabric)
            .finish_non_exhaustive()
    }
}
