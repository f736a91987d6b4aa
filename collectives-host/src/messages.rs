//! Messages between two ranks: the second half to come finds the first and copies.
//!
//! Messages from one rank to another meet in the order they were sent and received. Each letter's
//! outcome is fixed once, under the lock of its channel, and both halves get it: a half that gives
//! up leaves its verdict for the other, which comes later.

use std::collections::VecDeque;
use std::fmt;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use collectives_core::addr::Addr;
use collectives_core::agreement::mismatch;
use collectives_core::bootstrap::WARN_AFTER;
use collectives_core::collective::{Collective, Op};
use collectives_core::disorder::{crossed, out_of_order};
use collectives_core::dtype::DType;
use collectives_core::error::{Error, ErrorKind, Field, Misuse, Result};
use collectives_core::rank::Rank;

use crate::endpoint::Endpoint;
use crate::fabric::lock;
use crate::worker;

/// The channels between all pairs of ranks.
pub(crate) struct Mail {
    world_size: usize,
    channels: Box<[Mutex<Channel>]>,
    /// Letters settled so far, so that waiting ranks need no lock to see that nothing happened.
    settled: AtomicU64,
}

/// Letters from one rank to another.
#[derive(Default)]
struct Channel {
    /// The number of the first letter in `letters`.
    first: u64,
    sent: u64,
    received: u64,
    letters: VecDeque<Letter>,
}

#[derive(Default)]
struct Letter {
    half: Option<Half>,
    outcome: Option<Outcome>,
    /// Halves that have taken the outcome.
    taken: u8,
}

#[derive(Clone, Copy)]
struct Half {
    addr: Addr,
    bytes: usize,
    count: usize,
    dtype: DType,
}

#[derive(Clone, Debug)]
enum Outcome {
    Delivered,
    Failed(ErrorKind),
    Broken,
}

/// One rank's halves of letters, to be waited for.
#[must_use]
pub(crate) struct Posted {
    places: Vec<Place>,
    since: Instant,
    /// A half came late to a letter of which the other half was something else.
    out_of_order: Option<Error>,
}

#[derive(Clone, Copy)]
struct Place {
    from: usize,
    to: usize,
    number: u64,
}

/// Refuses messages to oneself that nobody in the same group receives, or sends.
pub(crate) fn check_self_messages(calls: &[Collective<'_>], rank: Rank) -> Result<()> {
    let to_self = |call: &&Collective<'_>| matches!(call.op, Op::Send { to } if to == rank);
    let from_self = |call: &&Collective<'_>| matches!(call.op, Op::Recv { from } if from == rank);
    let (sends, receives) = (
        calls.iter().filter(to_self).count(),
        calls.iter().filter(from_self).count(),
    );
    if sends == receives {
        Ok(())
    } else {
        Err(Misuse::SelfMessage { rank }.into())
    }
}

impl Mail {
    pub(crate) fn new(world_size: usize) -> Self {
        Self {
            world_size,
            channels: (0..world_size * world_size)
                .map(|_| Mutex::default())
                .collect(),
            settled: AtomicU64::new(0),
        }
    }

    fn channel(&self, from: usize, to: usize) -> &Mutex<Channel> {
        &self.channels[from * self.world_size + to]
    }

    /// Posts this rank's halves, in order, and copies where the other half is there already.
    ///
    /// # Safety
    ///
    /// The operands are valid until [`Posted::wait`] has returned.
    pub(crate) unsafe fn post(&self, endpoint: &Endpoint, calls: &[&Collective<'_>]) -> Posted {
        let me = endpoint.rank.index();
        let mut posted = Vec::with_capacity(calls.len());
        let mut disorder = None;
        for call in calls {
            let (from, to, operand) = match call.op {
                Op::Send { to } => (me, to.index(), call.send),
                Op::Recv { from } => (from.index(), me, call.recv),
                _ => continue,
            };
            let sends = matches!(call.op, Op::Send { .. });
            let half = Half {
                addr: operand.addr,
                bytes: operand.bytes,
                count: operand.bytes / call.dtype.size(),
                dtype: call.dtype,
            };
            let mut channel = lock(self.channel(from, to));
            let number = channel.take_number(sends);
            posted.push(Place { from, to, number });
            let letter = channel.letter(number);
            let Some(other) = letter.half else {
                letter.half = Some(half);
                continue;
            };
            if let Some(outcome) = &letter.outcome {
                let timed_out = matches!(outcome, Outcome::Failed(ErrorKind::Timeout { .. }));
                if timed_out && (half.dtype, half.count) != (other.dtype, other.count) {
                    let (theirs, ours) = (half.words(sends), other.words(!sends));
                    disorder.get_or_insert(out_of_order(me, theirs, ours));
                }
                continue;
            }
            let (send, recv) = if sends { (half, other) } else { (other, half) };
            let outcome = compare(send, recv, from, to);
            if matches!(outcome, Outcome::Delivered) {
                // The lock is held: nobody may decide this letter meanwhile, and a channel is
                // between two ranks, of which the other waits for this very letter or none.
                // SAFETY: Both operands are valid, by the caller here and of the other half, who
                // waits until the letter is settled.
                unsafe { ptr::copy(send.addr.as_ptr::<u8>(), recv.addr.as_ptr(), send.bytes) };
            }
            letter.outcome = Some(outcome);
            drop(channel);
            self.settle(endpoint);
        }
        if let Some(error) = &disorder {
            endpoint.publish(error);
        }
        Posted {
            places: posted,
            since: Instant::now(),
            out_of_order: disorder,
        }
    }

    fn settle(&self, endpoint: &Endpoint) {
        self.settled.fetch_add(1, Ordering::SeqCst);
        endpoint.fabric.lobby.wake();
    }
}

impl Half {
    fn words(&self, sends: bool) -> String {
        let name = if sends { "send" } else { "recv" };
        format!("{name} {} of {}", self.dtype, self.count)
    }
}

impl Channel {
    fn take_number(&mut self, sends: bool) -> u64 {
        let counter = if sends {
            &mut self.sent
        } else {
            &mut self.received
        };
        *counter += 1;
        *counter - 1
    }

    fn letter(&mut self, number: u64) -> &mut Letter {
        let index = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        if index >= self.letters.len() {
            self.letters.resize_with(index + 1, Letter::default);
        }
        &mut self.letters[index]
    }

    /// The outcome of a letter, if it is settled; one of its two halves has it then.
    fn take_outcome(&mut self, number: u64) -> Option<Outcome> {
        let letter = self.letter(number);
        let outcome = letter.outcome.clone()?;
        letter.taken += 1;
        while self.letters.front().is_some_and(|letter| letter.taken == 2) {
            self.letters.pop_front();
            self.first += 1;
        }
        Some(outcome)
    }
}

/// The outcome of two halves that met. Of two that differ, the higher rank is the odd one.
fn compare(send: Half, recv: Half, from: usize, to: usize) -> Outcome {
    let (odd, theirs, ours) = if to >= from {
        (to, recv, send)
    } else {
        (from, send, recv)
    };
    let error = if send.dtype != recv.dtype {
        let (theirs, ours) = (theirs.dtype.to_string(), ours.dtype.to_string());
        mismatch(odd, Field::DType, theirs, ours)
    } else if send.count != recv.count {
        let (theirs, ours) = (theirs.count.to_string(), ours.count.to_string());
        mismatch(odd, Field::Count, theirs, ours)
    } else {
        return Outcome::Delivered;
    };
    Outcome::Failed(error.kind().clone())
}

impl Posted {
    /// Waits until every letter is settled; gives the first failure.
    pub(crate) fn wait(self, endpoint: &Endpoint) -> Result<()> {
        let mut result = self.out_of_order.map_or(Ok(()), Err);
        for place in self.places {
            let settled = place.wait(endpoint, self.since);
            result = result.and(settled);
        }
        result
    }
}

impl Place {
    fn wait(self, endpoint: &Endpoint, begun: Instant) -> Result<()> {
        let mail = &endpoint.fabric.mail;
        let channel = mail.channel(self.from, self.to);
        let mut seen = None;
        let mut warned = false;
        let outcome = endpoint.fabric.lobby.wait(
            || {
                let settled = Some(mail.settled.load(Ordering::SeqCst));
                if seen == settled {
                    return None;
                }
                seen = settled;
                lock(channel).take_outcome(self.number)
            },
            |_| {
                let waited = begun.elapsed();
                if waited >= WARN_AFTER && !warned {
                    warned = true;
                    let (rank, from, to) = (endpoint.rank.0, self.from, self.to);
                    tracing::warn!(rank, from, to, "waiting for the other half of a message");
                }
                self.give_up(endpoint, waited);
                None
            },
        );
        match outcome {
            Outcome::Delivered => Ok(()),
            Outcome::Failed(kind) => Err(Error::new(kind)),
            Outcome::Broken => Err(endpoint.refusal()),
        }
    }

    /// Ends the communicator if the partner waits for this rank in a round.
    #[cold]
    fn look_across(self, endpoint: &Endpoint, partner: usize) {
        let (fabric, me) = (&endpoint.fabric, endpoint.rank.index());
        let standing = &fabric.member(me).standing;
        // Where a worker runs the message, the rank may still come to the round.
        if worker::is_here() || standing.is_inside() {
            return;
        }
        let across = fabric
            .member(partner)
            .standing
            .call_across(standing.rounds());
        let Some(across) = across else { return };
        // After where it is: one that came to the letter first has not been absent from it.
        let channel = fabric.mail.channel(self.from, self.to);
        let own = {
            let mut channel = lock(channel);
            let letter = channel.letter(self.number);
            match (letter.half, &letter.outcome) {
                (Some(half), None) => half.words(self.from == me),
                _ => return,
            }
        };
        let mut calls = vec![None; fabric.world_size()];
        calls[me] = Some(own);
        calls[partner] = Some(across);
        if let Some(error) = crossed(&calls) {
            endpoint.publish(&error);
        }
    }

    /// Settles the letter as failed if it is time to, and nobody settled it before.
    fn give_up(self, endpoint: &Endpoint, waited: Duration) {
        let partner = if self.from == endpoint.rank.index() {
            self.to
        } else {
            self.from
        };
        if waited >= Duration::from_millis(10) {
            endpoint.look_for_failures([partner]);
            self.look_across(endpoint, partner);
        }
        let deadline = endpoint.deadline();
        let outcome = if endpoint.fabric.is_broken() {
            Outcome::Broken
        } else if waited >= deadline {
            Outcome::Failed(ErrorKind::Timeout {
                absent: vec![Rank::new(partner)],
                waited: deadline,
            })
        } else {
            return;
        };
        let mail = &endpoint.fabric.mail;
        let mut channel = lock(mail.channel(self.from, self.to));
        let letter = channel.letter(self.number);
        if letter.outcome.is_none() {
            letter.outcome = Some(outcome);
            drop(channel);
            mail.settle(endpoint);
        }
    }
}

impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mail").finish_non_exhaustive()
    }
}
