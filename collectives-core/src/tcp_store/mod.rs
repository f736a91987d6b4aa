//! The control plane for ranks that are processes: a store that rank 0 hosts, over TCP.
//!
//! Rank 0 serves the store from threads of its own, and every rank, itself among them, keeps one
//! connection to it. [`Join`] takes a place; subgroups share the connection. The store ends when
//! the last end of every rank has been dropped, or with rank 0's process.
//!
//! * The store is the one authority of the contract of [`Bootstrap`]. A rank whose deadline passes
//!   asks it for the outcome "timed out", and obeys what it answers.
//! * A connection that is lost is a failed rank, for every group it is in, and at once. One that
//!   takes leave is not: only rounds that would have to wait for it fail. Once rank 0 is lost,
//!   everything fails, naming rank 0 where it is a member.
//! * Members that disagree on who they are get the same
//!   [`Misuse`](crate::error::ErrorKind::Misuse), from every round of the group.
//! * A store that stops answering is given up after [`Join::patience`]; only then may one rank know
//!   less than the others do, and to them it has failed.
//! * Rank 0 waits up to a second, as it drops its last end, for what others were told to be on its
//!   way, and for late ranks that are owed the outcome of a round. Its process should not end
//!   sooner.
//! * Rank 0 listens on every interface for IPv4 and IPv6 alike, or on loopback alone where that is
//!   where ranks meet, and it reaches its own store at whichever loopback address its machine has.
//! * Whoever else connects is refused or ignored. Lengths are limited: 1 MiB a rank and round,
//!   1 KiB for the name of a round. There is neither encryption nor authentication: as with every
//!   launcher, the network between the ranks must be trusted.

mod address;
mod dial;
mod group;
mod join;
mod limited;
mod link;
mod peer;
mod reception;
mod round;
mod server;
mod state;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use link::{Link, Stuck};
use wire::message::{Key, Outcome};
use wire::{MAX_KEY, MAX_PAYLOAD, MAX_ROUND};

use crate::bootstrap::Bootstrap;
use crate::error::{Error, ErrorKind, Misuse, Result};
use crate::rank::Rank;

pub(crate) use address::everywhere;
pub use join::Join;

/// One rank's end of a control plane over TCP.
pub struct TcpStore {
    link: Arc<Link>,
    key: Key,
    /// Ranks of the world, by position.
    members: Vec<u32>,
    position: Rank,
}

impl TcpStore {
    /// The ends of a new world on this machine, one per rank, in rank order: for ranks that are
    /// threads, and yet shall meet as processes do.
    ///
    /// # Errors
    ///
    /// Those of [`Join::join`].
    pub fn loopback(world_size: usize) -> Result<Vec<Self>> {
        if world_size == 0 {
            return Ok(Vec::new());
        }
        let bound = address::on_loopback().and_then(|l| l.local_addr().map(|address| (l, address)));
        let (listener, address) = bound.map_err(|error| {
            let text = format!("the store cannot listen on loopback: {error}");
            Error::new(ErrorKind::System(text)).caused_by(error)
        })?;
        let host = address.ip().to_string();
        let place = |rank| Join::new(Rank::new(rank), world_size, &host, address.port());
        let first = place(0).listener(listener).join()?;
        let others = (1..world_size).map(|rank| place(rank).join());
        std::iter::once(Ok(first)).chain(others).collect()
    }

    fn world(link: Link, rank: Rank, world_size: u32) -> Self {
        Self {
            link: Arc::new(link),
            key: Key::new(),
            members: (0..world_size).collect(),
            position: rank,
        }
    }

    fn check(&self, round: &str, mine: &[u8]) -> Result<()> {
        if mine.len() > MAX_PAYLOAD {
            return Err(Misuse::OutOfBounds {
                offset: 0,
                bytes: mine.len(),
                available: MAX_PAYLOAD,
            }
            .into());
        }
        if round.len() > MAX_ROUND {
            let text = format!("the name of a round is longer than {MAX_ROUND} bytes");
            return Err(Misuse::Other(text).into());
        }
        Ok(())
    }

    /// Rank 0 of the world, as a member of this group.
    fn hosting(&self) -> Option<Rank> {
        let position = self.members.iter().position(|&member| member == 0);
        position.map(Rank::new)
    }

    /// What the outcome means to a caller.
    fn obey(&self, outcome: Result<Outcome, Stuck>, round: &str) -> Result<Vec<Vec<u8>>> {
        Err(Error::new(match outcome {
            Ok(Outcome::All(all)) if all.len() == self.members.len() => return Ok(all),
            Ok(Outcome::All(all)) => ErrorKind::System(format!(
                "the store gathered {} parts from {} ranks",
                all.len(),
                self.members.len()
            )),
            Ok(Outcome::Timeout { absent, waited }) => ErrorKind::Timeout {
                absent: absent.into_iter().map(Rank).collect(),
                waited,
            },
            Ok(Outcome::PeerFailed { rank, cause }) => ErrorKind::PeerFailed {
                rank: Rank(rank),
                cause,
            },
            Ok(Outcome::Misuse(text)) => Misuse::Other(text).into(),
            Err(Stuck::Twice) => Misuse::Other(format!("round `{round}` was used twice")).into(),
            // Rank 0 may have gone because of what it had told everybody: the first failure stays.
            Err(Stuck::Lost(lost)) => match (self.link.failure(&self.key), self.hosting()) {
                (Some((rank, cause)), _) => ErrorKind::PeerFailed {
                    rank: Rank(rank),
                    cause,
                },
                (None, Some(rank)) => ErrorKind::PeerFailed { rank, cause: lost },
                (None, None) => ErrorKind::System(lost),
            },
        }))
    }
}

impl Bootstrap for TcpStore {
    fn rank(&self) -> Rank {
        self.position
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn all_gather(&self, round: &str, mine: &[u8], deadline: Duration) -> Result<Vec<Vec<u8>>> {
        self.check(round, mine)
            .and_then(|()| {
                let outcome = self.link.round(&self.key, round, mine, deadline);
                self.obey(outcome, round)
            })
            .map_err(|error| error.on_rank(self.position))
    }

    fn publish_failure(&self, cause: &str) {
        self.link.publish(&self.key, self.position.0, cause);
    }

    fn failure(&self) -> Option<(Rank, String)> {
        if !self.link.is_troubled() {
            return None;
        }
        if let Some((rank, cause)) = self.link.failure(&self.key) {
            return Some((Rank(rank), cause));
        }
        // Where rank 0 is not a member, it is this rank that has lost its control plane.
        let cause = self.link.lost()?;
        Some((self.hosting().unwrap_or(self.position), cause))
    }

    fn subgroup(&self, name: &str, members: &[Rank]) -> Result<Arc<dyn Bootstrap>> {
        let position = members
            .iter()
            .position(|&member| member == self.position)
            .ok_or_else(|| Misuse::Other(format!("rank {} is not in `{name}`", self.position)))?;
        let mut world = Vec::with_capacity(members.len());
        for &rank in members {
            let world_size = self.members.len();
            let known = self.members.get(rank.index()).copied();
            let member = known.ok_or(Misuse::RankOutOfRange { rank, world_size })?;
            if world.contains(&member) {
                return Err(Misuse::Other(format!("rank {rank} is twice in `{name}`")).into());
            }
            world.push(member);
        }
        let mut key = self.key.clone();
        let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
        key.extend(length.to_le_bytes());
        key.extend_from_slice(name.as_bytes());
        if key.len() > MAX_KEY {
            let text = format!("the names of nested groups are longer than {MAX_KEY} bytes");
            return Err(Misuse::Other(text).into());
        }
        self.link.open(&key, &world)?;
        Ok(Arc::new(Self {
            link: Arc::clone(&self.link),
            key,
            members: world,
            position: Rank::new(position),
        }))
    }
}

impl Drop for TcpStore {
    fn drop(&mut self) {
        if !self.key.is_empty() {
            self.link.close(&self.key);
        }
    }
}

impl fmt::Debug for TcpStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStore")
            .field("rank", &self.position)
            .field("world_size", &self.members.len())
            .finish_non_exhaustive()
    }
}
