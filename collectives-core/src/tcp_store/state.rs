//! Everything the store knows, without a socket in sight.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::group::Group;
use super::peer::{Outbox, Peer};
use super::wire::Garbled;
use super::wire::hello::Refusal;
use super::wire::message::{Key, Request};

/// The ranks and the groups; whoever holds the lock around it is the one authority.
#[derive(Debug)]
pub(super) struct State {
    peers: Vec<Peer>,
    groups: HashMap<Key, Group>,
    /// Whether the process that hosts the store still holds an end.
    pub(super) hosted: bool,
}

impl State {
    pub(super) fn new(world_size: u32) -> Self {
        let world = Group::new(Key::new(), (0..world_size).collect());
        Self {
            peers: (0..world_size).map(|_| Peer::Awaited).collect(),
            groups: HashMap::from([(Key::new(), world)]),
            hosted: true,
        }
    }

    /// A connection says that it is this rank. Nothing is lost if it was not.
    pub(super) fn announce(&mut self, rank: u32) -> Result<(), Refusal> {
        match self.peers.get_mut(rank as usize) {
            None => Err(Refusal::RankOutOfRange),
            Some(peer @ Peer::Awaited) => {
                *peer = Peer::Arriving;
                Ok(())
            }
            Some(Peer::Arriving) => Err(Refusal::Busy),
            Some(_) => Err(Refusal::Duplicate),
        }
    }

    /// The connection that announced itself died before it confirmed.
    pub(super) fn renounce(&mut self, rank: u32) {
        self.peers[rank as usize] = Peer::Awaited;
    }

    /// The connection that announced itself lives: from now on it is the rank.
    pub(super) fn admit(&mut self, rank: u32, outbox: Outbox) {
        self.peers[rank as usize] = Peer::Here(outbox);
        let members = self.world();
        if let Some(world) = self.groups.get_mut(&Key::new()) {
            world.open(rank, &members, &self.peers);
        }
    }

    /// Carries out what a rank asked for.
    ///
    /// # Errors
    ///
    /// When the rank breaks the protocol; its connection must then end.
    pub(super) fn handle(&mut self, rank: u32, request: Request) -> Result<(), Garbled> {
        match request {
            Request::Open { key, members } => self.open(rank, key, members)?,
            Request::Close { key } => {
                if key.is_empty() {
                    return Err(Garbled("nobody closes the world without leaving"));
                }
                self.group(&key)?.close(rank);
                self.forget(&key);
            }
            Request::Post {
                key,
                round,
                payload,
            } => {
                let (group, peers) = self.within(&key)?;
                group.post(rank, round, payload, peers)?;
            }
            Request::Abort { key, round, waited } => self.abort(rank, &key, &round, waited)?,
            Request::Who { key, round } => {
                let (group, peers) = self.within(&key)?;
                group.who(rank, &round, peers);
            }
            Request::Publish { key, cause } => {
                let (group, peers) = self.within(&key)?;
                group.fail(rank, &cause, peers);
            }
            Request::Leave { cause } => self.leave(rank, cause),
        }
        Ok(())
    }

    /// The rank has gone for good; with a cause, it failed.
    pub(super) fn leave(&mut self, rank: u32, cause: Option<String>) {
        let peer = &mut self.peers[rank as usize];
        if peer.is_gone() {
            return;
        }
        *peer = cause.clone().map_or(Peer::Left, Peer::Failed);
        for group in self.groups.values_mut() {
            if let Some(cause) = &cause {
                group.fail(rank, cause, &self.peers);
            }
            group.gone(rank, &self.peers);
        }
        self.groups
            .retain(|key, group| key.is_empty() || !group.is_forgettable());
    }

    /// Whether nobody needs the store any more.
    pub(super) fn is_over(&self) -> bool {
        !self.hosted && !self.peers.iter().any(Peer::is_connected)
    }

    /// Whether this rank has a connection.
    pub(super) fn is_connected(&self, rank: u32) -> bool {
        self.peers
            .get(rank as usize)
            .is_some_and(Peer::is_connected)
    }

    /// Whether a connected rank will hear of an outcome only when it arrives.
    pub(super) fn is_owing(&self) -> bool {
        self.groups
            .values()
            .any(|group| group.is_owing(&self.peers))
    }

    /// Groups, and rounds in them, that are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> (usize, usize) {
        let rounds = self.groups.values().map(Group::rounds).sum();
        (self.groups.len(), rounds)
    }

    fn open(&mut self, rank: u32, key: Key, members: Vec<u32>) -> Result<(), Garbled> {
        let distinct: HashSet<_> = members.iter().copied().collect();
        let in_range = members
            .iter()
            .all(|&member| (member as usize) < self.peers.len());
        if key.is_empty()
            || !in_range
            || distinct.len() < members.len()
            || !distinct.contains(&rank)
        {
            return Err(Garbled("a group that cannot be"));
        }
        let group = self
            .groups
            .entry(key)
            .or_insert_with_key(|key| Group::new(key.clone(), members.clone()));
        group.open(rank, &members, &self.peers);
        Ok(())
    }

    fn abort(
        &mut self,
        rank: u32,
        key: &Key,
        round: &str,
        waited: Duration,
    ) -> Result<(), Garbled> {
        let (group, peers) = self.within(key)?;
        group.abort(rank, round, waited, peers);
        Ok(())
    }

    fn forget(&mut self, key: &Key) {
        if self.groups.get(key).is_some_and(Group::is_forgettable) {
            self.groups.remove(key);
        }
    }

    fn group(&mut self, key: &Key) -> Result<&mut Group, Garbled> {
        self.groups.get_mut(key).ok_or(NO_GROUP)
    }

    fn within(&mut self, key: &Key) -> Result<(&mut Group, &[Peer]), Garbled> {
        let group = self.groups.get_mut(key).ok_or(NO_GROUP)?;
        Ok((group, &self.peers))
    }

    fn world(&self) -> Vec<u32> {
        (0..).take(self.peers.len()).collect()
    }
}

const NO_GROUP: Garbled = Garbled("a group that was not opened");
