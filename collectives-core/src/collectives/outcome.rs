//! A local step that ranks take together, and which may fail on one of them alone.

use crate::agreement::Record;
use crate::error::{Error, ErrorKind, Result};
use crate::rank::Rank;

/// What this rank made, if every rank said by a first fact of 1 that it has; otherwise that the first
/// rank that has not is out of memory for `bytes` bytes, the same on all ranks.
pub(super) fn on_all_ranks<T>(records: &[Record], bytes: usize, made: Result<T>) -> Result<T> {
    let Some(rank) = records.iter().position(|record| record.facts() != [1]) else {
        return made;
    };
    let error = Error::new(ErrorKind::OutOfMemory {
        rank: Rank::new(rank),
        bytes,
    });
    Err(match made {
        Err(source) => error.caused_by(source),
        Ok(_) => error,
    })
}
