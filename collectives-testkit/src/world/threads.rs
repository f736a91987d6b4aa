//! A world whose ranks are threads of this process.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::in_process::InProcess;

use super::Limits;
use super::rank::{self, Job, Rank};
use crate::case::{Case, Failure, Outcome};
use crate::harness::{Harness, Setup};
use crate::patience::{Patience, Pulse};
use crate::planted::Planted;

#[derive(Debug)]
pub(super) struct World {
    ranks: Vec<Rank>,
    ends: Vec<Arc<dyn Bootstrap>>,
    beats: Arc<AtomicU64>,
}

impl World {
    pub(super) fn start(harness: &Arc<dyn Harness>, setup: Setup, limits: Limits) -> Outcome<Self> {
        let ends: Vec<Arc<dyn Bootstrap>> = InProcess::world(setup.ranks)
            .into_iter()
            .map(|end| -> Arc<dyn Bootstrap> { Arc::new(end) })
            .collect();
        let beats = Arc::new(AtomicU64::new(0));
        let mut ranks = Vec::new();
        for end in &ends {
            let (end, beats) = (Arc::clone(end), Arc::clone(&beats));
            ranks.push(rank::start(harness, setup, limits.case, end, beats)?);
        }
        let world = Self { ranks, ends, beats };
        world.collect("start", setup.deadline * 2).map(|()| world)
    }

    pub(super) fn run(&self, case: &Case, bug: Option<Planted>, limit: Duration) -> Outcome {
        for rank in &self.ranks {
            rank.progress.begin();
            let job = Job { run: case.run, bug };
            if rank.jobs.send(job).is_err() {
                return Err(Failure("a rank is gone before the case".to_owned()));
            }
        }
        self.collect(case.id, limit)
    }

    /// Every rank's reply, or what is known of those that do not reply.
    fn collect(&self, what: &str, limit: Duration) -> Outcome {
        let mut patience = Patience::new(Pulse::Threads(Arc::clone(&self.beats)), limit);
        let mut failures = Vec::new();
        for (index, rank) in self.ranks.iter().enumerate() {
            let reply = self.reply(rank, &mut patience).unwrap_or_else(|why| {
                let last = rank.progress.last();
                Err(Failure(format!(
                    "did not return from {what}: {why}; last: {last}"
                )))
            });
            if let Err(failure) = reply {
                failures.push(format!("rank {index}: {failure}"));
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        // Ranks that still hang are abandoned with their world.
        Err(Failure(failures.join("\n")))
    }
    /// The rank's reply, or why it is waited for no longer.
    fn reply(&self, rank: &Rank, patience: &mut Patience) -> Result<Outcome, String> {
        loop {
            match rank.replies.recv_timeout(patience.tick()) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Disconnected) => return Err("its thread is gone".to_owned()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let Some(over) = patience.look() else {
                continue;
            };
            // The others need not wait any longer for it.
            for rank in &self.ranks {
                rank.progress.abort("a rank did not return");
            }
            for end in &self.ends {
                end.publish_failure("a rank did not return");
            }
            return Err(over.to_string());
        }
    }
}
