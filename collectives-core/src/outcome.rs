//! What became of a step that may fail on one rank alone, as all ranks are told.
//!
//! A rank adds the [`facts`] of its step to its record of an agreement round, and [settles](settle) it
//! by the records of all. Either every rank's step is done, or every rank gets the same error, which
//! names the first rank that failed. Only a want of memory is told as one.

use crate::agreement::{Record, beginning, odd_one_out};
use crate::error::{Error, ErrorKind, Result, Unsupported};
use crate::rank::Rank;

/// Bytes of an error's text that the others are told at most.
const TEXT: usize = 512;

/// How a step ended, by the code that is exchanged.
const DONE: u64 = 0;
const OUT_OF_MEMORY: u64 = 1;
const NO_SYMMETRIC_MEMORY: u64 = 2;
const NO_ALIASING: u64 = 3;
const UNSUPPORTED: u64 = 4;
const FAILED: u64 = 5;

/// What this rank says of its step: how it ended, a number, and an error's text as words.
#[must_use]
pub fn facts<T>(mine: &Result<T>) -> Vec<u64> {
    let Err(error) = mine else {
        return vec![DONE];
    };
    let (code, text) = match error.kind() {
        ErrorKind::OutOfMemory { bytes, .. } => return vec![OUT_OF_MEMORY, *bytes as u64],
        ErrorKind::Unsupported(Unsupported::SymmetricMemory(why)) => {
            (NO_SYMMETRIC_MEMORY, why.clone())
        }
        ErrorKind::Unsupported(Unsupported::Aliasing(why)) => (NO_ALIASING, why.clone()),
        ErrorKind::Unsupported(why) => (UNSUPPORTED, why.to_string()),
        kind => (FAILED, kind.to_string()),
    };
    let text = beginning(&text, TEXT).as_bytes();
    let words = text.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    [code, text.len() as u64].into_iter().chain(words).collect()
}

/// What this rank's step comes to once all ranks said theirs.
///
/// # Errors
///
/// The same on every rank. If all ranks say the same of a mistake of theirs or of what they cannot do, it is
/// that; otherwise that of the first rank that failed: [`OutOfMemory`](ErrorKind::OutOfMemory),
/// [`Unsupported`](ErrorKind::Unsupported), or for everything else [`PeerFailed`](ErrorKind::PeerFailed).
/// None of them [poisons](Error::poisons): all ranks know, and nothing moved.
pub fn settle<T>(mine: Result<T>, records: &[Record]) -> Result<T> {
    let Some(failed) = failure(records) else {
        return mine;
    };
    let facts: Vec<_> = records.iter().map(Record::facts).collect();
    Err(match mine {
        Ok(_) => failed,
        Err(own) if odd_one_out(&facts).is_none() && is_shared(&own) => own,
        Err(own) => failed.caused_by(own),
    })
}

/// Whether an error that all ranks have alike needs no rank's name.
fn is_shared(error: &Error) -> bool {
    !error.poisons() && !matches!(error.kind(), ErrorKind::OutOfMemory { .. })
}

/// The error of the first rank whose step failed, or `None` if none did.
fn failure(records: &[Record]) -> Option<Error> {
    let failed = |record: &Record| record.facts().first() != Some(&DONE);
    let index = records.iter().position(failed)?;
    let rank = Rank::new(index);
    let (&code, said) = records[index]
        .facts()
        .split_first()
        .unwrap_or((&FAILED, &[]));
    let (&number, words) = said.split_first().unwrap_or((&0, &[]));
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    let text = || {
        let bytes: Vec<_> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        String::from_utf8_lossy(&bytes[..number.min(bytes.len())]).into_owned()
    };
    let unsupported = |why: Unsupported| Error::unsupported(why).on_rank(rank);
    Some(match code {
        OUT_OF_MEMORY => Error::new(ErrorKind::OutOfMemory {
            rank,
            bytes: number,
        }),
        NO_SYMMETRIC_MEMORY => unsupported(Unsupported::SymmetricMemory(text())),
        NO_ALIASING => unsupported(Unsupported::Aliasing(text())),
        UNSUPPORTED => unsupported(Unsupported::Operation(text())),
        _ => Error::new(ErrorKind::PeerFailed {
            rank,
            cause: text(),
        })
        .repeatable(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Misuse;

    /// What all ranks are told where the last of three fails.
    fn told(kind: impl Into<ErrorKind>) -> Error {
        let outcomes = [Ok(()), Ok(()), Err(Error::new(kind))];
        let record = |outcome| {
            let facts = facts(outcome).into_iter();
            let record = facts.fold(Record::new(), Record::fact);
            Record::decode(&record.encode()).unwrap()
        };
        let records: Vec<_> = outcomes.iter().map(record).collect();
        assert!(failure(&records[..2]).is_none());
        failure(&records).unwrap()
    }

    #[test]
    fn a_want_of_memory_names_the_rank_and_its_bytes() {
        let error = told(ErrorKind::OutOfMemory {
            rank: Rank(9),
            bytes: 4096,
        });
        let (rank, bytes) = (Rank(2), 4096);
        assert_eq!(*error.kind(), ErrorKind::OutOfMemory { rank, bytes });
    }

    #[test]
    fn what_cannot_be_done_stays_so() {
        for why in [
            Unsupported::SymmetricMemory("an old driver".to_owned()),
            Unsupported::Aliasing("on this platform".to_owned()),
            Unsupported::Operation("something else".to_owned()),
        ] {
            let error = told(ErrorKind::Unsupported(why.clone()));
            assert_eq!(*error.kind(), ErrorKind::Unsupported(why));
            assert_eq!(error.rank(), Some(Rank(2)));
        }
    }

    #[test]
    fn anything_else_is_a_failure_of_that_rank_in_its_own_words_and_may_be_repeated() {
        for (kind, said) in [
            (ErrorKind::System("an event".to_owned()), "an event"),
            (
                Misuse::ZeroBytes.into(),
                "zero bytes of scratch were requested",
            ),
            (ErrorKind::System(String::new()), ""),
        ] {
            let error = told(kind);
            let (rank, cause) = (Rank(2), said.to_owned());
            assert_eq!(*error.kind(), ErrorKind::PeerFailed { rank, cause });
            assert!(!error.poisons());
        }
    }

    #[test]
    fn a_mistake_of_all_ranks_is_their_own_and_that_of_one_is_its() {
        let sealed = || Err::<(), _>(Error::from(Misuse::Sealed));
        let record = |mine: &Result<()>| facts(mine).into_iter().fold(Record::new(), Record::fact);
        let all = [record(&sealed()), record(&sealed())];
        let own = settle(sealed(), &all).unwrap_err();
        assert_eq!(own.misuse(), Some(&Misuse::Sealed));
        let one = [record(&Ok(())), record(&sealed())];
        let told = [Ok(()), sealed()].map(|mine| settle(mine, &one).unwrap_err());
        assert_eq!(told[0].kind(), told[1].kind());
        let cause = Misuse::Sealed.to_string();
        let rank = Rank(1);
        assert_eq!(*told[0].kind(), ErrorKind::PeerFailed { rank, cause });
        assert!(settle(Ok(5), &[record(&Ok(()))]).is_ok_and(|five| five == 5));
    }

    #[test]
    fn failures_of_all_ranks_name_the_first() {
        let want = |rank| Error::new(ErrorKind::OutOfMemory { rank, bytes: 8 });
        let broken = |_| Error::new(ErrorKind::System("broken".to_owned()));
        let errors: [&dyn Fn(Rank) -> Error; 2] = [&want, &broken];
        for error in errors {
            let mine = [Rank(0), Rank(1)].map(|rank| Err::<(), _>(error(rank)));
            let record = |mine| facts(mine).into_iter().fold(Record::new(), Record::fact);
            let all: Vec<_> = mine.iter().map(record).collect();
            let told = mine.map(|mine| settle(mine, &all).unwrap_err());
            assert_eq!(told[0].kind(), told[1].kind());
            assert!(!told[0].poisons());
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let error = told(ErrorKind::System(format!(
            "{}\u{e9}\u{e9}",
            "x".repeat(511)
        )));
        let ErrorKind::PeerFailed { cause, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!(*cause, "x".repeat(511));
    }

    #[test]
    fn a_rank_that_says_nothing_has_failed() {
        let silent = failure(&[Record::new().fact(DONE), Record::new()]).unwrap();
        assert!(matches!(
            silent.kind(),
            ErrorKind::PeerFailed { rank: Rank(1), .. }
        ));
        let lies = Record::new().fact(FAILED).fact(u64::MAX).fact(0);
        assert!(failure(&[lies]).is_some());
    }
}
