//! Rounds: calls that all ranks make together on the host, for those who write backends.
//!
//! A round carries the name of the call it belongs to, so ranks that make different calls are told so
//! and do not misread each other. A step that fails on one rank alone is told to the others as a
//! [`Refusal`], so that all fail alike, with the same error.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::agreement::{mismatch, odd_one_out};
use crate::bootstrap::Bootstrap;
use crate::error::{Error, Field, Misuse, Result};
use crate::rank::Rank;

/// Why one rank cannot go on with a call, as far as the others have to know.
pub trait Refusal: Copy + PartialEq + 'static {
    /// Every reason, in the same order on all ranks; at most 255.
    const ALL: &'static [Self];

    /// The error that every rank gets because `rank` cannot go on.
    fn error(self, rank: Rank) -> Error;
}

/// The rounds of one communicator, on one rank; all ranks count alike.
#[derive(Debug)]
pub struct Rounds {
    prefix: &'static str,
    made: AtomicU64,
}

impl Rounds {
    /// Rounds whose names at the [`Bootstrap`] begin with `prefix`.
    #[must_use]
    pub const fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            made: AtomicU64::new(0),
        }
    }

    /// Gives every rank the bytes of every rank, in rank order, if all make the same `call`, whose name
    /// has at most 255 bytes.
    ///
    /// # Errors
    ///
    /// [`Mismatch`](crate::error::ErrorKind::Mismatch) of [`Field::Operation`] on every rank where
    /// calls differ, and those of [`Bootstrap::all_gather`].
    pub fn run(
        &self,
        bootstrap: &dyn Bootstrap,
        call: &str,
        mine: &[u8],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        let name = format!(
            "{}/{}",
            self.prefix,
            self.made.fetch_add(1, Ordering::Relaxed)
        );
        let all = bootstrap.all_gather(&name, &titled(call, mine), deadline)?;
        let calls: Vec<_> = all.iter().map(|bytes| title(bytes)).collect();
        if let Some((odd, usual)) = odd_one_out(&calls) {
            let show = |rank: usize| String::from_utf8_lossy(calls[rank].0).into_owned();
            return Err(mismatch(odd, Field::Operation, show(odd), show(usual)));
        }
        // All calls are this one, so every message has its title.
        Ok(all
            .iter()
            .map(|bytes| bytes[1 + call.len()..].to_vec())
            .collect())
    }

    /// Gives every rank the words of every rank, or the error of the first rank that refuses.
    ///
    /// # Errors
    ///
    /// As [`Rounds::run`], and [`Refusal::error`], the same on every rank.
    pub fn agree<R: Refusal, const N: usize>(
        &self,
        bootstrap: &dyn Bootstrap,
        call: &str,
        mine: Result<[u64; N], R>,
        deadline: Duration,
    ) -> Result<Vec<[u64; N]>> {
        let all = self.run(bootstrap, call, &encode(mine), deadline)?;
        decode::<R, N>(&all)
    }
}

/// Checks that all ranks said the same.
///
/// # Errors
///
/// [`Mismatch`](crate::error::ErrorKind::Mismatch) of `field`, the same on every rank.
pub fn equal(said: impl IntoIterator<Item = u64>, field: Field) -> Result<()> {
    let said: Vec<_> = said.into_iter().collect();
    match odd_one_out(&said) {
        None => Ok(()),
        Some((odd, usual)) => {
            let (theirs, ours) = (said[odd].to_string(), said[usual].to_string());
            Err(mismatch(odd, field, theirs, ours))
        }
    }
}

/// What a rank says, behind the name of its call.
fn titled(call: &str, mine: &[u8]) -> Vec<u8> {
    let length = u8::try_from(call.len()).expect("names of calls are short");
    let mut bytes = Vec::with_capacity(1 + call.len() + mine.len());
    bytes.push(length);
    bytes.extend(call.as_bytes());
    bytes.extend(mine);
    bytes
}

/// The name of the call in front of what a rank says, as far as there is one.
#[derive(Clone, PartialEq, Eq)]
struct Title<'a>(&'a [u8]);

fn title(bytes: &[u8]) -> Title<'_> {
    let (length, rest) = bytes.split_first().unwrap_or((&0, &[]));
    Title(rest.get(..usize::from(*length)).unwrap_or(rest))
}

/// The words, or what is refused; codes count from one.
fn encode<R: Refusal, const N: usize>(mine: Result<[u64; N], R>) -> Vec<u8> {
    match mine {
        Ok(words) => {
            let words = words.into_iter().flat_map(u64::to_le_bytes);
            [0].into_iter().chain(words).collect()
        }
        Err(refusal) => {
            let place = R::ALL.iter().position(|known| *known == refusal);
            let code = place.and_then(|place| u8::try_from(place + 1).ok());
            vec![code.expect("every refusal is listed")]
        }
    }
}

fn decode<R: Refusal, const N: usize>(all: &[Vec<u8>]) -> Result<Vec<[u64; N]>> {
    let mut words = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        let garbled = || Misuse::Other(format!("rank {rank} sent a garbled record"));
        let (&code, rest) = bytes.split_first().ok_or_else(garbled)?;
        if code > 0 {
            let refusal = R::ALL.get(usize::from(code) - 1).ok_or_else(garbled)?;
            return Err(refusal.error(Rank::new(rank)));
        }
        let (chunks, []) = rest.as_chunks::<8>() else {
            return Err(garbled().into());
        };
        let theirs: [[u8; 8]; N] = chunks.try_into().map_err(|_| garbled())?;
        words.push(theirs.map(u64::from_le_bytes));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::error::ErrorKind;
    use crate::in_process::InProcess;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Why {
        Late,
        Small,
    }

    impl Refusal for Why {
        const ALL: &'static [Self] = &[Self::Late, Self::Small];

        fn error(self, rank: Rank) -> Error {
            Error::from(Misuse::Other(format!("{self:?}"))).on_rank(rank)
        }
    }

    const SOON: Duration = Duration::from_secs(20);

    /// What every rank of three gets.
    fn everywhere<T: Send>(part: impl Fn(&dyn Bootstrap, usize) -> T + Sync) -> Vec<T> {
        let ends = InProcess::world(3);
        thread::scope(|scope| {
            let ranks: Vec<_> = ends
                .iter()
                .enumerate()
                .map(|(rank, end)| {
                    let part = &part;
                    scope.spawn(move || part(end, rank))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_gets_the_bytes_and_words_of_every_rank() {
        for got in everywhere(|end, rank| {
            let rounds = Rounds::new("test");
            let bytes = rounds.run(end, "tell", &vec![7; rank], SOON).unwrap();
            let word = rank as u64 + 5;
            let words = rounds.agree(end, "add", Ok::<_, Why>([word, 1]), SOON);
            (bytes, words.unwrap())
        }) {
            assert_eq!(got.0, [vec![], vec![7], vec![7, 7]]);
            assert_eq!(got.1, [[5, 1], [6, 1], [7, 1]]);
        }
    }

    #[test]
    fn different_calls_are_the_same_mismatch_everywhere() {
        for error in everywhere(|end, rank| {
            let call = if rank == 1 { "retire" } else { "register" };
            Rounds::new("test")
                .run(end, call, b"same", SOON)
                .unwrap_err()
        }) {
            let text = error.to_string();
            assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{text}");
            assert!(
                text.contains("retire") && text.contains("register"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_refusal_of_one_rank_is_the_same_error_everywhere() {
        for why in Why::ALL {
            for error in everywhere(|end, rank| {
                let mine = if rank == 2 { Err(*why) } else { Ok([0]) };
                Rounds::new("test")
                    .agree(end, "add", mine, SOON)
                    .unwrap_err()
            }) {
                assert_eq!(error.rank(), Some(Rank(2)));
                assert!(error.to_string().contains(&format!("{why:?}")), "{error}");
            }
        }
    }

    #[test]
    fn ranks_that_say_something_else_are_named() {
        assert!(equal([4, 4, 4], Field::Bytes).is_ok());
        let error = equal([4, 5, 4], Field::Bytes).unwrap_err();
        let expected = ErrorKind::Mismatch {
            rank: Rank(1),
            field: Field::Bytes,
            theirs: "5".to_owned(),
            ours: "4".to_owned(),
        };
        assert_eq!(*error.kind(), expected);
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        for bytes in [&[][..], &[9], &[0, 1], &[0; 10]] {
            assert!(decode::<Why, 1>(&[bytes.to_vec()]).is_err(), "{bytes:?}");
        }
        assert_eq!(title(&[9, b'a']), Title(b"a"));
        assert_eq!(title(&[]), Title(b""));
    }

    impl std::fmt::Debug for Title<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(&String::from_utf8_lossy(self.0))
        }
    }
}
