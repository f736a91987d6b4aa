//! How ranks meet in one operation, and how the outcome of meeting is fixed exactly once.
//!
//! As between threads: a rank arrives by moving its word, from an earlier operation to this one, and has
//! one word for operations with even numbers and one for the others. Who
//! gives up moves the words of all absent ranks, marked so; one rank at most may, because it must
//! first win the operation's judgement. A late rank finds its own word moved, and gets the same
//! verdict, if it makes the same call; with another it has found that calls are out of order.

use std::sync::atomic::Ordering;
use std::time::Duration;

use collectives_core::bootstrap::WARN_AFTER;
use collectives_core::disorder::{crossed, out_of_order};
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;

use super::board;
use super::judgement::{self, Judged};
use super::letters::Letters;
use super::transport::Shared;
use crate::meeting::look_later;
use crate::post::{Asked, Post};

const ABSENT: u64 = 1;

/// How long a failure that one rank knows of may take to be known to all.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// Arrives in an operation, over which this rank said `own`, and waits for everybody else to.
pub(super) fn meet(
    shared: &Shared,
    letters: &mut Letters,
    number: u64,
    own: &Post,
    deadline: Duration,
) -> Result<()> {
    let segment = &shared.segment;
    let word = segment.word(shared.me, number);
    let seen = word.load(Ordering::Relaxed);
    let arrived = seen >> 1 < number
        && word
            .compare_exchange(seen, number << 1, Ordering::SeqCst, Ordering::Acquire)
            .is_ok();
    segment.head().ring();
    if !arrived {
        return Err(verdict(shared, letters, number, Some(own)));
    }
    look_later();
    let mut warned = false;
    let all = || decided(shared, number);
    let met = shared.wait(letters, all, |waited| {
        if shared.health.is_broken() {
            give_up(shared, number, None, own);
        } else if waited >= deadline {
            give_up(shared, number, Some(deadline), own);
        } else if waited >= WARN_AFTER && !warned {
            warned = true;
            let absent: Vec<_> = absent(shared, number).map(|rank| rank.0).collect();
            tracing::warn!(
                ?absent,
                rank = shared.me,
                number,
                "waiting for absent ranks"
            );
        } else if waited >= Duration::from_millis(5) {
            shared.look(absent(shared, number).map(Rank::index));
            look_across(shared, number, own);
        }
        None
    });
    match met {
        true => Ok(()),
        false => Err(verdict(shared, letters, number, None)),
    }
}

/// Whether all have arrived, of whom this rank has, once it is clear of each whether it has.
fn decided(shared: &Shared, number: u64) -> Option<bool> {
    let mut met = true;
    for rank in (0..shared.segment.ranks()).filter(|&rank| rank != shared.me) {
        let word = shared.segment.word(rank, number).load(Ordering::Acquire);
        if word >> 1 < number {
            return None;
        }
        met &= word & ABSENT == 0 || word >> 1 > number;
    }
    Some(met)
}

fn absent(shared: &Shared, number: u64) -> impl Iterator<Item = Rank> {
    let absent =
        move |&rank: &usize| shared.segment.word(rank, number).load(Ordering::SeqCst) >> 1 < number;
    (0..shared.segment.ranks()).filter(absent).map(Rank::new)
}

/// Ends the communicator if an absent rank is in a round that waits for this one.
#[cold]
fn look_across(shared: &Shared, number: u64, own: &Post) {
    let absent: Vec<_> = absent(shared, number).map(Rank::index).collect();
    let call = |rank: usize| {
        if !absent.contains(&rank) {
            return Some(own.words());
        }
        let call = shared.call_across(rank)?;
        // After where it is: a rank that left the operation and went on has not been absent from it.
        let left = shared.segment.berth(rank).left.load(Ordering::Acquire);
        (left < number).then_some(call)
    };
    let calls: Vec<_> = (0..shared.segment.ranks()).map(call).collect();
    if let Some(error) = crossed(&calls) {
        shared.health.publish(&error);
    }
}

/// Marks whoever is absent, unless somebody did, or somebody is still inside the operation before:
/// what that one reads must not be written over. Without a time that was waited, another reason is known.
#[cold]
fn give_up(shared: &Shared, number: u64, waited: Option<Duration>, own: &Post) {
    let head = shared.segment.head();
    let inside = |rank: Rank| {
        let left = shared
            .segment
            .berth(rank.index())
            .left
            .load(Ordering::Acquire);
        let is_past = |number| {
            let word = shared
                .segment
                .word(rank.index(), number)
                .load(Ordering::Acquire);
            word & ABSENT == 0 && word >> 1 > left
        };
        is_past(number) || is_past(number + 1)
    };
    let is_broken = shared.health.is_broken();
    if !is_broken && absent(shared, number).any(inside) {
        return;
    }
    let seen = head.judged.load(Ordering::Acquire);
    let won = seen < number
        && head
            .judged
            .compare_exchange(seen, number, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
    if !won {
        return;
    }
    let mut marked = Vec::new();
    for rank in absent(shared, number) {
        let word = shared.segment.word(rank.index(), number);
        let seen = word.load(Ordering::Relaxed);
        let mark = number << 1 | ABSENT;
        let won = seen >> 1 < number
            && word
                .compare_exchange(seen, mark, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        if won {
            marked.push(rank);
        }
    }
    let judged = Judged {
        absent: marked,
        waited,
        asked: asked(shared, number, own),
    };
    judgement::write(&shared.segment, number, &judged);
    head.settled.store(number, Ordering::Release);
    head.ring();
}

/// What this rank asked for.
fn asked(shared: &Shared, number: u64, own: &Post) -> Asked {
    // SAFETY: It wrote its board itself, and writes it again only after this operation.
    unsafe { board::asked(shared.segment.board(shared.me, number), own) }
}

/// The error of an operation in which somebody is marked absent; a rank that is says what it asks for now
/// that it has come.
#[cold]
fn verdict(shared: &Shared, letters: &mut Letters, number: u64, late: Option<&Post>) -> Error {
    let head = shared.segment.head();
    let settled = || (head.settled.load(Ordering::Acquire) >= number).then_some(());
    // Who judges does so in one go, unless its process ends.
    shared.wait(letters, settled, |_| shared.ended().then_some(()));
    let judged = judgement::read(&shared.segment, number);
    if let Some(error) = failure(shared, letters, judged.as_ref()) {
        return error;
    }
    let late = late.map(|post| asked(shared, number, post));
    let error = match (judged, late) {
        (Some(judged), Some(late)) if judged.asked.digest != late.digest => {
            out_of_order(shared.me, late.words, judged.asked.words)
        }
        (Some(judged), _) => {
            return Error::new(ErrorKind::Timeout {
                absent: judged.absent,
                waited: judged.waited.unwrap_or_default(),
            });
        }
        // So many were given up since that nothing is known of this one any more.
        (None, late) => {
            let words = late.map_or_else(|| "an operation".to_owned(), |late| late.words);
            let theirs = format!("{words} as call {number}");
            let ours = format!("call {}", head.settled.load(Ordering::Acquire));
            out_of_order(shared.me, theirs, ours)
        }
    };
    shared.health.publish(&error);
    shared.health.failure().unwrap_or(error)
}

/// The failure for which an operation was given up, if it was for one.
///
/// Who gives up because of a failure does so at once, maybe before the control plane has told
/// everybody of it.
fn failure(shared: &Shared, letters: &mut Letters, judged: Option<&Judged>) -> Option<Error> {
    if let Some(error) = shared.health.failure() {
        return Some(error);
    }
    let judged = judged.filter(|judged| judged.waited.is_none())?;
    let told = || shared.health.is_broken().then_some(());
    shared.wait(letters, told, |waited| {
        shared.look(judged.absent.iter().copied().map(Rank::index));
        (waited >= TOLD_WITHIN).then_some(())
    });
    Some(shared.failure())
}

/// Leaves an operation: this rank reads nothing of it any more. Nobody sleeps until then; who gives up
/// looks now and then.
#[inline]
pub(super) fn leave(shared: &Shared, number: u64) {
    let berth = shared.segment.berth(shared.me);
    berth.left.store(number, Ordering::Release);
}

/// Tells the others, inside an operation, that this rank has come to this step of it.
pub(super) fn arrive(shared: &Shared, step: u64) {
    let berth = shared.segment.berth(shared.me);
    berth.step.store(step, Ordering::SeqCst);
    shared.segment.head().ring();
}

/// Waits until every rank has come to this step.
pub(super) fn wait(shared: &Shared, letters: &mut Letters, step: u64) -> Result<()> {
    let segment = &shared.segment;
    let behind = |rank: usize| segment.berth(rank).step.load(Ordering::Acquire) < step;
    let all = || (!(0..segment.ranks()).any(behind)).then_some(Ok(()));
    shared.wait(letters, all, |waited| {
        if waited >= Duration::from_millis(5) {
            shared.look([]);
        }
        shared.health.is_broken().then(|| Err(shared.failure()))
    })
}
