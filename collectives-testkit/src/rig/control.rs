//! What ranks tell each other beside the backend.

use std::time::Duration;

use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;
use collectives_core::scratch::Trimmed;

use super::{Handle, Rig};
use crate::case::{Failure, Outcome};
use crate::harness::{Joined, Setup};
use crate::planted::Planted;

impl Rig<'_> {
    /// Starts this rank once more, among these members, within a deadline.
    ///
    /// # Errors
    ///
    /// As [`Harness::join`](crate::harness::Harness::join).
    pub fn join(&self, name: &str, members: &[Rank], deadline: Duration) -> Result<Joined> {
        let bootstrap = self.bootstrap.subgroup(name, members)?;
        let setup = Setup {
            deadline,
            ..self.setup
        };
        let joined = self.harness.join(bootstrap, &setup);
        if self.has(Planted::JoinErrorUntyped) {
            let text = |error: Error| Error::new(ErrorKind::System(error.to_string()));
            return joined.map_err(text);
        }
        joined
    }

    /// Gives every rank the bytes of every rank, beside the backend.
    ///
    /// # Errors
    ///
    /// When a rank does not come.
    pub fn exchange(&mut self, mine: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        let round = format!("kit/{}", self.rounds);
        *self.rounds += 1;
        let deadline = self.setup.deadline * 3;
        let all = self.bootstrap.all_gather(&round, mine, deadline)?;
        self.progress.beat();
        Ok(all)
    }

    /// Waits until every rank is here, beside the backend.
    ///
    /// # Errors
    ///
    /// When a rank does not come.
    pub fn meet(&mut self) -> Outcome {
        self.exchange(&[]).map(drop)
    }

    /// Fails unless every rank says the same.
    ///
    /// # Errors
    ///
    /// Naming a rank that does not.
    pub fn expect_alike(&mut self, what: &str, mine: &str) -> Outcome {
        let all = self.exchange(mine.as_bytes())?;
        let mine = mine.as_bytes();
        match all.iter().position(|theirs| theirs != mine) {
            None => Ok(()),
            Some(rank) => Err(Failure(format!(
                "{what} differs: here {:?}, on rank {rank} {:?}",
                String::from_utf8_lossy(mine),
                String::from_utf8_lossy(&all[rank])
            ))),
        }
    }

    /// Lets destructors finish and returns freed memory.
    pub fn settle(&self) {
        self.probe.settle();
        self.device.collect();
    }
    /// A trim on all ranks, when what each let go of before has been released.
    ///
    /// # Errors
    ///
    /// As [`Collectives::trim`](collectives_core::collectives::Collectives::trim).
    pub fn settled_trim(&mut self, handle: &mut Handle) -> Outcome<Trimmed> {
        self.settle();
        self.meet()?;
        Ok(handle.trim()?)
    }
}
