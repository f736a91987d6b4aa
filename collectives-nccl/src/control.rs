//! The order of calls that all ranks make on the host.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collectives_core::agreement::{mismatch, odd_one_out};
use collectives_core::error::{Error, ErrorKind, Field, Result};

use crate::state::State;

/// Which call a rank makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Round {
    Agree = 1,
    Register,
    Registered,
    Retire,
    Shutdown,
}

/// Rounds made so far; all ranks count alike.
#[derive(Debug, Default)]
pub(crate) struct Exchange(AtomicU64);

impl Exchange {
    /// Gives every rank the bytes of every rank, if all make the same call.
    pub(crate) fn run(
        &self,
        state: &State,
        round: Round,
        mine: &[u8],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let mut message = Vec::with_capacity(mine.len() + 1);
        message.push(round as u8);
        message.extend(mine);
        let name = format!("nccl/{number}");
        let all = state
            .bootstrap
            .all_gather(&name, &message, deadline)
            .map_err(|error| own_failure(state, error))?;
        let kinds: Vec<_> = all.iter().map(|bytes| bytes.first().copied()).collect();
        if let Some((odd, usual)) = odd_one_out(&kinds) {
            let show = |index: usize| format!("{:?}", kinds[index]);
            return Err(mismatch(odd, Field::Order, show(odd), show(usual)));
        }
        Ok(all.into_iter().map(|bytes| bytes[1..].to_vec()).collect())
    }
}

/// What this rank published itself is no failure of a peer.
fn own_failure(state: &State, error: Error) -> Error {
    match (error.kind(), state.health()) {
        (ErrorKind::PeerFailed { rank, .. }, Err(own)) if *rank == state.rank() => own,
        _ => error,
    }
}
