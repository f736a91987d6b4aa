//! One rank's end of a communicator, as its windows and its control plane see it.

use std::any::Any;
use std::fmt::{self, Debug};
use std::ptr;
use std::time::Duration;

use collectives_core::addr::{Addr, WindowId};
use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::{Error, Result};
use collectives_core::memory::Memory;

use crate::course::Milestone;
use crate::endpoint::Endpoint;
use crate::fabric::lock;
use crate::verdict::Outcome;

/// What windows and control rounds need of a rank's end, whether ranks share an address space or
/// not.
pub(crate) trait Seat: Debug + Send + Sync {
    /// Checks that the communicator is neither closed nor broken.
    fn check_open(&self) -> Result<()>;

    /// How long ranks wait for each other.
    fn deadline(&self) -> Duration;

    /// The error with this rank and backend.
    fn named(&self, error: Error) -> Error;

    /// The control plane.
    fn bootstrap(&self) -> &dyn Bootstrap;

    /// How far this rank has come with its operations.
    fn milestone(&self) -> Milestone;

    /// All ranks have completed a round that began there.
    fn settle(&self, there: Milestone);

    /// Tells those who wait for this rank elsewhere that it comes to a round, before which it made so
    /// many, for this call.
    ///
    /// # Errors
    ///
    /// When a rank was shut down that has not been in this round.
    fn enter_round(&self, rounds: u64, call: &str) -> Result<()>;

    /// Tells them that the round, before which it made so many, has its outcome.
    fn leave_round(&self, rounds: u64);

    /// The error of a round as all ranks have it; one that poisons ends the communicator.
    fn round_failed(&self, error: Error) -> Error;

    /// What peers need to know to find this memory, if they can at all.
    fn place_of(&self, memory: &Memory) -> Option<Vec<u8>>;

    /// Where all ranks' parts begin, given the place of each; the value that is returned keeps them
    /// there.
    fn reach(&self, memory: &Memory, places: &[Vec<u8>]) -> Result<(Box<[Addr]>, Reach), Outcome>;

    /// Whether [`Seat::reach`] may fail on one rank alone.
    fn may_not_reach(&self) -> bool;

    /// A window is there.
    fn window_opened(&self, _window: WindowId, _base: Addr, _bytes: usize) {}

    /// A window is gone.
    fn window_closed(&self, _window: WindowId) {}
}

/// Keeps the parts of other ranks mapped.
pub(crate) struct Reach(
    #[expect(dead_code, reason = "it is only dropped")] Box<dyn Any + Send + Sync>,
);

impl Reach {
    pub(crate) fn new(mappings: impl Any + Send + Sync) -> Self {
        Self(Box::new(mappings))
    }
}

impl Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reach")
    }
}

/// Ranks that are threads: an address is the same everywhere.
impl Seat for Endpoint {
    fn check_open(&self) -> Result<()> {
        self.check_open()
    }

    fn deadline(&self) -> Duration {
        self.deadline()
    }

    fn named(&self, error: Error) -> Error {
        self.named(error)
    }

    fn bootstrap(&self) -> &dyn Bootstrap {
        &*self.bootstrap
    }

    fn milestone(&self) -> Milestone {
        self.milestone()
    }

    fn settle(&self, there: Milestone) {
        self.settle(there);
    }

    fn enter_round(&self, rounds: u64, call: &str) -> Result<()> {
        self.enter_round(rounds, call)
    }

    fn leave_round(&self, rounds: u64) {
        self.leave_round(rounds);
    }

    fn round_failed(&self, error: Error) -> Error {
        self.round_failed(error)
    }

    fn place_of(&self, memory: &Memory) -> Option<Vec<u8>> {
        Some(memory.addr().value().to_le_bytes().to_vec())
    }

    fn reach(&self, _memory: &Memory, places: &[Vec<u8>]) -> Result<(Box<[Addr]>, Reach), Outcome> {
        let address = |place: &Vec<u8>| {
            let value = place
                .first_chunk()
                .map_or(0, |word| usize::from_le_bytes(*word));
            Addr::from_ptr(ptr::with_exposed_provenance_mut::<u8>(value))
        };
        Ok((places.iter().map(address).collect(), Reach::new(())))
    }

    fn may_not_reach(&self) -> bool {
        false
    }

    fn window_opened(&self, window: WindowId, base: Addr, bytes: usize) {
        lock(&self.fabric.flat[self.rank.index()]).insert(window, base, bytes);
    }

    fn window_closed(&self, window: WindowId) {
        lock(&self.fabric.flat[self.rank.index()]).remove(window);
    }
}
