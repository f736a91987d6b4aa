//! Capture of a device's streams.

use std::sync::Arc;

use collectives_core::error::{CaptureFault, Error, Misuse, Result};
use collectives_core::graph::{ChildGraphs, GraphTemplate, Graphs};
use collectives_core::rank::CaptureId;
use collectives_core::stream::StreamRef;

use crate::capture::Recorder;
use crate::graph::{HostGraph, body_of};
use crate::model::Call;

use super::HostDevice;

// SAFETY: A capturing stream's turn is always `Captured`, which only records; a replay runs the
// recorded nodes and nothing else; `Body` owns what was retained.
unsafe impl Graphs for HostDevice {
    unsafe fn begin(&self, stream: &StreamRef) -> Result<CaptureId> {
        let queue = self.shared.queue_of(stream)?;
        queue.health()?;
        self.refuse(Call::Capture)?;
        let recorder = Arc::new(Recorder::new(queue.id(), &self.shared.captures));
        let id = recorder.id();
        queue
            .enter_capture(recorder)
            .map_err(|_| Error::capture(CaptureFault::AlreadyCapturing))?;
        Ok(id)
    }

    unsafe fn fork(&self, trunk: &StreamRef, branch: &StreamRef) -> Result<()> {
        let (trunk, branch) = (self.shared.queue_of(trunk)?, self.shared.queue_of(branch)?);
        trunk.health()?;
        branch.health()?;
        let recorder = trunk.recorder().ok_or_else(not_capturing)?;
        recorder.check()?;
        branch
            .enter_capture(Arc::clone(&recorder))
            .map_err(|_| Error::capture(CaptureFault::AlreadyCapturing))?;
        recorder
            .fork(branch)
            .inspect_err(|_| branch.leave_capture(recorder.id()))
    }

    unsafe fn join(&self, trunk: &StreamRef, branch: &StreamRef) -> Result<()> {
        let (trunk, branch) = (self.shared.queue_of(trunk)?, self.shared.queue_of(branch)?);
        let recorder = trunk.recorder().ok_or_else(not_capturing)?;
        recorder.join(branch)?;
        branch.leave_capture(recorder.id());
        Ok(())
    }

    unsafe fn end(&self, stream: &StreamRef) -> Result<Box<dyn GraphTemplate>> {
        let queue = self.shared.queue_of(stream)?;
        let recorder = queue
            .recorder()
            .filter(|recorder| recorder.origin() == queue.id())
            .ok_or_else(not_capturing)?;
        queue.leave_capture(recorder.id());
        let recording = recorder.finish().ok_or_else(not_capturing)?;
        let unjoined = !recording.branches.is_empty();
        let invalid = recording.invalid;
        // A graph that fails here owns what was retained too, so that it is released as always.
        let graph = HostGraph::new(recording, Arc::clone(&self.shared));
        if invalid {
            return Err(Error::capture(CaptureFault::Invalidated));
        }
        if unjoined {
            return Err(Error::capture(CaptureFault::Unjoined));
        }
        Ok(Box::new(graph))
    }

    fn children(&self) -> Option<&dyn ChildGraphs> {
        Some(self)
    }
}

// SAFETY: A replay runs the steps of a child at its place; `Recorder::embed` owns what it owns.
unsafe impl ChildGraphs for HostDevice {
    unsafe fn embed(&self, stream: &StreamRef, child: &dyn GraphTemplate) -> Result<()> {
        let queue = self.shared.queue_of(stream)?;
        let body = body_of(child)?;
        if body.device() != self.shared.id() {
            return Err(Misuse::WrongDevice { what: "the graph" }.into());
        }
        let recorder = queue.recorder().ok_or_else(not_capturing)?;
        recorder.check()?;
        recorder.embed(body);
        Ok(())
    }
}

pub(super) fn not_capturing() -> Error {
    Error::capture(CaptureFault::NotCapturing)
}
