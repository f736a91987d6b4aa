//! A point in a stream that others can wait for.

use std::fmt;
use std::sync::Arc;

use crate::queue::Queue;

/// A position of a stream; complete when everything up to it has run.
///
/// An event only refers to positions that are given out already, and who waits for one takes it
/// before the position of the wait is given out, so that waits can never form a cycle.
#[derive(Clone)]
pub(crate) struct Event {
    queue: Arc<Queue>,
    position: u64,
}

impl Event {
    pub(crate) fn new(queue: &Arc<Queue>, position: u64) -> Self {
        Self {
            queue: Arc::clone(queue),
            position,
        }
    }

    /// Everything enqueued on a stream so far, unless it has finished.
    pub(crate) fn of(queue: &Arc<Queue>) -> Option<Self> {
        let position = queue.progress().enqueued();
        (!queue.progress().is_complete(position)).then(|| Self::new(queue, position))
    }

    /// Whether a wait on `queue` would wait for nothing: the event is complete, or the stream's
    /// own order already says it.
    pub(crate) fn is_before(&self, queue: &Arc<Queue>) -> bool {
        Arc::ptr_eq(&self.queue, queue) || self.is_complete()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.queue.progress().is_complete(self.position)
    }

    pub(crate) fn wait(&self) {
        self.queue.progress().wait(self.position);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} at {}", self.queue.id(), self.position)
    }
}
