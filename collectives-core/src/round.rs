//! Rounds: calls that all ranks make together on the host, for those who write backends.
//!
//! A round carries the name of the call it belongs to, so ranks that make different calls are told so
//! and do not misread each other. A step that fails on one rank alone is told to the others as a
//! [`Refusal`], so that all fail alike, with the same error.
//!
//! A rank that never makes a call is absent from a round, which times out, and is one call behind from
//! then on. So ranks also say which rounds they missed since the last one that all completed, and how
//! many operations they had called: calls that are [out of order](crate::disorder) are found at the next
//! round that ranks complete.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::said::Said;
use crate::agreement::{mismatch, odd_one_out};
use crate::bootstrap::Bootstrap;
use crate::disorder::{self, out_of_order};
use crate::error::{Error, ErrorKind, Field, Misuse, Result};
use crate::rank::Rank;

mod said;

/// Why one rank cannot go on with a call, as far as the others have to know.
pub trait Refusal: Copy + PartialEq + 'static {
    /// Every reason, in the same order on all ranks; at most 255.
    const ALL: &'static [Self];

    /// The error that every rank gets because `rank` cannot go on.
    fn error(self, rank: Rank) -> Error;
}

/// The call that a round belongs to, as one rank makes it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Call<'a> {
    name: &'a str,
    words: &'a str,
    operations: u64,
    timed_out: bool,
}

impl<'a> Call<'a> {
    /// The call of this name, which must be the same on all ranks.
    ///
    /// Of a name, and of [words](Call::in_words), the first 255 bytes count.
    pub const fn named(name: &'a str) -> Self {
        Self {
            name,
            words: name,
            operations: 0,
            timed_out: false,
        }
    }

    /// What errors call it, where the name alone says too little.
    pub const fn in_words(self, words: &'a str) -> Self {
        Self { words, ..self }
    }

    /// How many operations this rank had called before that all ranks call, and whether one of them
    /// has timed out since the last round that all ranks completed.
    pub const fn after(self, operations: u64, timed_out: bool) -> Self {
        Self {
            operations,
            timed_out,
            ..self
        }
    }
}

/// The rounds of one communicator, on one rank; all ranks count alike.
#[derive(Debug)]
pub struct Rounds {
    prefix: &'static str,
    made: AtomicU64,
    missed: Mutex<Missed>,
}

/// The rounds that timed out since the last one that all ranks completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Missed {
    /// Of the calls in their order; zero if there was none.
    digest: u64,
    /// The last one, in words, with the operations before it.
    last: String,
}

impl Rounds {
    /// Rounds whose names at the [`Bootstrap`] begin with `prefix`.
    #[must_use]
    pub const fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            made: AtomicU64::new(0),
            missed: Mutex::new(Missed {
                digest: 0,
                last: String::new(),
            }),
        }
    }

    /// Rounds that this rank has begun.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Gives every rank the bytes of every rank, in rank order, if all make the same `call`.
    ///
    /// # Errors
    ///
    /// * [`Mismatch`](ErrorKind::Mismatch) of [`Field::Operation`] on every rank where calls differ;
    /// * after a round or an operation that timed out, where calls differ now or differed then, a
    ///   mismatch of [`Field::Order`] on every rank, which [poisons](Error::poisons);
    /// * those of [`Bootstrap::all_gather`]; what a rank [published](disorder::heard) of calls that are
    ///   out of order is the same mismatch on the others.
    pub fn run(
        &self,
        bootstrap: &dyn Bootstrap,
        call: Call<'_>,
        mine: &[u8],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        let name = format!(
            "{}/{}",
            self.prefix,
            self.made.fetch_add(1, Ordering::Relaxed)
        );
        let said = Said::of(&call, &self.missed());
        let all = bootstrap
            .all_gather(&name, &said.encode(mine), deadline)
            .map_err(|error| self.ended(&said, error))?;
        let (said, bytes): (Vec<_>, Vec<_>) = all.iter().map(|bytes| Said::decode(bytes)).unzip();
        compare(&said)?;
        *self.missed() = Missed::default();
        Ok(bytes.into_iter().map(<[u8]>::to_vec).collect())
    }

    /// The error of a round that the bootstrap ended.
    #[cold]
    fn ended(&self, said: &Said<'_>, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Timeout { .. } => {
                let mut missed = self.missed();
                *missed = Missed {
                    digest: said.digest_after(missed.digest),
                    last: said.at(),
                };
                error
            }
            ErrorKind::PeerFailed { rank, cause } => {
                let heard = disorder::heard(*rank, cause);
                match error.rank() {
                    Some(me) => heard.on_rank(me),
                    None => heard,
                }
            }
            _ => error,
        }
    }

    fn missed(&self) -> MutexGuard<'_, Missed> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives every rank the words of every rank, or the error of the first rank that refuses.
    ///
    /// # Errors
    ///
    /// As [`Rounds::run`], and [`Refusal::error`], the same on every rank.
    pub fn agree<R: Refusal, const N: usize>(
        &self,
        bootstrap: &dyn Bootstrap,
        call: Call<'_>,
        mine: Result<[u64; N], R>,
        deadline: Duration,
    ) -> Result<Vec<[u64; N]>> {
        let all = self.run(bootstrap, call, &encode(mine), deadline)?;
        decode::<R, N>(&all)
    }
}

/// Checks that all ranks make the same call, and made the same calls before where one was missed.
fn compare(said: &[Said<'_>]) -> Result<()> {
    let names: Vec<_> = said.iter().map(Said::name).collect();
    let in_doubt = said.iter().any(Said::is_in_doubt);
    if let Some((odd, usual)) = odd_one_out(&names) {
        let (theirs, ours) = (said[odd].words(), said[usual].words());
        return Err(match in_doubt {
            true => out_of_order(odd, theirs, ours),
            false => mismatch(odd, Field::Operation, theirs, ours),
        });
    }
    if !in_doubt {
        return Ok(());
    }
    let operations: Vec<_> = said.iter().map(Said::operations).collect();
    if let Some((odd, usual)) = odd_one_out(&operations) {
        return Err(out_of_order(odd, said[odd].at(), said[usual].at()));
    }
    let missed: Vec<_> = said.iter().map(Said::missed).collect();
    if let Some((odd, usual)) = odd_one_out(&missed) {
        let (theirs, ours) = (said[odd].after_missed(), said[usual].after_missed());
        return Err(out_of_order(odd, theirs, ours));
    }
    Ok(())
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
#[path = "round/tests.rs"]
mod tests;
