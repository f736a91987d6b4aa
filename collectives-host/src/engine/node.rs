//! Collectives that outlive the call that enqueued them: queued, or recorded in a graph.

use std::fmt;
use std::sync::{Arc, Weak};

use collectives_core::error::{Error, ErrorKind, Misuse, Result};

use super::endpoint::Presence;
use super::transport::Transport;
use crate::capture::{Node, Prepared};
use crate::node::Calls;
use crate::tickets::Ticket;
use crate::windows::Window;

/// A recorded call of `enqueue`. It keeps the windows it uses until they are retired, and the
/// communicator's token is among what the graph owns; it does not keep the rank present.
pub(super) struct EngineNode<T: Transport> {
    pub(super) presence: Weak<Presence<T>>,
    pub(super) calls: Calls,
    pub(super) windows: Vec<Arc<Window>>,
}

impl<T: Transport> Node for EngineNode<T> {
    fn prepare(self: Arc<Self>) -> Result<Prepared> {
        let closed = || Error::new(ErrorKind::Closed).on_backend(T::BACKEND);
        let presence = self.presence.upgrade().ok_or_else(closed)?;
        presence.0.check_open()?;
        if self.windows.iter().any(|window| window.is_retired()) {
            // Its bytes may be somebody else's by now.
            return Err(presence.0.health.named(Misuse::UnknownWindow.into()));
        }
        self.calls.with(|calls| presence.0.count(calls));
        let ticket = Ticket::take(presence);
        Ok(Box::new(move || {
            self.calls.with(|calls| {
                let endpoint = &ticket.owner().0;
                // SAFETY: Who captured the call promised that the operands stay valid as long as
                // the graph, and who launches it that nothing unordered with the stream uses them.
                unsafe { endpoint.run(&ticket, calls, &self.windows) }
            })
        }))
    }

    fn kind(&self) -> &'static str {
        self.calls.kind()
    }
}

impl<T: Transport> fmt::Debug for EngineNode<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineNode")
            .field("calls", &self.calls.kind())
            .field("windows", &self.windows.len())
            .finish()
    }
}
