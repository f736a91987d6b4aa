//! A group of ranks with its rounds: where every outcome is fixed, under the store's lock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::peer::{Peer, Shared};
use super::round::{Arrival, Round};
use super::wire::Garbled;
use super::wire::message::{Key, Outcome, Reply};

/// The world, or a subset of its ranks.
#[derive(Debug)]
pub(super) struct Group {
    key: Key,
    /// Ranks of the world, by position.
    members: Vec<u32>,
    /// Ranks of the world that hold an end.
    open: HashSet<u32>,
    rounds: HashMap<String, Round>,
    failure: Option<(u32, String)>,
    /// Ranks do not agree on who the members are.
    disputed: bool,
}

impl Group {
    pub(super) fn new(key: Key, members: Vec<u32>) -> Self {
        Self {
            key,
            members,
            open: HashSet::new(),
            rounds: HashMap::new(),
            failure: None,
            disputed: false,
        }
    }

    /// A rank takes part, and says who it believes the members are.
    pub(super) fn open(&mut self, rank: u32, members: &[u32], peers: &[Peer]) {
        self.open.insert(rank);
        if self.members != members && !self.disputed {
            self.disputed = true;
            let outcome = self.dispute();
            self.fix_all(&outcome, peers);
        }
        let failed = |(position, &member): (usize, &u32)| match &peers[member as usize] {
            Peer::Failed(cause) => Some((u32::try_from(position).ok()?, cause.clone())),
            _ => None,
        };
        if self.failure.is_none() {
            self.failure = self.members.iter().enumerate().find_map(failed);
        }
        if let Some(frame) = self.failed_frame() {
            peers[rank as usize].send(&frame);
        }
    }

    /// A rank has dropped its ends.
    pub(super) fn close(&mut self, rank: u32) {
        self.open.remove(&rank);
    }

    /// Whether nothing of it needs to be remembered.
    pub(super) fn is_forgettable(&self) -> bool {
        self.open.is_empty() && self.rounds.is_empty()
    }

    /// Whether the outcome of a round is kept for a member that is connected and late.
    pub(super) fn is_owing(&self, peers: &[Peer]) -> bool {
        let late = |position: u32| peers[self.members[position as usize] as usize].is_connected();
        let owed = |round: &Round| !round.is_open() && round.absent().into_iter().any(late);
        self.rounds.values().any(owed)
    }

    #[cfg(test)]
    pub(super) fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// A rank arrives in a round.
    ///
    /// # Errors
    ///
    /// When the rank breaks the protocol.
    pub(super) fn post(
        &mut self,
        rank: u32,
        name: String,
        payload: Vec<u8>,
        peers: &[Peer],
    ) -> Result<(), Garbled> {
        let position = self.position(rank);
        let known = position.filter(|_| self.rounds.contains_key(&name));
        if known.is_none() {
            // A round that cannot succeed is answered without being remembered.
            let refusal = match &self.failure {
                _ if self.disputed => Some(self.dispute()),
                Some((rank, cause)) => Some(Outcome::PeerFailed {
                    rank: *rank,
                    cause: cause.clone(),
                }),
                None => None,
            };
            if let Some(outcome) = refusal {
                peers[rank as usize].send(&self.outcome_frame(&name, outcome));
                return Ok(());
            }
        }
        let position = position.ok_or(Garbled("a round of a group without this rank"))?;
        let round = self
            .rounds
            .entry(name.clone())
            .or_insert_with(|| Round::new(self.members.len()));
        let answer = match round.arrive(position, payload) {
            Arrival::Waits => None,
            Arrival::Late(outcome) => Some(outcome),
            Arrival::Again => Some(Outcome::Misuse(format!("round `{name}` was used twice"))),
            Arrival::Twice => return Err(Garbled("a rank arrived twice in a round")),
        };
        if let Some(outcome) = answer {
            peers[rank as usize].send(&self.outcome_frame(&name, outcome));
        }
        self.settle(&name, peers);
        Ok(())
    }

    /// A rank's deadline has passed: it wins, unless the outcome is fixed already.
    pub(super) fn abort(&mut self, rank: u32, name: &str, waited: Duration, peers: &[Peer]) {
        let Some(position) = self.position(rank) else {
            return;
        };
        if let Some(round) = self.rounds.get(name)
            && round.is_open()
            && round.has(position)
        {
            let outcome = round.timed_out(waited);
            self.fix(name, outcome, peers);
            self.settle(name, peers);
        }
    }

    /// Tells a rank who is absent from a round it waits in.
    pub(super) fn who(&self, rank: u32, name: &str, peers: &[Peer]) {
        if let Some(round) = self.rounds.get(name)
            && round.is_open()
        {
            let reply = Reply::Absent {
                key: self.key.clone(),
                round: name.to_owned(),
                ranks: round.absent(),
            };
            peers[rank as usize].send(&frame(&reply));
        }
    }

    /// A member failed; the first failure stays, and ends every open round.
    pub(super) fn fail(&mut self, rank: u32, cause: &str, peers: &[Peer]) {
        let Some(position) = self.position(rank).and_then(|p| u32::try_from(p).ok()) else {
            return;
        };
        let first = self.failure.is_none();
        let (rank, cause) = self
            .failure
            .get_or_insert_with(|| (position, cause.to_owned()))
            .clone();
        if first && let Some(frame) = self.failed_frame() {
            for &member in &self.open {
                peers[member as usize].send(&frame);
            }
        }
        self.fix_all(&Outcome::PeerFailed { rank, cause }, peers);
    }

    /// A member has gone: rounds that wait for it never will succeed.
    pub(super) fn gone(&mut self, rank: u32, peers: &[Peer]) {
        self.close(rank);
        if self.position(rank).is_some() {
            let names: Vec<_> = self.rounds.keys().cloned().collect();
            for name in names {
                self.settle(&name, peers);
            }
        }
    }

    fn position(&self, rank: u32) -> Option<usize> {
        self.members.iter().position(|&member| member == rank)
    }

    fn is_gone<'a>(&'a self, peers: &'a [Peer]) -> impl Fn(usize) -> bool + 'a {
        |position| peers[self.members[position] as usize].is_gone()
    }

    fn settle(&mut self, name: &str, peers: &[Peer]) {
        let Some(round) = self.rounds.get(name) else {
            return;
        };
        if round.is_open()
            && let Some(outcome) = round.verdict(self.is_gone(peers))
        {
            self.fix(name, outcome, peers);
        }
        let finished = |round: &Round| round.is_finished(self.is_gone(peers));
        if self.rounds.get(name).is_some_and(finished) {
            self.rounds.remove(name);
        }
    }

    /// Ends every open round the same way. Nobody is late for them: what ended them stays, and
    /// ends every round of the same name again.
    fn fix_all(&mut self, outcome: &Outcome, peers: &[Peer]) {
        let open = self.rounds.iter().filter(|(_, round)| round.is_open());
        let names: Vec<_> = open.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.fix(&name, outcome.clone(), peers);
            self.rounds.remove(&name);
        }
    }

    /// Fixes the outcome of an open round, and tells everybody who waits in it.
    fn fix(&mut self, name: &str, outcome: Outcome, peers: &[Peer]) {
        let frame = self.outcome_frame(name, outcome.clone());
        let Some(round) = self.rounds.get_mut(name) else {
            return;
        };
        round.fix(outcome);
        for (position, &member) in self.members.iter().enumerate() {
            if round.has(position) {
                peers[member as usize].send(&frame);
            }
        }
    }

    fn dispute(&self) -> Outcome {
        let name = name(&self.key);
        Outcome::Misuse(format!("`{name}` has other members elsewhere"))
    }

    fn outcome_frame(&self, round: &str, outcome: Outcome) -> Shared {
        frame(&Reply::Outcome {
            key: self.key.clone(),
            round: round.to_owned(),
            outcome,
        })
    }

    fn failed_frame(&self) -> Option<Shared> {
        let (rank, cause) = self.failure.clone()?;
        let key = self.key.clone();
        Some(frame(&Reply::Failed { key, rank, cause }))
    }
}

fn frame(reply: &Reply) -> Shared {
    Arc::from(reply.encode())
}

/// The last part of a group's key, for people.
fn name(key: &[u8]) -> String {
    let mut rest = key;
    let mut last: &[u8] = b"the world";
    while let Some((length, tail)) = rest.split_first_chunk::<4>()
        && let Some((part, tail)) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)
    {
        (last, rest) = (part, tail);
    }
    String::from_utf8_lossy(last).into_owned()
}
