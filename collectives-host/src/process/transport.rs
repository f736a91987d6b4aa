//! How operations of process ranks run: met over, compared, and moved through the segment.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collectives_core::collective::Collective;
use collectives_core::communicator::Capabilities;
use collectives_core::error::{Error, ErrorKind, Result, Unsupported};
use collectives_core::path::PathTable;
use collectives_core::rank::Rank;

use super::board::Boards;
use super::common;
use super::inside::Inside;
use super::letters::Letters;
use super::peers::Peers;
use super::segment::{Berth, Segment};
use super::staged::Staged;
use crate::compare;
use crate::endpoint::SHUT;
use crate::engine::fold::FoldScratch;
use crate::engine::{Health, Ranks, Transport};
use crate::post::Post;
use crate::worker;

/// The name of this backend in errors and reports.
const BACKEND: &str = "host-processes";

/// One rank's way to its peers: a segment that all of them map.
#[derive(Debug)]
pub struct ProcessTransport {
    shared: Shared,
    seat: UnsafeCell<Seat>,
}

/// What waiting needs.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) segment: Segment,
    pub(super) health: Arc<Health>,
    pub(super) me: usize,
    peers: Peers,
}

/// What only the operation uses whose turn it is.
#[derive(Debug)]
struct Seat {
    /// The number of the last operation.
    number: u64,
    /// What this rank said of it.
    own: Post,
    /// Steps of operations so far, the same on all ranks.
    steps: u64,
    letters: Letters,
    scratch: FoldScratch,
}

// SAFETY: The seat is used by whoever has the turn, one at a time, by the contract of `Transport`; the
// rest is `Sync` by itself.
unsafe impl Sync for ProcessTransport {}
// SAFETY: What a post points to is used during its operation only, and on this rank's board an offset.
unsafe impl Send for ProcessTransport {}

impl Shared {
    /// Waits as the [bell](super::segment::Head::wait) does, and lets messages get on meanwhile.
    pub(super) fn wait<R>(
        &self,
        letters: &mut Letters,
        mut poll: impl FnMut() -> Option<R>,
        mut tick: impl FnMut(Duration) -> Option<R>,
    ) -> R {
        let letters = std::cell::RefCell::new(letters);
        self.segment.head().wait(
            self.segment.ranks(),
            || {
                letters.borrow_mut().progress(self);
                poll()
            },
            |waited| {
                letters.borrow_mut().tick(self);
                tick(waited)
            },
        )
    }

    /// Looks for failures: what the control plane tells, processes that are gone, and ranks that are
    /// awaited but were shut down.
    pub(super) fn look(&self, awaited: impl IntoIterator<Item = usize>) {
        if self.health.failure().is_some() || self.ended() {
            return;
        }
        let awaited: Vec<_> = awaited.into_iter().collect();
        let _noted = self.note_gone(|rank| awaited.contains(&rank));
    }

    /// Notes that a rank was shut down that is awaited, if one was, and rather one that left of its own
    /// accord than one that followed it.
    fn note_gone(&self, is_awaited: impl Fn(usize) -> bool) -> bool {
        let gone = |rank: usize| self.segment.berth(rank).gone.load(Ordering::SeqCst);
        let first = |how| {
            let mut ranks = 0..self.segment.ranks();
            ranks.find(|&rank| gone(rank) == how && is_awaited(rank))
        };
        let first = first(Berth::LEFT).or_else(|| first(Berth::FAILED));
        if let Some(rank) = first {
            self.health.note(Rank::new(rank), SHUT, false);
        }
        first.is_some()
    }

    /// Whether a peer's process is gone, which fails the communicator. One that was shut down before
    /// may go.
    pub(super) fn ended(&self) -> bool {
        let gone = |rank| self.segment.berth(rank).gone.load(Ordering::Acquire) != 0;
        let ended = self.peers.ended(gone);
        if let Some(rank) = ended {
            self.health
                .note(Rank::new(rank), "its process is gone", false);
        }
        ended.is_some()
    }

    /// The call in whose round another rank waits for this one, which comes to none before its own
    /// operation has ended.
    #[cold]
    pub(super) fn call_across(&self, rank: usize) -> Option<String> {
        let standing = &self.segment.berth(self.me).standing;
        // Where a worker runs the operation, this rank may still come to the round.
        if worker::is_here() || standing.is_inside() {
            return None;
        }
        let other = &self.segment.berth(rank).standing;
        other.call_across(standing.rounds())
    }

    pub(super) fn failure(&self) -> Error {
        let lost = || Error::new(ErrorKind::System("the first failure is lost".to_owned()));
        self.health.failure().unwrap_or_else(lost)
    }
}

impl ProcessTransport {
    /// This rank's seat.
    ///
    /// # Safety
    ///
    /// It is the caller's turn, and it has no other reference to the seat.
    #[expect(clippy::mut_from_ref, reason = "there is one turn at a time")]
    unsafe fn seat(&self) -> &mut Seat {
        // SAFETY: By the caller.
        unsafe { &mut *self.seat.get() }
    }

    /// Begins the next operation.
    #[inline]
    fn begin(&self, seat: &mut Seat) -> Inside<'_> {
        seat.number += 1;
        Inside {
            shared: &self.shared,
            number: seat.number,
        }
    }

    /// One call, which is no message.
    ///
    /// # Safety
    ///
    /// As for [`Transport::run`].
    #[inline]
    unsafe fn single(
        &self,
        seat: &mut Seat,
        call: &Collective<'_>,
        deadline: Duration,
    ) -> Result<()> {
        let inside = self.begin(seat);
        let calls = std::slice::from_ref(call);
        // SAFETY: By the caller.
        unsafe { inside.announce(calls, false, &mut seat.own) }?;
        inside.meet(&mut seat.letters, &seat.own, deadline)?;
        // SAFETY: They have met, and `inside` was there first.
        let boards = unsafe { inside.boards(&seat.own) };
        compare_all(&boards, calls)?;
        let staged = Staged {
            shared: &self.shared,
            call,
            boards: &boards,
            letters: &mut seat.letters,
            steps: &mut seat.steps,
            scratch: &mut seat.scratch,
        };
        // SAFETY: By the caller.
        unsafe { staged.run() }
    }

    /// A group, which is one meeting, of which none is a message.
    ///
    /// # Safety
    ///
    /// As for [`Transport::run`].
    #[inline(never)]
    unsafe fn several(
        &self,
        seat: &mut Seat,
        calls: &[Collective<'_>],
        deadline: Duration,
    ) -> Result<()> {
        if let [call] = calls {
            // SAFETY: By the caller.
            return unsafe { self.single(seat, call, deadline) };
        }
        let inside = self.begin(seat);
        // SAFETY: By the caller.
        unsafe { inside.announce(calls, false, &mut seat.own) }?;
        inside.meet(&mut seat.letters, &seat.own, deadline)?;
        // SAFETY: They have met, and `inside` was there first.
        let boards = unsafe { inside.boards(&seat.own) };
        compare_all(&boards, calls)?;
        for (index, call) in calls.iter().enumerate() {
            let staged = Staged {
                shared: &self.shared,
                call,
                // SAFETY: All groups have the same length.
                boards: &unsafe { boards.member(index) },
                letters: &mut seat.letters,
                steps: &mut seat.steps,
                scratch: &mut seat.scratch,
            };
            // SAFETY: By the caller.
            unsafe { staged.run() }?;
        }
        Ok(())
    }

    /// A group with messages, which are under way while the rest runs.
    ///
    /// # Safety
    ///
    /// As for [`Transport::run`].
    #[inline(never)]
    unsafe fn mixed(
        &self,
        seat: &mut Seat,
        calls: &[Collective<'_>],
        deadline: Duration,
    ) -> Result<()> {
        let (messages, others): (Vec<_>, Vec<_>) = calls
            .iter()
            .partition(|call| call.kind().is_point_to_point());
        // SAFETY: By the caller; they are delivered, or given up, before this returns.
        unsafe { seat.letters.post(self.shared.me, &messages, deadline) };
        let others: Vec<_> = others.into_iter().copied().collect();
        let met = match others.is_empty() {
            true => Ok(()),
            // SAFETY: By the caller.
            false => unsafe { self.several(seat, &others, deadline) },
        };
        let delivered = self.deliver(&mut seat.letters);
        met.and(delivered)
    }

    /// Waits for messages that are under way.
    fn deliver(&self, letters: &mut Letters) -> Result<()> {
        let shared = &self.shared;
        let head = shared.segment.head();
        let cell = std::cell::RefCell::new(letters);
        head.wait(
            shared.segment.ranks(),
            || {
                let mut letters = cell.borrow_mut();
                letters.progress(shared);
                letters.is_idle().then_some(())
            },
            |waited| {
                let mut letters = cell.borrow_mut();
                letters.tick(shared);
                if waited >= Duration::from_millis(5) {
                    let partners: Vec<_> = letters.partners().collect();
                    shared.look(partners);
                    letters.look_across(shared);
                }
                if shared.health.is_broken() {
                    letters.abandon(&shared.failure());
                }
                None
            },
        );
        cell.into_inner().take_failure()
    }
}

/// Compares what ranks say, where they do not say the same at first sight.
#[inline]
fn compare_all(boards: &Boards<'_>, calls: &[Collective<'_>]) -> Result<()> {
    match boards.are_alike() {
        true => Ok(()),
        false => look_closer(boards, calls),
    }
}

#[cold]
fn look_closer(boards: &Boards<'_>, calls: &[Collective<'_>]) -> Result<()> {
    compare::shapes(boards)?;
    if let [_] = calls {
        return compare::operations(boards);
    }
    for index in 0..calls.len() {
        // SAFETY: All groups have the same length.
        compare::operations(&unsafe { boards.member(index) })?;
    }
    Ok(())
}

impl Transport for ProcessTransport {
    const BACKEND: &'static str = BACKEND;

    fn join(ranks: &Ranks, deadline: Duration) -> Result<Self> {
        let (bootstrap, neighbours) = (&ranks.bootstrap, &ranks.neighbours);
        if neighbours.machines() > 1 {
            let text = format!(
                "ranks that are processes share one machine, and these are on {}: use MPI",
                neighbours.machines()
            );
            return Err(Error::unsupported(Unsupported::Operation(text)));
        }
        let segment = common::segment(&**bootstrap, neighbours, deadline)?;
        let me = bootstrap.rank().index();
        Ok(Self {
            seat: UnsafeCell::new(Seat {
                number: 0,
                own: Post::NONE,
                steps: 0,
                letters: Letters::new(segment.ranks()),
                scratch: FoldScratch::default(),
            }),
            shared: Shared {
                segment,
                health: Arc::clone(&ranks.health),
                me,
                peers: Peers::new(neighbours.pids(), me),
            },
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // The engine knows.
            symmetric: Err(Unsupported::SymmetricMemory(String::new())),
            paths: PathTable::default(),
            drains: true,
            compares_calls: true,
            forces_kernels: false,
            world: 1..=usize::MAX,
        }
    }

    unsafe fn run(&self, calls: &[Collective<'_>], deadline: Duration) -> Result<()> {
        // SAFETY: By the caller, it is these calls' turn.
        let seat = unsafe { self.seat() };
        let is_message = |call: &Collective<'_>| call.kind().is_point_to_point();
        match calls {
            // SAFETY: By the caller.
            [call] if !is_message(call) => unsafe { self.single(seat, call, deadline) },
            // SAFETY: By the caller.
            calls if calls.iter().any(is_message) => unsafe { self.mixed(seat, calls, deadline) },
            // SAFETY: By the caller.
            calls => unsafe { self.several(seat, calls, deadline) },
        }
    }

    unsafe fn meet(&self, call: &Collective<'_>, deadline: Duration) -> Result<()> {
        // SAFETY: By the caller, it is this call's turn.
        let seat = unsafe { self.seat() };
        let inside = self.begin(seat);
        let calls = std::slice::from_ref(call);
        // SAFETY: Operands in windows are no payload of a board, so nothing is read.
        unsafe { inside.announce(calls, false, &mut seat.own) }?;
        inside.meet(&mut seat.letters, &seat.own, deadline)?;
        // SAFETY: They have met, and `inside` was there first.
        compare_all(&unsafe { inside.boards(&seat.own) }, calls)
    }

    unsafe fn compare(&self, calls: &[Collective<'_>], deadline: Duration) -> Result<()> {
        let collectives: Vec<_> = calls
            .iter()
            .filter(|call| !call.kind().is_point_to_point())
            .copied()
            .collect();
        if collectives.is_empty() {
            return Ok(());
        }
        // SAFETY: By the caller, it is these calls' turn.
        let seat = unsafe { self.seat() };
        let inside = self.begin(seat);
        // SAFETY: Captured calls have no payload on a board, so nothing is read.
        unsafe { inside.announce(&collectives, true, &mut seat.own) }?;
        inside.meet(&mut seat.letters, &seat.own, deadline)?;
        // SAFETY: They have met, and `inside` was there first.
        compare_all(&unsafe { inside.boards(&seat.own) }, &collectives)
    }

    fn interrupt(&self) {
        self.shared.segment.head().ring();
    }

    fn close(&self) {
        let (segment, me) = (&self.shared.segment, self.shared.me);
        let how = match self.shared.health.is_broken() {
            true => Berth::FAILED,
            false => Berth::LEFT,
        };
        segment.berth(me).gone.store(how, Ordering::SeqCst);
        segment.head().ring();
        let rounds = segment.berth(me).standing.rounds();
        let waits = |rank| segment.berth(rank).standing.waits_in(rounds);
        if (0..segment.ranks()).any(waits) {
            self.shared.health.tell(SHUT);
        }
    }

    fn enter_round(&self, rounds: u64, idle: bool, call: &str) -> Result<()> {
        let segment = &self.shared.segment;
        let standing = &segment.berth(self.shared.me).standing;
        standing.enter(rounds, idle, call);
        // One that has been in this round left its outcome there, before it went.
        let is_awaited = |rank| segment.berth(rank).standing.rounds() <= rounds;
        if self.shared.note_gone(is_awaited) {
            standing.leave(rounds);
            return Err(self.shared.failure());
        }
        Ok(())
    }

    fn leave_round(&self, rounds: u64) {
        let berth = self.shared.segment.berth(self.shared.me);
        berth.standing.leave(rounds + 1);
    }
}
