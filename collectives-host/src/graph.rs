//! Captured graphs and their executables.

use std::any::Any;
use std::sync::Arc;

use collectives_core::error::{CaptureFault, Error, Misuse, Result};
use collectives_core::graph::{GraphExecutable, GraphTemplate};
use collectives_core::memory::Memory;
use collectives_core::rank::DeviceId;
use collectives_core::stream::StreamRef;

use crate::capture::{Recording, Step, walk};
use crate::device::Shared;
use crate::event::Event;
use crate::model::Call;
use crate::queue::{Job, Turn, queue_of, take_turn};
use crate::reaper::Owned;
use crate::replay::{Ready, Replay};

/// A recording and what it owns, shared by the template, its clones, its executables and the
/// replays in flight; the last of them lets go of what is owned.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) steps: Vec<Step>,
    owned: Owned,
    shared: Arc<Shared>,
}

/// A captured graph.
#[derive(Debug)]
pub(crate) struct HostGraph(Arc<Body>);

/// An executable of one.
#[derive(Debug)]
struct HostExecutable {
    body: Arc<Body>,
    /// Where the latest launch ends; launches of one executable never overlap.
    latest: Option<Event>,
}

impl HostGraph {
    pub(crate) fn new(recording: Recording, shared: Arc<Shared>) -> Self {
        Self(Arc::new(Body {
            steps: recording.steps,
            owned: Owned::new(recording.owned, Arc::clone(shared.reaper())),
            shared,
        }))
    }
}

impl Body {
    /// Fence records in the graph; each takes a position of the stream it is launched on.
    fn records(&self) -> Result<u64> {
        let mut records = 0;
        walk(&self.steps, &mut |step| {
            records += u64::from(matches!(step, Step::Record(_)));
            Ok(())
        })?;
        Ok(records)
    }

    pub(crate) fn memories(&self) -> &[Memory] {
        self.owned.memories()
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.shared.id()
    }

    pub(crate) fn has_shape_of(&self, other: &Self) -> bool {
        self.steps.len() == other.steps.len()
            && self
                .steps
                .iter()
                .zip(&other.steps)
                .all(|(left, right)| left.has_kind_of(right))
    }
}

/// The recording behind a template of this backend.
pub(crate) fn body_of(template: &dyn GraphTemplate) -> Result<&Arc<Body>> {
    let any: &dyn Any = template;
    let graph = any.downcast_ref::<HostGraph>();
    graph
        .map(|graph| &graph.0)
        .ok_or_else(|| Misuse::WrongDevice { what: "the graph" }.into())
}

impl GraphTemplate for HostGraph {
    fn duplicate(&self) -> Result<Box<dyn GraphTemplate>> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }

    fn instantiate(&self) -> Result<Box<dyn GraphExecutable>> {
        self.0.shared.refuse(Call::Instantiate)?;
        Ok(Box::new(HostExecutable {
            body: Arc::clone(&self.0),
            latest: None,
        }))
    }

    fn owned(&self) -> &[Memory] {
        self.0.memories()
    }

    fn node_count(&self) -> usize {
        self.0.steps.iter().filter(|step| step.is_node()).count()
    }
}

impl HostExecutable {
    fn enqueue(&mut self, stream: &StreamRef) -> Result<()> {
        let shared = &*self.body.shared;
        let queue = queue_of(shared.id(), stream)?;
        let turn = take_turn(queue)?;
        if matches!(turn, Turn::Captured(_)) {
            return Err(Error::capture(CaptureFault::AlreadyCapturing));
        }
        shared.refuse(Call::Launch)?;
        let launching = shared.lock_launches();
        let ready = Ready::new(&self.body)?;
        let records = self.body.records()?;
        let previous = self.latest.take().filter(|event| !event.is_before(queue));
        let settle =
            |first| -> Result<Replay> { ready.settle(shared.id(), queue, first, previous) };
        match turn {
            Turn::Inline(turn) => {
                // One position more, so that the last record does not stand for the end.
                let first = turn.reserve(records + 1);
                let replay = settle(first)?;
                drop(launching);
                self.latest = Some(Event::new(queue, first + records));
                replay.run(queue.progress(), false)
            }
            Turn::Queued(turn) => {
                let first = turn.reserve(records);
                let replay = settle(first)?;
                let end = turn.push_job(Job::Replay(replay));
                drop(launching);
                self.latest = Some(Event::new(queue, end));
                Ok(())
            }
            Turn::Captured(_) => Ok(()),
        }
    }
}

impl GraphExecutable for HostExecutable {
    unsafe fn launch(&mut self, stream: &StreamRef) -> Result<()> {
        self.enqueue(stream)
            .map_err(|error| error.during("launch").on_backend("host"))
    }

    fn update(&mut self, from: &dyn GraphTemplate) -> Result<()> {
        let body = body_of(from)?;
        if body.device() != self.body.device() {
            return Err(Misuse::WrongDevice { what: "the graph" }.into());
        }
        if !self.body.has_shape_of(body) {
            let why = "the graphs differ in shape, so the executable cannot be updated";
            return Err(Misuse::Other(why.to_owned()).into());
        }
        self.body = Arc::clone(body);
        Ok(())
    }

    fn owned(&self) -> &[Memory] {
        self.body.memories()
    }
}

#[cfg(test)]
#[path = "graph/tests.rs"]
mod tests;
