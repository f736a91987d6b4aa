//! The thread that runs an asynchronous stream.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread;

use collectives_core::error::{Error, ErrorKind, Result};

use crate::queue::{Job, Jobs, Queue, panicked};

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a stream, and not the one that enqueues.
pub(crate) fn is_here() -> bool {
    IS_WORKER.get()
}

/// Starts the stream's worker unless it has one.
pub(crate) fn ensure(queue: &Arc<Queue>, jobs: &mut Jobs) -> Result<()> {
    if jobs.worker {
        return Ok(());
    }
    let own = Arc::clone(queue);
    thread::Builder::new()
        .name(format!("stream-{}", queue.id()))
        .spawn(move || work(&own))
        .map_err(|error| {
            Error::new(ErrorKind::System("no thread for the stream".to_owned()))
                .during("enqueue")
                .on_backend("host")
                .caused_by(error)
        })?;
    jobs.worker = true;
    Ok(())
}

/// Runs jobs in order until the handle is gone and nothing is left.
///
/// Every position completes, whatever becomes of its work, so that nobody waits for ever.
fn work(queue: &Arc<Queue>) {
    IS_WORKER.set(true);
    while let Some((position, job)) = next(queue) {
        let done = catch_unwind(AssertUnwindSafe(|| run(queue, job)));
        if let Err(error) = done.unwrap_or_else(|payload| Err(panicked(&*payload))) {
            queue.fail(error);
        }
        queue.progress().advance(position);
    }
}

fn next(queue: &Queue) -> Option<(u64, Job)> {
    let mut jobs = queue.lock_jobs();
    loop {
        if let Some(job) = jobs.waiting.pop_front() {
            return Some(job);
        }
        if jobs.closed {
            return None;
        }
        jobs = queue
            .arrived
            .wait(jobs)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// After a failure nothing runs any more, but waits still wait: others may be ordered after this
/// stream, and through it after what it waits for.
fn run(queue: &Arc<Queue>, job: Job) -> Result<()> {
    match job {
        Job::Wait(event) => event.wait(),
        Job::Run(work) if !queue.has_failed() => work()?,
        Job::Run(work) => drop(work),
        Job::Replay(replay) => replay.run(queue.progress(), queue.has_failed())?,
    }
    Ok(())
}
