//! How ranks find each other before, and agree on the host beside, any collective.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::rank::Rank;

/// A rank's end of the control plane.
///
/// It lives as long as the communicator made from it. Every exchange has one authority that fixes
/// its outcome exactly once: a rank whose deadline passes must first win the outcome "aborted", and
/// obeys the outcome if it loses, so that no rank ever sees success where another sees an error.
pub trait Bootstrap: Debug + Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Ranks in the world.
    fn world_size(&self) -> usize;

    /// Gives every rank the bytes of every rank, in rank order.
    ///
    /// All ranks call it with the same `round`, each round once. After ten seconds a warning names
    /// the absent ranks.
    ///
    /// # Errors
    ///
    /// [`Timeout`](crate::error::ErrorKind::Timeout) naming the absent ranks, the same on every
    /// rank and also on those that come later;
    /// [`PeerFailed`](crate::error::ErrorKind::PeerFailed) when a rank published a failure.
    fn all_gather(&self, round: &str, mine: &[u8], deadline: Duration) -> Result<Vec<Vec<u8>>>;

    /// Tells every rank that this one failed; the first failure stays.
    fn publish_failure(&self, cause: &str);

    /// The first failure that any rank published.
    fn failure(&self) -> Option<(Rank, String)>;

    /// The control plane of a subset, in which this rank is the position it has in `members`.
    ///
    /// All members call it with the same `name` and `members`; local, does not wait.
    ///
    /// # Errors
    ///
    /// When this rank is not among the members.
    fn subgroup(&self, name: &str, members: &[Rank]) -> Result<Arc<dyn Bootstrap>>;
}

/// The time after which an exchange warns about absent ranks.
pub const WARN_AFTER: Duration = Duration::from_secs(10);

/// The deadline of an agreement unless configured.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(300);
