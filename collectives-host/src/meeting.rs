//! How ranks meet in one operation, and how the outcome of meeting is fixed exactly once.
//!
//! Operations of a communicator are numbered from one. A rank *arrives* in operation `k` by moving
//! its word from an earlier operation to `k`; it waits until everybody has. A rank that gives up,
//! because its deadline passed or the communicator failed, moves the words of *all* absent ranks
//! to `k` with the mark *absent*, under a lock. Each word moves once per operation, so either every
//! word says arrived and the operation goes on everywhere, or one says absent and it fails
//! everywhere, with the one verdict that was noted under the lock. A late rank finds its own word
//! moved and gets the same verdict; the next operation is a new one. Of a rank that never made the call,
//! the next call is taken for it. So a verdict says what was called, and a rank that comes late with
//! another call has found that calls are out of order, which ends the communicator.
//!
//! Once all have arrived nothing stops an operation, also no abort: a rank may be reading another's
//! memory. For the same reason nobody gives up on a rank that is still inside the operation before.
//!
//! Who waits looks now and then whether an absent rank waits for it in turn, in a round of the control
//! plane: their calls are out of order too.

use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collectives_core::bootstrap::WARN_AFTER;
use collectives_core::disorder::{crossed, out_of_order};
use collectives_core::error::{Error, ErrorKind};
use collectives_core::rank::Rank;

use crate::endpoint::Endpoint;
use crate::fabric::{Fabric, Member, Slot, lock};
use crate::post::{Asked, Post};
use crate::worker;

/// Why operations failed in which not everybody arrived, until every rank has heard of it.
#[derive(Debug, Default)]
pub(crate) struct Verdicts(HashMap<u64, (Verdict, usize)>);

#[derive(Clone, Debug)]
enum Verdict {
    Timeout {
        absent: Vec<Rank>,
        waited: Duration,
        /// What those who came asked for.
        asked: Asked,
    },
    Broken,
}

/// One rank in one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meeting<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) fabric: &'a Fabric,
    /// This rank's words.
    pub(crate) me: &'a Member,
    pub(crate) rank: Rank,
    /// The number of the operation.
    pub(crate) number: u64,
    /// How long it waits, in nanoseconds: dividing them takes time that few operations have to spend.
    pub(crate) deadline: u64,
}

const ABSENT: u64 = 1;

impl<'a> Meeting<'a> {
    #[inline]
    pub(crate) fn slot(&self, rank: usize) -> &'a Slot {
        slot_of(self.fabric.member(rank), self.number)
    }

    #[inline]
    pub(crate) fn own_slot(&self) -> &'a Slot {
        slot_of(self.me, self.number)
    }

    /// The other ranks, those that follow this one first.
    #[inline]
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.rank.index();
        (me + 1..self.fabric.world_size()).chain(0..me)
    }

    /// The post of a rank.
    ///
    /// # Safety
    ///
    /// Everybody has arrived and this rank has not left yet.
    #[inline]
    pub(crate) unsafe fn post(&self, rank: usize) -> &'a Post {
        // SAFETY: By the caller; nobody writes a slot between arriving and everybody's leaving.
        unsafe { &*self.slot(rank).post() }
    }

    /// Whether this rank may still write its slot: nobody has given up on it.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.own_slot().word.load(Ordering::Acquire) >> 1 < self.number
    }

    /// Arrives with `mine`, and waits for everybody else to arrive.
    ///
    /// # Safety
    ///
    /// As for [`Post::asked`], as long as nobody else has this rank's turn.
    #[inline]
    pub(crate) unsafe fn meet(&self, mine: &Post) -> Result<(), Error> {
        let word = &self.own_slot().word;
        let seen = word.load(Ordering::Relaxed);
        let arrived = seen >> 1 < self.number
            && word
                .compare_exchange(seen, self.number << 1, Ordering::SeqCst, Ordering::Acquire)
                .is_ok();
        if !arrived {
            // SAFETY: By the caller.
            return Err(self.verdict(Some(&unsafe { mine.asked() })));
        }
        self.fabric.lobby.wake();
        look_later();
        for peer in self.peers() {
            // SAFETY: By the caller.
            if !unsafe { self.wait_for(peer, mine) } {
                return Err(self.verdict(None));
            }
        }
        // Everybody has left the operation before this one, so its slot is the next to be written.
        prefetch_for_writing(ptr::from_ref(slot_of(self.me, self.number + 1)));
        Ok(())
    }

    /// Waits until a peer has arrived, or until it is clear that it will not.
    ///
    /// # Safety
    ///
    /// As for [`Meeting::meet`].
    #[inline]
    unsafe fn wait_for(&self, peer: usize, mine: &Post) -> bool {
        let word = &self.slot(peer).word;
        let mut warned = false;
        self.fabric.lobby.wait(
            || {
                let word = word.load(Ordering::Acquire);
                (word >> 1 >= self.number).then_some(word & ABSENT == 0)
            },
            |waited| {
                if self.fabric.is_broken() {
                    self.give_up(Verdict::Broken);
                } else if waited >= Duration::from_nanos(self.deadline) {
                    self.give_up(Verdict::Timeout {
                        absent: Vec::new(),
                        waited: Duration::from_nanos(self.deadline),
                        // SAFETY: By the caller.
                        asked: unsafe { mine.asked() },
                    });
                } else if waited >= WARN_AFTER && !warned {
                    warned = true;
                    self.warn("waiting for absent ranks");
                } else if waited >= Duration::from_millis(10) {
                    self.endpoint
                        .look_for_failures(self.absent().map(Rank::index));
                    self.look_across(mine);
                }
                None
            },
        )
    }

    #[cold]
    fn warn(&self, what: &str) {
        let absent: Vec<_> = self.absent().map(|rank| rank.0).collect();
        let (rank, operation) = (self.rank.0, self.number);
        tracing::warn!(?absent, rank, operation, "{what}");
    }

    fn absent(&self) -> impl Iterator<Item = Rank> {
        let absent = |&rank: &usize| self.slot(rank).word.load(Ordering::SeqCst) >> 1 < self.number;
        (0..self.fabric.world_size()).filter(absent).map(Rank::new)
    }

    /// Marks whoever is absent, unless the operation has been decided or somebody is still inside
    /// the one before, whom this rank has to wait for.
    #[cold]
    fn give_up(&self, mut why: Verdict) {
        let mut verdicts = lock(&self.fabric.verdicts);
        if verdicts.0.contains_key(&self.number) || self.absent().any(|rank| self.is_inside(rank)) {
            return;
        }
        let mut marked = Vec::new();
        for rank in self.absent() {
            let word = &self.slot(rank.index()).word;
            let seen = word.load(Ordering::Relaxed);
            let mark = self.number << 1 | ABSENT;
            let won = seen >> 1 < self.number
                && word
                    .compare_exchange(seen, mark, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok();
            if won {
                marked.push(rank);
            }
        }
        if !marked.is_empty() {
            if let Verdict::Timeout { absent, .. } = &mut why {
                *absent = marked;
            }
            let to_hear = self.fabric.world_size();
            verdicts.0.insert(self.number, (why, to_hear));
            drop(verdicts);
            self.fabric.lobby.wake();
        }
    }

    /// Ends the communicator if an absent rank is in a round that waits for this one.
    #[cold]
    fn look_across(&self, mine: &Post) {
        let standing = &self.me.standing;
        // Where a worker runs the operation, the rank may still come to the round.
        if worker::is_here() || standing.is_inside() {
            return;
        }
        let rounds = standing.rounds();
        let absent: Vec<_> = self.absent().map(Rank::index).collect();
        let call = |rank: usize| {
            if !absent.contains(&rank) {
                return Some(mine.words());
            }
            let member = self.fabric.member(rank);
            let call = member.standing.call_across(rounds)?;
            // After where it is: a rank that left the operation and went on has not been absent from it.
            (member.left.load(Ordering::Acquire) < self.number).then_some(call)
        };
        let calls: Vec<_> = (0..self.fabric.world_size()).map(call).collect();
        if let Some(error) = crossed(&calls) {
            self.endpoint.publish(&error);
        }
    }

    /// Whether a rank has arrived in an operation it has not left yet.
    fn is_inside(&self, rank: Rank) -> bool {
        let member = self.fabric.member(rank.index());
        let left = member.left.load(Ordering::Acquire);
        member.slots.iter().any(|slot| {
            let word = slot.word.load(Ordering::Acquire);
            word & ABSENT == 0 && word >> 1 > left
        })
    }

    /// The error of an operation in which somebody is marked absent; a rank that is says what it asks for
    /// now that it has come.
    #[cold]
    fn verdict(&self, late: Option<&Asked>) -> Error {
        let mut verdicts = lock(&self.fabric.verdicts);
        let verdict = verdicts.0.get_mut(&self.number).map(|(verdict, to_hear)| {
            *to_hear -= 1;
            (verdict.clone(), *to_hear)
        });
        if let Some((_, 0)) = verdict {
            verdicts.0.remove(&self.number);
        }
        drop(verdicts);
        match (verdict, late) {
            (Some((Verdict::Timeout { asked, .. }, _)), Some(late))
                if asked.digest != late.digest =>
            {
                let error = out_of_order(self.rank.index(), &*late.words, asked.words);
                self.endpoint.publish(&error);
                self.fabric.failure(self.rank).unwrap_or(error)
            }
            (Some((Verdict::Timeout { absent, waited, .. }, _)), _) => {
                Error::new(ErrorKind::Timeout { absent, waited })
            }
            _ => self.fabric.failure(self.rank).unwrap_or_else(|| {
                Error::new(ErrorKind::System("an operation was lost".to_owned()))
            }),
        }
    }

    /// Leaves: this rank reads nothing of its peers any more.
    #[inline]
    pub(crate) fn leave(&self, others_wait: bool) {
        let left = &self.me.left;
        if others_wait {
            left.store(self.number, Ordering::SeqCst);
            self.fabric.lobby.wake();
        } else {
            left.store(self.number, Ordering::Release);
        }
    }

    /// Waits until everybody has left. It has no deadline: all have arrived, so all will leave.
    #[inline(never)]
    pub(crate) fn wait_until_left(&self) {
        for peer in self.peers() {
            let left = &self.fabric.member(peer).left;
            let mut warned = false;
            self.fabric.lobby.wait(
                || (left.load(Ordering::Acquire) >= self.number).then_some(()),
                |waited| {
                    if waited >= WARN_AFTER && !warned {
                        warned = true;
                        tracing::warn!(rank = self.rank.0, peer, "a rank does not finish");
                    }
                    None
                },
            );
        }
    }
}

/// A rank's slot for an operation.
#[inline]
fn slot_of(member: &Member, number: u64) -> &Slot {
    let [even, odd] = &member.slots;
    if number & 1 == 0 { even } else { odd }
}

/// Keeps the processor from looking at peers' words before this rank's own is out.
///
/// It would look far ahead of that, find them unwritten, and take their lines away from the peers
/// just when these write them: two ranks in step would then pay for three transfers in place of one.
#[inline]
pub(crate) fn look_later() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Every processor of this architecture has the instruction, and it only waits.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
}

/// Starts to take a line away from those who read it last, which takes as long as sending a word: begun
/// early, it is done when the line is written.
#[inline]
pub(crate) fn prefetch_for_writing<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: The instruction changes no memory and no register, and never faults; processors that
    // lack it take it as a no-op.
    unsafe {
        std::arch::asm!(
            "prefetchw [{}]",
            in(reg) place,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
