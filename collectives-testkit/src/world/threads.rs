//! A world whose ranks are threads of this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives_core::bootstrap::Bootstrap;
use collectives_core::in_process::InProcess;

use super::Limits;
use super::rank::{self, Job, Rank};
use crate::case::{Case, Failure, Outcome};
use crate::harness::{Harness, Setup};
use crate::planted::Planted;

#[derive(Debug)]
pub(super) struct World {
    ranks: Vec<Rank>,
    ends: Vec<Arc<dyn Bootstrap>>,
}

impl World {
    pub(super) fn start(harness: &Arc<dyn Harness>, setup: Setup, limits: Limits) -> Outcome<Self> {
        let ends: Vec<Arc<dyn Bootstrap>> = InProcess::world(setup.ranks)
            .into_iter()
            .map(|end| -> Arc<dyn Bootstrap> { Arc::new(end) })
            .collect();
        let mut ranks = Vec::new();
        for end in &ends {
            ranks.push(rank::start(harness, setup, limits.case, Arc::clone(end))?);
        }
        let world = Self { ranks, ends };
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
        let begun = Instant::now();
        let mut failures = Vec::new();
        for (index, rank) in self.ranks.iter().enumerate() {
            let left = limit.saturating_sub(begun.elapsed());
            let reply = rank.replies.recv_timeout(left).unwrap_or_else(|_| {
                let last = rank.progress.last();
                let text = format!("did not return from {what} in {limit:?}, last: {last}");
                // The others need not wait any longer for it.
                for rank in &self.ranks {
                    rank.progress.abort("a rank did not return");
                }
                for end in &self.ends {
                    end.publish_failure("a rank did not return");
                }
                Err(Failure(text))
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
}
