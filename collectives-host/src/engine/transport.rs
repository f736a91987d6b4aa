//! How ranks that are processes move bytes: what such a backend writes.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::collective::Collective;
use collectives_core::communicator::Capabilities;
use collectives_core::error::Result;

use super::health::Health;
use super::neighbours::Neighbours;

/// What a transport is made from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ranks {
    /// The control plane of these ranks.
    pub bootstrap: Arc<dyn Bootstrap>,
    /// What is known of the communicator's failure.
    pub health: Arc<Health>,
    /// Where the ranks are.
    pub neighbours: Arc<Neighbours>,
}

/// One rank's way to its peers.
///
/// # Implementer notes
///
/// The engine calls [`Transport::run`], [`Transport::meet`] and [`Transport::compare`] one at a time,
/// in the order in which this rank enqueued, but from whichever thread runs the stream; who calls them
/// besides would have to promise the same.
pub trait Transport: Debug + Send + Sync + Sized + 'static {
    /// The backend's name in errors and reports.
    const BACKEND: &'static str;

    /// Joins the ranks; collective.
    ///
    /// # Errors
    ///
    /// When the ranks cannot be joined. A rank on which it fails alone tells the others through the
    /// control plane.
    fn join(ranks: &Ranks, deadline: Duration) -> Result<Self>;

    /// What it can do; the engine fills in what it knows of windows.
    fn capabilities(&self) -> Capabilities;

    /// Whether operations of all communicators of the process run one at a time, in one order.
    fn is_serial(&self) -> bool {
        false
    }

    /// Runs the calls of one group, and returns when this rank's operands are free again.
    ///
    /// # Errors
    ///
    /// Those of the operation. An error that [poisons](collectives_core::error::Error::poisons)
    /// fails the communicator on all ranks.
    ///
    /// # Safety
    ///
    /// As for [`Communicator::enqueue`](collectives_core::communicator::Communicator::enqueue), and
    /// each call passed [`Collective::check`]. No other thread is in `run`, `meet` or `compare`.
    unsafe fn run(&self, calls: &[Collective<'_>], deadline: Duration) -> Result<()>;

    /// Returns when all ranks have called it; what they wrote before is visible after.
    ///
    /// `call` is what they meet over, for transports that compare.
    ///
    /// # Errors
    ///
    /// As for [`Transport::run`].
    ///
    /// # Safety
    ///
    /// No other thread is in `run`, `meet` or `compare`.
    unsafe fn meet(&self, call: &Collective<'_>, deadline: Duration) -> Result<()>;

    /// Compares calls that are being captured, where the transport compares at all.
    ///
    /// # Errors
    ///
    /// A mismatch, and those of [`Transport::run`].
    ///
    /// # Safety
    ///
    /// No other thread is in `run`, `meet` or `compare`.
    unsafe fn compare(&self, calls: &[Collective<'_>], deadline: Duration) -> Result<()>;

    /// The communicator failed: whoever waits inside should look at its health.
    fn interrupt(&self);

    /// The communicator was shut down, on this rank; called once, and it waits for no peer.
    fn close(&self);

    /// This rank comes to a round of the control plane, before which it made so many, for this call. If
    /// it is idle, nothing that it enqueued is still to run.
    ///
    /// A transport whose ranks see each other tells those who wait for this one in an operation, so that
    /// calls that are out of order are found while it is in the round.
    ///
    /// # Errors
    ///
    /// When a rank was shut down that has not been in this round.
    fn enter_round(&self, _rounds: u64, _idle: bool, _call: &str) -> Result<()> {
        Ok(())
    }

    /// The round before which this rank made so many has its outcome.
    fn leave_round(&self, _rounds: u64) {}
}
