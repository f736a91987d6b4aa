//! What was found of an operation that somebody gave up on, kept for ranks that come late.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use collectives_core::rank::Rank;

use super::segment::Segment;
use crate::post::Asked;

/// Who was absent from an operation, and from what.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) absent: Vec<Rank>,
    /// How long was waited, if that is why.
    pub(super) waited: Option<Duration>,
    pub(super) asked: Asked,
}

/// Keeps the judgement on an operation, in place of that on one many calls before. Only for the rank that
/// won it.
pub(super) fn write(segment: &Segment, number: u64, judged: &Judged) {
    let (place, bits) = segment.judgement(number);
    let nanos = |waited: Duration| u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX - 1);
    place.number.store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    let waited = judged.waited.map_or(u64::MAX, nanos);
    place.waited.store(waited, Ordering::Relaxed);
    place.digest.store(judged.asked.digest, Ordering::Relaxed);
    place.words.set(&judged.asked.words);
    for (word, first) in bits.iter().zip((0..).step_by(64)) {
        let bit = |rank: &Rank| match rank.index().checked_sub(first) {
            Some(bit @ 0..64) => 1_u64 << bit,
            _ => 0,
        };
        let set = judged.absent.iter().map(bit).sum();
        word.store(set, Ordering::Relaxed);
    }
    place.number.store(number, Ordering::Release);
}

/// The judgement on an operation, unless one on a later operation took its place.
pub(super) fn read(segment: &Segment, number: u64) -> Option<Judged> {
    let (place, bits) = segment.judgement(number);
    if place.number.load(Ordering::Acquire) != number {
        return None;
    }
    let waited = match place.waited.load(Ordering::Relaxed) {
        u64::MAX => None,
        nanos => Some(Duration::from_nanos(nanos)),
    };
    let asked = Asked {
        digest: place.digest.load(Ordering::Relaxed),
        words: place.words.get(),
    };
    let is_set = |&rank: &usize| bits[rank / 64].load(Ordering::Relaxed) >> (rank % 64) & 1 == 1;
    let absent = (0..segment.ranks()).filter(is_set).map(Rank::new).collect();
    fence(Ordering::Acquire);
    let is_whole = place.number.load(Ordering::Relaxed) == number;
    is_whole.then_some(Judged {
        absent,
        waited,
        asked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::segment::JUDGEMENTS;

    fn segment(ranks: usize) -> Segment {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("judgements", flags).unwrap();
        rustix::fs::ftruncate(&file, Segment::bytes(ranks) as u64).unwrap();
        Segment::create(&file, ranks).unwrap()
    }

    fn judged(digest: u64, absent: &[usize], waited: Option<Duration>) -> Judged {
        Judged {
            absent: absent.iter().copied().map(Rank::new).collect(),
            waited,
            asked: Asked {
                digest,
                words: format!("call {digest}"),
            },
        }
    }

    #[test]
    fn the_last_judgements_are_kept_whole() {
        for ranks in [2, 64, 65, 130] {
            let segment = segment(ranks);
            assert!(read(&segment, 7).is_none());
            let waited = [Some(Duration::ZERO), None, Some(Duration::from_millis(3))];
            let numbers = 1..=JUDGEMENTS as u64 + 3;
            let absent = [0, ranks - 1];
            for number in numbers.clone() {
                let waited = waited[usize::try_from(number % 3).unwrap()];
                write(&segment, number, &judged(number, &absent, waited));
            }
            for number in numbers {
                let found = read(&segment, number);
                assert_eq!(found.is_some(), number > 3, "{number}");
                if let Some(found) = found {
                    assert_eq!(found.absent, absent.map(Rank::new));
                    assert_eq!(found.waited, waited[usize::try_from(number % 3).unwrap()]);
                    assert_eq!(found.asked.digest, number);
                    assert_eq!(found.asked.words, format!("call {number}"));
                }
            }
        }
    }
}
