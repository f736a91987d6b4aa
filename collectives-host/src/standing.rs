//! Where a rank is in its rounds at the control plane, told to those who wait for it elsewhere.
//!
//! A rank that waits in a round comes to no operation meanwhile, and a rank that waits in an operation
//! comes to no round. So two that wait for each other, one here and one there, would do so until their
//! deadlines, although what they do is known: their calls are out of order.

use std::sync::atomic::{AtomicU64, Ordering, fence};

const INSIDE: u64 = 1;
const IDLE: u64 = 2;

/// A text that threads, or processes, share. It is for people: who reads it while it is written finds some
/// of both.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Text([AtomicU64; 7]);

/// Where one rank is. Zeroes are a rank that has made no round.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Standing {
    /// Four times the rounds made before, and what holds of the rank.
    word: AtomicU64,
    call: Text,
}

impl Text {
    /// Holds this, or the beginning of it.
    pub(crate) fn set(&self, text: &str) {
        let mut bytes = text.bytes();
        for word in &self.0 {
            let bytes: [u8; 8] = std::array::from_fn(|_| bytes.next().unwrap_or(0));
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> String {
        let words = self.0.iter().map(|word| word.load(Ordering::Relaxed));
        let bytes: Vec<_> = words
            .flat_map(u64::to_le_bytes)
            .take_while(|&byte| byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Standing {
    /// The rank comes to a round, before which it made so many, for this call. It is idle if all that it
    /// enqueued has run, so that nothing of it comes to an operation before the round is over.
    ///
    /// Sequentially consistent, as is [`Standing::waits_in`]: of a rank that comes to a round and one that
    /// says elsewhere that it is gone, one sees the other.
    pub(crate) fn enter(&self, rounds: u64, idle: bool, call: &str) {
        self.call.set(call);
        let idle = if idle { IDLE } else { 0 };
        self.word
            .store(rounds << 2 | idle | INSIDE, Ordering::SeqCst);
    }

    /// The rank has made so many rounds, and is in none.
    pub(crate) fn leave(&self, rounds: u64) {
        self.word.store(rounds << 2, Ordering::SeqCst);
    }

    /// The rounds it has left.
    pub(crate) fn rounds(&self) -> u64 {
        self.word.load(Ordering::SeqCst) >> 2
    }

    pub(crate) fn is_inside(&self) -> bool {
        self.word.load(Ordering::SeqCst) & INSIDE != 0
    }

    /// Whether it waits in a round that a rank has not come to which made so many.
    pub(crate) fn waits_in(&self, rounds: u64) -> bool {
        let word = self.word.load(Ordering::SeqCst);
        word & INSIDE != 0 && word >> 2 >= rounds
    }

    /// The call in whose round it waits for a rank that made so many rounds, if there is one and it
    /// comes to nothing else before.
    pub(crate) fn call_across(&self, rounds: u64) -> Option<String> {
        let word = self.word.load(Ordering::SeqCst);
        if word & INSIDE == 0 || word & IDLE == 0 || word >> 2 < rounds {
            return None;
        }
        let call = self.call.get();
        fence(Ordering::Acquire);
        (self.word.load(Ordering::Relaxed) == word).then_some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_and_a_long_one_cut() {
        let text = Text::default();
        for said in [
            "",
            "reserve",
            "all_reduce sum f32 of 17 elements, and more than fits here",
        ] {
            text.set(said);
            assert_eq!(text.get(), said[..said.len().min(56)]);
        }
    }

    #[test]
    fn only_an_idle_rank_in_a_round_that_the_other_has_not_come_to_waits_across() {
        let standing = Standing::default();
        assert_eq!(standing.call_across(0), None);
        standing.enter(3, true, "reserve");
        assert_eq!(standing.rounds(), 3);
        assert_eq!(standing.call_across(3).as_deref(), Some("reserve"));
        assert_eq!(standing.call_across(2).as_deref(), Some("reserve"));
        assert_eq!(standing.call_across(4), None);
        assert!(standing.waits_in(3) && !standing.waits_in(4));
        standing.leave(4);
        assert!(!standing.is_inside() && standing.rounds() == 4);
        standing.enter(4, false, "trim");
        assert_eq!(standing.call_across(4), None);
        assert!(standing.waits_in(4));
    }
}
