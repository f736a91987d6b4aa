//! The control plane of a communicator: rounds on the host, in one order on all ranks.

use std::time::Duration;

use collectives_core::agreement::{mismatch, odd_one_out};
use collectives_core::error::{Field, Result};

use crate::seat::Seat;

/// Which collective call a round belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Round {
    Agree,
    Register,
    Retire,
    Reach,
}

const NAMES: [&str; 4] = ["agree", "register", "retire", "the end of register"];

/// Counts the rounds of one rank.
#[derive(Debug, Default)]
pub(crate) struct Control {
    rounds: u64,
}

impl Control {
    /// Gives every rank the bytes of every rank, or the same error to all.
    ///
    /// Calls that differ between ranks are told apart: a round carries what it is for.
    pub(crate) fn exchange(
        &mut self,
        seat: &dyn Seat,
        round: Round,
        mine: &[u8],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        seat.check_open()?;
        let name = format!("host/control/{}", self.rounds);
        self.rounds += 1;
        let mut message = Vec::with_capacity(1 + mine.len());
        message.push(round as u8);
        message.extend_from_slice(mine);
        let mut all = seat.bootstrap().all_gather(&name, &message, deadline)?;
        let kinds: Vec<_> = all.iter().map(|bytes| bytes.first().copied()).collect();
        if let Some((odd, usual)) = odd_one_out(&kinds) {
            let show = |rank: usize| {
                let kind = kinds[rank].map(usize::from);
                kind.and_then(|kind| NAMES.get(kind))
                    .copied()
                    .unwrap_or("nothing")
            };
            return Err(mismatch(odd, Field::Operation, show(odd), show(usual)));
        }
        for bytes in &mut all {
            bytes.drain(..1);
        }
        Ok(all)
    }
}
