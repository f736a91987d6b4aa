//! Calls that ranks make in different orders: how that is said, and heard.
//!
//! It is a [`Mismatch`](ErrorKind::Mismatch) of [`Field::Order`] that poisons: ranks whose calls do not
//! belong together cannot be brought together by repeating one. A rank that finds it alone publishes the
//! error's text at the control plane, and the others make the same error of that again.

use crate::agreement::{mismatch, odd_one_out};
use crate::error::{Error, ErrorKind, Field};
use crate::rank::Rank;

/// The error of ranks whose calls are out of order, the same on all of them: `odd` has come to `theirs`,
/// where the others have come to `ours`.
#[must_use]
pub fn out_of_order(odd: usize, theirs: impl Into<String>, ours: impl Into<String>) -> Error {
    mismatch(odd, Field::Order, theirs, ours).poisoning()
}

/// The error of ranks of which each is in the call of this name, if it is known what it is in, where
/// they are not all in the same.
#[must_use]
pub fn crossed(calls: &[Option<String>]) -> Option<Error> {
    let known: Vec<_> = calls
        .iter()
        .enumerate()
        .filter_map(|(rank, call)| Some((rank, call.as_deref()?)))
        .collect();
    let names: Vec<_> = known.iter().map(|(_, call)| *call).collect();
    let (odd, usual) = odd_one_out(&names)?;
    Some(out_of_order(known[odd].0, names[odd], names[usual]))
}

/// The error that a failure is on the ranks that hear of it: calls that are out of order are the same
/// error on all ranks, and everything else is the [failure](ErrorKind::PeerFailed) of `rank`.
#[must_use]
pub fn heard(rank: Rank, cause: &str) -> Error {
    parse(cause).unwrap_or_else(|| {
        Error::new(ErrorKind::PeerFailed {
            rank,
            cause: cause.to_owned(),
        })
    })
}

/// The error whose kind has this text, if it is that of calls that are out of order.
fn parse(text: &str) -> Option<Error> {
    let (odd, said) = text.strip_prefix("rank ")?.split_once(' ')?;
    let between = format!("disagrees on {}: it has ", Field::Order);
    let (theirs, ours) = said
        .strip_prefix(&between)?
        .split_once(", the others have ")?;
    Some(out_of_order(odd.parse().ok()?, theirs, ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_of_it_is_heard_as_the_same_error() {
        for (theirs, ours) in [("reserve", "barrier"), ("all_reduce sum f32", "close")] {
            let error = out_of_order(3, theirs, ours);
            assert!(error.poisons());
            let heard = heard(Rank(0), &error.kind().to_string());
            assert_eq!(heard.kind(), error.kind());
            assert!(heard.poisons());
        }
    }

    #[test]
    fn everything_else_is_a_failure_of_the_rank_that_told() {
        let count = mismatch(1, Field::Count, "3", "4").kind().to_string();
        for cause in ["it panicked", "rank 1 disagrees", count.as_str()] {
            let (rank, cause) = (Rank(2), cause.to_owned());
            let expected = ErrorKind::PeerFailed {
                rank,
                cause: cause.clone(),
            };
            assert_eq!(*heard(rank, &cause).kind(), expected);
        }
    }

    #[test]
    fn the_rank_that_is_elsewhere_is_named_and_ranks_that_are_nowhere_are_not() {
        let call = |name: &str| Some(name.to_owned());
        let error = crossed(&[None, call("barrier"), call("reserve"), call("barrier")]).unwrap();
        let expected = out_of_order(2, "reserve", "barrier");
        assert_eq!(error.kind(), expected.kind());
        assert!(crossed(&[None, call("barrier"), call("barrier")]).is_none());
        assert!(crossed(&[None, None]).is_none());
    }
}
