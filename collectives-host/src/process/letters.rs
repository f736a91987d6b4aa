//! Messages between two ranks: both halves come to the same letter, then it is handed over in packets.
//!
//! The letters of a channel are numbered, and taken one after the other. What both halves say of one
//! is compared by both, so they come to the same verdict; who gives up waiting for the other marks the
//! letter dead, unless the other comes first.

use std::ptr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use collectives_core::agreement::mismatch;
use collectives_core::collective::{Collective, Op};
use collectives_core::disorder::{crossed, out_of_order};
use collectives_core::dtype::DType;
use collectives_core::error::{Error, ErrorKind, Field, Result};
use collectives_core::rank::Rank;

use super::segment::{Channel, PACKET};
use super::transport::Shared;

const SENDER: u64 = 1;
const RECEIVER: u64 = 2;
const DEAD: u64 = 4;

/// This rank's halves of letters that are under way, and the numbers of its channels.
#[derive(Debug)]
pub(super) struct Letters {
    under_way: Vec<Letter>,
    sent: Vec<u64>,
    received: Vec<u64>,
    failure: Option<Error>,
}

#[derive(Debug)]
struct Letter {
    from: usize,
    to: usize,
    number: u64,
    sends: bool,
    addr: *mut u8,
    bytes: usize,
    count: usize,
    dtype: DType,
    begun: Instant,
    deadline: Duration,
    /// Whether the other half had given up when this one came.
    is_late: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The letter before is not done with.
    Queued,
    /// The other half has not come.
    Posted,
    /// So many bytes are handed over.
    Moving(usize),
}

// SAFETY: Addresses are those of operands, which whoever enqueued them promised to keep; they are
// used by the thread whose turn it is.
unsafe impl Send for Letters {}

impl Letters {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            under_way: Vec::new(),
            sent: vec![0; ranks],
            received: vec![0; ranks],
            failure: None,
        }
    }

    /// Puts this rank's halves under way.
    ///
    /// # Safety
    ///
    /// The operands are valid until no letter is under way.
    pub(super) unsafe fn post(&mut self, me: usize, calls: &[&Collective<'_>], deadline: Duration) {
        for call in calls {
            let (from, to, operand) = match call.op {
                Op::Send { to } => (me, to.index(), call.send),
                Op::Recv { from } => (from.index(), me, call.recv),
                _ => continue,
            };
            let sends = matches!(call.op, Op::Send { .. });
            let counter = match sends {
                true => &mut self.sent[to],
                false => &mut self.received[from],
            };
            let number = *counter;
            *counter += 1;
            self.under_way.push(Letter {
                from,
                to,
                number,
                sends,
                addr: operand.addr.as_ptr(),
                bytes: operand.bytes,
                count: operand.bytes / call.dtype.size(),
                dtype: call.dtype,
                begun: Instant::now(),
                deadline,
                is_late: false,
                phase: Phase::Queued,
            });
        }
    }

    /// Does for each letter what can be done now.
    #[inline]
    pub(super) fn progress(&mut self, shared: &Shared) {
        if !self.under_way.is_empty() {
            self.progress_all(shared);
        }
    }

    fn progress_all(&mut self, shared: &Shared) {
        let mut index = 0;
        while let Some(letter) = self.under_way.get_mut(index) {
            match letter.progress(shared) {
                None => index += 1,
                Some(done) => {
                    if let Err(error) = done {
                        self.failure.get_or_insert(error);
                    }
                    self.under_way.remove(index);
                }
            }
        }
    }

    /// Gives up on letters whose time is up.
    pub(super) fn tick(&mut self, shared: &Shared) {
        for letter in &self.under_way {
            let is_posted = matches!(letter.phase, Phase::Posted);
            if is_posted && letter.begun.elapsed() >= letter.deadline {
                letter.give_up(shared);
            }
        }
    }

    pub(super) fn partners(&self) -> impl Iterator<Item = usize> {
        self.under_way.iter().map(Letter::partner)
    }

    /// Ends the communicator if the partner of a letter is in a round that waits for this rank.
    #[cold]
    pub(super) fn look_across(&self, shared: &Shared) {
        for letter in &self.under_way {
            let partner = letter.partner();
            let Some(call) = shared.call_across(partner) else {
                continue;
            };
            // After where it is: a rank that came to the letter first has not been absent from it.
            let waiting = letter.number << 3 | letter.own_bit();
            if letter.channel(shared).state.load(Ordering::Acquire) != waiting {
                continue;
            }
            let mut calls = vec![None; shared.segment.ranks()];
            calls[shared.me] = Some(letter.words());
            calls[partner] = Some(call);
            if let Some(error) = crossed(&calls) {
                shared.health.publish(&error);
            }
        }
    }

    /// Gives up on all of them, because of this.
    pub(super) fn abandon(&mut self, error: &Error) {
        if !self.under_way.is_empty() {
            self.under_way.clear();
            self.failure.get_or_insert(error.clone());
        }
    }

    /// Whether no letter is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The first failure of a letter since it was last asked for.
    pub(super) fn take_failure(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }
}

impl Letter {
    fn channel<'a>(&self, shared: &'a Shared) -> &'a Channel {
        shared.segment.channel(self.from, self.to)
    }

    fn me(&self) -> usize {
        if self.sends { self.from } else { self.to }
    }

    fn partner(&self) -> usize {
        if self.sends { self.to } else { self.from }
    }

    fn words(&self) -> String {
        let name = if self.sends { "send" } else { "recv" };
        format!("{name} {} of {}", self.dtype, self.count)
    }

    fn own_bit(&self) -> u64 {
        if self.sends { SENDER } else { RECEIVER }
    }

    /// The letter's outcome, once it has one.
    fn progress(&mut self, shared: &Shared) -> Option<Result<()>> {
        let channel = self.channel(shared);
        let state = channel.state.load(Ordering::Acquire);
        if let Phase::Queued = self.phase {
            if state >> 3 != self.number {
                return None;
            }
            let says = &channel.says[usize::from(self.sends)];
            says[0].store(self.count as u64, Ordering::Relaxed);
            says[1].store(self.bytes as u64, Ordering::Relaxed);
            says[2].store(self.dtype as u64, Ordering::Relaxed);
            let found = channel.state.fetch_or(self.own_bit(), Ordering::AcqRel);
            self.is_late = found & DEAD != 0;
            shared.segment.head().ring();
            self.phase = Phase::Posted;
        }
        let state = channel.state.load(Ordering::Acquire);
        if let Phase::Posted = self.phase {
            if state & DEAD != 0 {
                let error = self.too_late(shared).unwrap_or_else(|| self.timeout());
                return Some(self.leave(shared, Err(error)));
            }
            if state & (SENDER | RECEIVER) != SENDER | RECEIVER {
                return None;
            }
            if let Err(error) = self.compare(channel) {
                return Some(self.leave(shared, Err(error)));
            }
            self.phase = Phase::Moving(0);
        }
        self.hand_over(shared)
    }

    fn hand_over(&mut self, shared: &Shared) -> Option<Result<()>> {
        let Phase::Moving(mut moved) = self.phase else {
            return None;
        };
        let channel = self.channel(shared);
        let before = moved;
        while moved < self.bytes {
            let (written, read) = (
                channel.written.load(Ordering::Acquire),
                channel.read.load(Ordering::Acquire),
            );
            let bytes = PACKET.min(self.bytes - moved);
            let operand = self.addr.wrapping_add(moved);
            if self.sends && written - read < 2 {
                let packet = shared.segment.packet(self.from, self.to, written);
                // SAFETY: The operand is valid, and the receiver reads the packet after the count.
                unsafe { ptr::copy_nonoverlapping(operand.cast_const(), packet, bytes) };
                channel.written.store(written + 1, Ordering::Release);
            } else if !self.sends && written > read {
                let packet = shared.segment.packet(self.from, self.to, read);
                // SAFETY: The sender has written it, and waits until it is read.
                unsafe { ptr::copy_nonoverlapping(packet.cast_const(), operand, bytes) };
                channel.read.store(read + 1, Ordering::Release);
            } else {
                break;
            }
            moved += bytes;
        }
        if moved > before {
            shared.segment.head().ring();
        }
        self.phase = Phase::Moving(moved);
        // A send is done when its receiver has everything.
        let is_read =
            || channel.read.load(Ordering::Acquire) == channel.written.load(Ordering::Acquire);
        (moved == self.bytes && (!self.sends || is_read())).then(|| self.leave(shared, Ok(())))
    }

    /// The second half to leave opens the next letter.
    fn leave(&self, shared: &Shared, outcome: Result<()>) -> Result<()> {
        let channel = self.channel(shared);
        if channel.left.fetch_add(1, Ordering::AcqRel) == 1 {
            channel.left.store(0, Ordering::Relaxed);
            channel
                .state
                .store((self.number + 1) << 3, Ordering::Release);
        }
        shared.segment.head().ring();
        outcome
    }

    fn give_up(&self, shared: &Shared) {
        let waiting = self.number << 3 | self.own_bit();
        let state = &self.channel(shared).state;
        let dead = waiting | DEAD;
        let _came = state.compare_exchange(waiting, dead, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The half that came late, or not at all, was absent.
    fn timeout(&self) -> Error {
        let absent = match self.sends == self.is_late {
            true => self.from,
            false => self.to,
        };
        Error::new(ErrorKind::Timeout {
            absent: vec![Rank::new(absent)],
            waited: self.deadline,
        })
    }

    /// The error of a half that came late and is not what the other half waited for.
    #[cold]
    fn too_late(&self, shared: &Shared) -> Option<Error> {
        let says = &self.channel(shared).says[usize::from(!self.sends)];
        let [count, _, dtype] = says.each_ref().map(|word| word.load(Ordering::Relaxed));
        if !self.is_late || (count, dtype) == (self.count as u64, self.dtype as u64) {
            return None;
        }
        let name = if self.sends { "recv" } else { "send" };
        let ours = format!("{name} {} of {count}", dtype_name(dtype));
        let error = out_of_order(self.me(), self.words(), ours);
        shared.health.publish(&error);
        Some(shared.health.failure().unwrap_or(error))
    }

    /// Of two halves that differ, the higher rank is the odd one.
    fn compare(&self, channel: &Channel) -> Result<()> {
        let says = |half: usize| {
            let word = |index: usize| channel.says[half][index].load(Ordering::Relaxed);
            (word(0), word(2))
        };
        let (sent, received) = (says(1), says(0));
        let (odd, theirs, ours) = match self.to >= self.from {
            true => (self.to, received, sent),
            false => (self.from, sent, received),
        };
        if sent.1 != received.1 {
            let (theirs, ours) = (dtype_name(theirs.1), dtype_name(ours.1));
            return Err(mismatch(odd, Field::DType, theirs, ours));
        }
        if sent.0 != received.0 {
            let (theirs, ours) = (theirs.0.to_string(), ours.0.to_string());
            return Err(mismatch(odd, Field::Count, theirs, ours));
        }
        Ok(())
    }
}

/// The name of an element type, by the code that is exchanged.
fn dtype_name(code: u64) -> String {
    let dtype = DType::ALL.into_iter().find(|dtype| *dtype as u64 == code);
    dtype.map_or_else(|| code.to_string(), |dtype| dtype.to_string())
}
