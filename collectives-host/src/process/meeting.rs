//! How ranks meet in one operation, and how the outcome of meeting is fixed exactly once.
//!
//! As between threads: a rank arrives by moving its word, from an earlier operation to this one, and has
//! one word for operations with even numbers and one for the others. Who
//! gives up moves the words of all absent ranks, marked so; one rank at most may, because it must
//! first win the operation's judgement. A late rank finds its own word moved, and gets the same
//! verdict.

use std::sync::atomic::Ordering;
use std::time::Duration;

use collectives_core::bootstrap::WARN_AFTER;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;

use super::letters::Letters;
use super::transport::Shared;
use crate::meeting::look_later;

const ABSENT: u64 = 1;

/// How long a failure that one rank knows of may take to be known to all.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// Arrives in an operation, and waits for everybody else to.
pub(super) fn meet(
    shared: &Shared,
    letters: &mut Letters,
    number: u64,
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
        return Err(verdict(shared, letters, number));
    }
    look_later();
    let mut warned = false;
    let all = || decided(shared, number);
    let met = shared.wait(letters, all, |waited| {
        if shared.health.is_broken() {
            give_up(shared, number, Duration::ZERO);
        } else if waited >= deadline {
            give_up(shared, number, deadline);
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
        }
        None
    });
    match met {
        true => Ok(()),
        false => Err(verdict(shared, letters, number)),
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

/// Marks whoever is absent, unless somebody did, or somebody is still inside the operation before:
/// what that one reads must not be written over.
#[cold]
fn give_up(shared: &Shared, number: u64, waited: Duration) {
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
    let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
    head.waited.store(nanos, Ordering::Relaxed);
    for rank in absent(shared, number) {
        let word = shared.segment.word(rank.index(), number);
        let seen = word.load(Ordering::Relaxed);
        if seen >> 1 < number {
            let mark = number << 1 | ABSENT;
            let _arrived = word.compare_exchange(seen, mark, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
    head.settled.store(number, Ordering::Release);
    head.ring();
}

/// The error of an operation in which somebody is marked absent.
#[cold]
fn verdict(shared: &Shared, letters: &mut Letters, number: u64) -> Error {
    let head = shared.segment.head();
    let settled = || (head.settled.load(Ordering::Acquire) >= number).then_some(());
    // Who judges does so in one go, unless its process ends.
    shared.wait(letters, settled, |_| shared.ended().then_some(()));
    if let Some(error) = failure(shared, letters) {
        return error;
    }
    let marked = |&rank: &usize| {
        let word = shared.segment.word(rank, number).load(Ordering::Acquire);
        word == number << 1 | ABSENT
    };
    let absent: Vec<_> = (0..shared.segment.ranks())
        .filter(marked)
        .map(Rank::new)
        .collect();
    Error::new(ErrorKind::Timeout {
        absent,
        waited: Duration::from_nanos(head.waited.load(Ordering::Relaxed)),
    })
}

/// The failure for which an operation was given up, if it was for one.
///
/// Who gives up because of a failure does so at once, maybe before the control plane has told
/// everybody of it.
fn failure(shared: &Shared, letters: &mut Letters) -> Option<Error> {
    if let Some(error) = shared.health.failure() {
        return Some(error);
    }
    if shared.segment.head().waited.load(Ordering::Relaxed) > 0 {
        return None;
    }
    let told = || shared.health.is_broken().then(|| shared.health.failure());
    shared.wait(letters, told, |waited| {
        let error = shared.health.failure();
        (error.is_some() || waited >= TOLD_WITHIN).then_some(error)
    })
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
