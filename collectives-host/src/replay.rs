//! One replay of a graph: prepared at launch, run as one unit of work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use collectives_core::error::Result;
use collectives_core::rank::DeviceId;

use crate::capture::{Prepared, Step, walk};
use crate::event::Event;
use crate::fence::fence_of;
use crate::graph::Body;
use crate::progress::Progress;
use crate::queue::{Queue, panicked};

/// What a replay does, in recorded order.
enum Action {
    Run(Prepared),
    Wait(Event),
    /// The record at this position of the stream is complete.
    Reached(u64),
}

/// A replay that was launched. It owns the graph's memory until it has finished.
pub(crate) struct Replay {
    actions: Vec<Action>,
    body: Arc<Body>,
}

/// The nodes of a replay, prepared; dropped unrun if one of them could not be.
pub(crate) struct Ready {
    nodes: Vec<Prepared>,
    body: Arc<Body>,
}

impl Ready {
    /// Prepares the nodes in recorded order.
    pub(crate) fn new(body: &Arc<Body>) -> Result<Self> {
        let mut nodes = Vec::with_capacity(body.steps.len());
        walk(&body.steps, &mut |step| {
            if let Step::Run(node) = step {
                nodes.push(Arc::clone(node).prepare()?);
            }
            Ok(())
        })?;
        Ok(Self {
            nodes,
            body: Arc::clone(body),
        })
    }

    /// Settles what the fence nodes mean: waits wait for the latest record there is now, and
    /// records take the positions from `first` on, one each.
    ///
    /// The caller holds the turn of `queue` and the device's launch lock, so that a wait and the
    /// record after it are not torn apart by another launch that uses the same fence.
    pub(crate) fn settle(
        self,
        device: DeviceId,
        queue: &Arc<Queue>,
        first: u64,
        previous: Option<Event>,
    ) -> Result<Replay> {
        let mut actions = Vec::with_capacity(self.body.steps.len() + 1);
        actions.extend(previous.map(Action::Wait));
        let mut nodes = self.nodes.into_iter();
        let mut position = first;
        walk(&self.body.steps, &mut |step| {
            match step {
                Step::Run(_) => actions.extend(nodes.next().map(Action::Run)),
                Step::Wait(fence) => {
                    actions.extend(fence_of(device, fence)?.latest_for(queue).map(Action::Wait));
                }
                Step::Record(fence) => {
                    fence_of(device, fence)?.record(Some(Event::new(queue, position)));
                    actions.push(Action::Reached(position));
                    position += 1;
                }
                // Steps of children come here one by one.
                Step::Fork | Step::Join | Step::Child(_) => {}
            }
            Ok(())
        })?;
        Ok(Replay {
            actions,
            body: self.body,
        })
    }
}

impl Replay {
    /// Runs the nodes in order; after a failure, or if `skip`, only the waits, because others may
    /// be ordered after this replay and through it after what it waits for.
    pub(crate) fn run(self, progress: &Progress, skip: bool) -> Result<()> {
        let mut outcome = Ok(());
        for action in self.actions {
            match action {
                Action::Wait(event) => event.wait(),
                Action::Reached(position) => progress.advance(position),
                Action::Run(node) => {
                    let run = !skip && outcome.is_ok();
                    let done = catch_unwind(AssertUnwindSafe(|| {
                        if run {
                            node()
                        } else {
                            drop(node);
                            Ok(())
                        }
                    }));
                    let done = done.unwrap_or_else(|payload| Err(panicked(&*payload)));
                    outcome = outcome.and(done);
                }
            }
        }
        drop(self.body);
        outcome
    }
}
