//! One round of one group, as the store keeps it.

use std::time::Duration;

use super::wire::message::Outcome;

/// Who has arrived, with what, and how it ended.
#[derive(Debug)]
pub(super) struct Round {
    /// By position in the group. Once the outcome is fixed, only whether there is something counts.
    posted: Vec<Option<Vec<u8>>>,
    outcome: Option<Outcome>,
}

/// What arriving in a round led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The round waits for others.
    Waits,
    /// The round was already over, and this is how it ended.
    Late(Outcome),
    /// This rank has been in the round before, and got its outcome.
    Again,
    /// This rank waits in the round already, which no rank that keeps to the protocol does.
    Twice,
}

impl Round {
    pub(super) fn new(members: usize) -> Self {
        Self {
            posted: vec![None; members],
            outcome: None,
        }
    }

    pub(super) fn arrive(&mut self, position: usize, payload: Vec<u8>) -> Arrival {
        let before = self.posted[position].is_some();
        match &self.outcome {
            Some(_) if before => Arrival::Again,
            None if before => Arrival::Twice,
            Some(outcome) => {
                self.posted[position] = Some(Vec::new());
                Arrival::Late(outcome.clone())
            }
            None => {
                self.posted[position] = Some(payload);
                Arrival::Waits
            }
        }
    }

    pub(super) fn has(&self, position: usize) -> bool {
        self.posted[position].is_some()
    }

    pub(super) fn is_open(&self) -> bool {
        self.outcome.is_none()
    }

    pub(super) fn absent(&self) -> Vec<u32> {
        let missing = self
            .posted
            .iter()
            .zip(0..)
            .filter(|(posted, _)| posted.is_none());
        missing.map(|(_, position)| position).collect()
    }

    /// How the round ends now, if everybody has arrived or somebody never will.
    pub(super) fn verdict(&self, gone: impl Fn(usize) -> bool) -> Option<Outcome> {
        let absent = self.absent();
        if absent.is_empty() {
            return Some(Outcome::All(
                self.posted.iter().flatten().cloned().collect(),
            ));
        }
        let rank = absent
            .into_iter()
            .find(|&position| gone(position as usize))?;
        let cause = "it had left before this round".to_owned();
        Some(Outcome::PeerFailed { rank, cause })
    }

    pub(super) fn timed_out(&self, waited: Duration) -> Outcome {
        Outcome::Timeout {
            absent: self.absent(),
            waited,
        }
    }

    /// Fixes the outcome, which the caller knows to be open. Payloads are not needed any more.
    pub(super) fn fix(&mut self, outcome: Outcome) {
        debug_assert!(self.is_open(), "an outcome is fixed once");
        self.outcome = Some(outcome);
        for payload in self.posted.iter_mut().flatten() {
            *payload = Vec::new();
        }
    }

    /// Whether nobody will ask for the outcome any more.
    pub(super) fn is_finished(&self, gone: impl Fn(usize) -> bool) -> bool {
        !self.is_open()
            && self
                .absent()
                .into_iter()
                .all(|position| gone(position as usize))
    }
}
