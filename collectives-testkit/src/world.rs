//! Worlds of ranks that serve many cases, and are rebuilt only after one that poisons them.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::bootstrap::Bootstrap;
use collectives_core::in_process::InProcess;

use crate::case::{Case, Failure, Outcome};
use crate::harness::{Harness, Joined, Setup};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::watchdog::{Progress, Watchdog};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A call that waits for other ranks.
    pub call: Duration,
    /// A whole case on one rank; the parent waits half as long again.
    pub case: Duration,
}

impl Limits {
    /// For cases that should pass.
    pub const PATIENT: Self = Self {
        call: Duration::from_secs(20),
        case: Duration::from_secs(60),
    };
    /// For cases that a planted bug may make hang.
    pub const SHORT: Self = Self {
        call: Duration::from_secs(2),
        case: Duration::from_secs(12),
    };
}

/// The worlds of one backend.
#[derive(Debug)]
pub struct Worlds {
    harness: Arc<dyn Harness>,
    limits: Limits,
    idle: Mutex<HashMap<Setup, Vec<World>>>,
}

impl std::fmt::Debug for dyn Harness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Worlds {
    /// No world yet.
    #[must_use]
    pub fn new(harness: Arc<dyn Harness>, limits: Limits) -> Self {
        Self {
            harness,
            limits,
            idle: Mutex::default(),
        }
    }

    /// The backend.
    #[must_use]
    pub fn harness(&self) -> &Arc<dyn Harness> {
        &self.harness
    }

    /// Runs a case on every rank of a world of its setup.
    ///
    /// # Errors
    ///
    /// Naming each rank that failed, how, and its last operation.
    pub fn run(&self, case: &Case, bug: Option<Planted>) -> Outcome {
        #[cfg(target_os = "linux")]
        if self.harness.ranks() != crate::harness::Ranks::Threads {
            return crate::processes::run(&*self.harness, self.limits, case, bug);
        }
        let setup = case.setup(self.limits.call);
        let idle = self.lock().get_mut(&setup).and_then(Vec::pop);
        let world = match idle {
            Some(world) => world,
            None => World::start(&self.harness, setup, self.limits)?,
        };
        let outcome = world.run(case, bug, self.limits.case * 3 / 2);
        if outcome.is_ok() {
            self.lock().entry(setup).or_default().push(world);
        }
        outcome
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Setup, Vec<World>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy)]
struct Job {
    run: fn(&mut Rig<'_>) -> Outcome,
    bug: Option<Planted>,
}

type Reply = Outcome;

#[derive(Debug)]
struct World {
    ranks: Vec<Rank>,
    ends: Vec<Arc<dyn Bootstrap>>,
}

#[derive(Debug)]
struct Rank {
    jobs: Sender<Job>,
    replies: Receiver<Reply>,
    progress: Arc<Progress>,
}

impl World {
    fn start(harness: &Arc<dyn Harness>, setup: Setup, limits: Limits) -> Outcome<Self> {
        let ends: Vec<Arc<dyn Bootstrap>> = InProcess::world(setup.ranks)
            .into_iter()
            .map(|end| -> Arc<dyn Bootstrap> { Arc::new(end) })
            .collect();
        let mut ranks = Vec::new();
        for (index, end) in ends.iter().enumerate() {
            let (jobs, receiver) = mpsc::channel();
            let (sender, replies) = mpsc::channel();
            let progress = Arc::new(Progress::default());
            let rank = RankThread {
                harness: Arc::clone(harness),
                setup,
                limit: limits.case,
                bootstrap: Arc::clone(end),
                progress: Arc::clone(&progress),
            };
            let spawned = thread::Builder::new()
                .name(format!("kit-rank-{index}"))
                .spawn(move || rank.serve(&receiver, &sender));
            if let Err(error) = spawned {
                return Err(Failure(format!("no thread for rank {index}: {error}")));
            }
            ranks.push(Rank {
                jobs,
                replies,
                progress,
            });
        }
        let world = Self { ranks, ends };
        world.collect("start", setup.deadline * 2).map(|()| world)
    }

    fn run(&self, case: &Case, bug: Option<Planted>, limit: Duration) -> Outcome {
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

/// Runs one case on this rank, whose peers are elsewhere.
pub(crate) fn alone(
    harness: &Arc<dyn Harness>,
    limits: Limits,
    bootstrap: Arc<dyn Bootstrap>,
    case: &Case,
    bug: Option<Planted>,
) -> Outcome {
    let setup = case.setup(limits.call);
    let rank = RankThread {
        harness: Arc::clone(harness),
        setup,
        limit: limits.case,
        bootstrap: Arc::clone(&bootstrap),
        progress: Arc::new(Progress::default()),
    };
    rank.progress.begin();
    let mut joined = harness.join(Arc::clone(&bootstrap), &setup)?;
    let job = Job { run: case.run, bug };
    let mut rounds = 0;
    let outcome = rank.work(&mut joined, job, &mut rounds);
    let closed = joined.comm.shutdown();
    if outcome.is_ok() {
        // The rank that hosts the control plane leaves last; how this ends tells nothing any more.
        let _left = bootstrap.all_gather("kit/end", &[], limits.call);
    }
    outcome?;
    let _deferred = closed?;
    Ok(())
}

struct RankThread {
    harness: Arc<dyn Harness>,
    setup: Setup,
    limit: Duration,
    bootstrap: Arc<dyn Bootstrap>,
    progress: Arc<Progress>,
}

impl RankThread {
    fn serve(self, jobs: &Receiver<Job>, replies: &Sender<Reply>) {
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

    fn give_up(&self, replies: &Sender<Reply>, why: String) {
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
            drop(rig);
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
    let device = joined.comm.device();
    joined.probe.settle();
    device.collect();
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
