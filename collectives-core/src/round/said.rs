//! What a rank says of itself in a round, in front of the bytes that it tells the others.

use std::borrow::Cow;

use super::{Call, Missed};
use crate::agreement::beginning;

/// A rank's call, and what it missed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said<'a> {
    name: Cow<'a, [u8]>,
    words: Cow<'a, [u8]>,
    /// The last round that timed out, in words; empty if there was none.
    last: Cow<'a, [u8]>,
    operations: u64,
    /// Of all rounds that timed out.
    digest: u64,
    /// Whether an operation timed out.
    timed_out: bool,
}

impl<'a> Said<'a> {
    pub(super) fn of(call: &Call<'a>, missed: &Missed) -> Self {
        Self {
            name: short(call.name).into(),
            words: short(call.words).into(),
            last: short(&missed.last).to_vec().into(),
            operations: call.operations,
            digest: missed.digest,
            timed_out: call.timed_out,
        }
    }

    /// The bytes that travel, with those of the call behind them.
    pub(super) fn encode(&self, mine: &[u8]) -> Vec<u8> {
        let texts = [&self.name, &self.words, &self.last];
        let length = texts.iter().map(|text| 1 + text.len()).sum::<usize>() + 17;
        let mut bytes = Vec::with_capacity(length + mine.len());
        for text in texts {
            bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
            bytes.extend_from_slice(text);
        }
        bytes.extend(self.operations.to_le_bytes());
        bytes.extend(self.digest.to_le_bytes());
        bytes.push(u8::from(self.timed_out));
        bytes.extend_from_slice(mine);
        bytes
    }

    /// What a rank said, as far as there is something, and the bytes behind it.
    pub(super) fn decode(bytes: &'a [u8]) -> (Self, &'a [u8]) {
        let (name, rest) = text(bytes);
        let (words, rest) = text(rest);
        let (last, rest) = text(rest);
        let (operations, rest) = word(rest);
        let (digest, rest) = word(rest);
        let (timed_out, rest) = rest.split_first().unwrap_or((&0, &[]));
        let said = Self {
            name: name.into(),
            words: words.into(),
            last: last.into(),
            operations,
            digest,
            timed_out: *timed_out != 0,
        };
        (said, rest)
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(super) fn words(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.words)
    }

    /// The call, and how many operations had been called before.
    pub(super) fn at(&self) -> String {
        match self.operations {
            1 => format!("{} after 1 operation", self.words()),
            many => format!("{} after {many} operations", self.words()),
        }
    }

    /// The call, and the round before it that timed out.
    pub(super) fn after_missed(&self) -> String {
        match &*self.last {
            [] => format!("{}, and no round before it timed out", self.words()),
            last => {
                let last = String::from_utf8_lossy(last);
                format!("{}, and {last} timed out before it", self.words())
            }
        }
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    pub(super) fn missed(&self) -> u64 {
        self.digest
    }

    /// Whether a round or an operation timed out before.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.timed_out || self.digest != 0
    }

    /// The digest of rounds that timed out, this one after those of another digest. Never zero.
    pub(super) fn digest_after(&self, before: u64) -> u64 {
        let operations = self.operations.to_le_bytes();
        let parts: [&[u8]; 3] = [&self.name, &self.words, &operations];
        let mut digest = before ^ 0xcbf2_9ce4_8422_2325;
        for byte in parts.into_iter().flatten() {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        digest.max(1)
    }
}

/// As much of a text as a byte can say the length of.
fn short(text: &str) -> &[u8] {
    beginning(text, u8::MAX.into()).as_bytes()
}

/// A text behind its length, and what follows it.
fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (&length, rest) = bytes.split_first().unwrap_or((&0, &[]));
    rest.split_at_checked(length.into()).unwrap_or((rest, &[]))
}

fn word(bytes: &[u8]) -> (u64, &[u8]) {
    match bytes.split_first_chunk::<8>() {
        Some((word, rest)) => (u64::from_le_bytes(*word), rest),
        None => (0, &[]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_said_survives_the_way() {
        let missed = Missed {
            digest: 9,
            last: "trim".to_owned(),
        };
        let long = "x".repeat(300);
        for name in ["", "agree", &long] {
            let call = Call::named(name).in_words("reserve").after(7, true);
            let said = Said::of(&call, &missed);
            let bytes = said.encode(b"mine");
            assert_eq!(Said::decode(&bytes), (said.clone(), &b"mine"[..]));
            assert!(said.is_in_doubt());
        }
        assert!(!Said::of(&Call::named("agree"), &Missed::default()).is_in_doubt());
    }

    #[test]
    fn digests_tell_calls_their_order_and_their_number_apart() {
        let said = |words, operations| {
            Said::of(
                &Call::named("agree")
                    .in_words(words)
                    .after(operations, false),
                &Missed::default(),
            )
        };
        let (first, second) = (said("reserve", 0), said("trim", 0));
        let digests = [
            0,
            first.digest_after(0),
            second.digest_after(0),
            said("reserve", 1).digest_after(0),
            first.digest_after(first.digest_after(0)),
            second.digest_after(first.digest_after(0)),
            first.digest_after(second.digest_after(0)),
        ];
        for (index, digest) in digests.iter().enumerate() {
            assert!(!digests[..index].contains(digest), "{index}");
        }
    }

    proptest! {
        #[test]
        fn whatever_arrives_is_something(bytes: Vec<u8>) {
            let (said, rest) = Said::decode(&bytes);
            prop_assert!(rest.len() <= bytes.len());
            let _ = (said.words(), said.after_missed(), said.is_in_doubt());
        }
    }
}
