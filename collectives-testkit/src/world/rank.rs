//! One rank of a world: it starts, serves cases one after another, and ends with the first that fails.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;

use crate::case::{Failure, Outcome};
use crate::harness::{Harness, Joined, Setup};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::watchdog::{Progress, Watchdog};

/// A case to run.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) run: fn(&mut Rig<'_>) -> Outcome,
    pub(super) bug: Option<Planted>,
}

/// A rank that runs on a thread of its own.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) jobs: Sender<Job>,
    /// First how the start went, then how each case went.
    pub(super) replies: Receiver<Outcome>,
    pub(super) progress: Arc<Progress>,
    pub(super) thread: JoinHandle<()>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("bug", &self.bug).finish()
    }
}

/// Starts a rank, which counts what it does in `beats`; it ends when its jobs do, or with the first case that fails.
pub(super) fn start(
    harness: &Arc<dyn Harness>,
    setup: Setup,
    limit: Duration,
    bootstrap: Arc<dyn Bootstrap>,
    beats: Arc<AtomicU64>,
) -> Outcome<Rank> {
    let (jobs, receiver) = mpsc::channel();
    let (sender, replies) = mpsc::channel();
    let progress = Arc::new(Progress::counting(beats));
    let index = bootstrap.rank();
    let rank = RankThread {
        harness: Arc::clone(harness),
        setup,
        limit,
        bootstrap,
        progress: Arc::clone(&progress),
    };
    let thread = thread::Builder::new()
        .name(format!("kit-rank-{index}"))
        .spawn(move || rank.serve(&receiver, &sender))
        .map_err(|error| Failure(format!("no thread for rank {index}: {error}")))?;
    Ok(Rank {
        jobs,
        replies,
        progress,
        thread,
    })
}

struct RankThread {
    harness: Arc<dyn Harness>,
    setup: Setup,
    limit: Duration,
    bootstrap: Arc<dyn Bootstrap>,
    progress: Arc<Progress>,
}

impl RankThread {
    fn serve(self, jobs: &Receiver<Job>, replies: &Sender<Outcome>) {
        let joined = catch_unwind(AssertUnwindSafe(|| {
            self.harness.join(Arc::clone(&self.bootstrap), &self.setup)
        }));
        let mut joined = match joined {
            Ok(Ok(joined)) => joined,
            Ok(Err(error)) => return self.give_up(replies, format!("cannot join: {error}")),
            Err(panic) => {
                return self.give_up(
                    replies,
                    format!("panicked while joining: {}", text(&*panic)),
                );
            }
        };
        if replies.send(Ok(())).is_err() {
            return;
        }
        let mut rounds = 0;
        while let Ok(job) = jobs.recv() {
            let outcome = self.work(&mut joined, job, &mut rounds);
            let failed = outcome.is_err();
            if replies.send(outcome).is_err() || failed {
                break;
            }
        }
        if let Err(error) = joined.comm.shutdown() {
            tracing::debug!(%error, "a world of the kit did not end cleanly");
        }
    }

    fn give_up(&self, replies: &Sender<Outcome>, why: String) {
        self.bootstrap.publish_failure(&why);
        let _gone = replies.send(Err(Failure(why)));
    }

    /// One case, and whether it left the rank as it found it.
    fn work(&self, joined: &mut Joined, job: Job, rounds: &mut u64) -> Outcome {
        let watchdog = Watchdog::start(&self.progress, self.limit);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mapped = joined.probe.mapped_bytes();
            let mut rig = Rig::new(
                &self.harness,
                self.setup,
                joined,
                &self.bootstrap,
                &self.progress,
                job.bug,
                rounds,
            )?;
            (job.run)(&mut rig)?;
            // Nobody may be in the case any more when its remains are looked at.
            rig.meet()?;
            if let Some(fault) = rig.witness().fault() {
                return Err(Failure(fault));
            }
            let quarantine = rig.quarantine.take();
            drop(rig);
            joined.probe.settle();
            if let Some(quarantine) = quarantine {
                quarantine.release(&**joined.comm.device());
            }
            check_remains(joined, mapped)
        }));
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(panic) => Err(Failure(format!("panicked: {}", text(&*panic)))),
        };
        drop(watchdog);
        outcome.map_err(|failure| {
            let failure = Failure(format!("{failure}; last: {}", self.progress.last()));
            // Peers must not wait for a rank that has left the case.
            self.progress.abort(&failure.0);
            self.bootstrap.publish_failure(&failure.0);
            failure
        })
    }
}

fn check_remains(joined: &Joined, before: Option<usize>) -> Outcome {
    joined.comm.device().collect();
    let after = joined.probe.mapped_bytes();
    if after != before {
        return Err(Failure(format!(
            "the case leaves {after:?} mapped bytes, and found {before:?}"
        )));
    }
    joined.probe.check_memory().map_err(Failure)?;
    joined.comm.abort_handle().health()?;
    Ok(())
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "with something that is no text".to_owned())
}
