//! Collectives that outlive the call that enqueued them: queued, or recorded in a graph.

use std::fmt;
use std::sync::{Arc, Weak};

use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::error::{Error, ErrorKind, Misuse, Result};

use crate::capture::{Node, Prepared};
use crate::course;
use crate::endpoint::BACKEND;
use crate::presence::Presence;
use crate::tickets::Ticket;
use crate::windows::Window;

/// Collectives that own their counts vectors. Addresses are kept as they are.
pub(crate) struct Calls(Box<[Owned]>);

struct Owned {
    call: Collective<'static>,
    counts: Option<Box<[usize]>>,
    recv_counts: Option<Box<[usize]>>,
}

impl Calls {
    pub(crate) fn new(calls: &[Collective<'_>]) -> Self {
        Self(calls.iter().map(Owned::new).collect())
    }

    /// What the calls are, in a word.
    pub(crate) fn kind(&self) -> &'static str {
        let mut kinds = self.kinds();
        match (kinds.next(), kinds.next()) {
            (Some(kind), None) => kind,
            _ => "group",
        }
    }

    /// Gives the calls as they were passed.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&[Collective<'_>]) -> R) -> R {
        match &*self.0 {
            [single] => body(&[single.borrow()]),
            many => body(&many.iter().map(Owned::borrow).collect::<Vec<_>>()),
        }
    }

    /// Whether all ranks meet in them.
    pub(crate) fn meets(&self) -> bool {
        self.0.iter().any(|owned| course::meets(&[owned.call]))
    }

    fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|owned| owned.call.kind().name())
    }

    /// Runs them when the ticket's turn comes.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::run`](crate::endpoint::Endpoint::run).
    pub(crate) unsafe fn run(&self, ticket: &Ticket<Arc<Presence>>) -> Result<()> {
        let endpoint = ticket.owner().endpoint();
        // SAFETY: By the caller.
        self.with(|calls| unsafe { endpoint.run(ticket, calls) })
    }
}

impl Owned {
    fn new(call: &Collective<'_>) -> Self {
        let (counts, even) = own(call.counts);
        let mut recv_counts = None;
        let op = match call.op {
            Op::AllReduce(op) => Op::AllReduce(op),
            Op::ReduceScatter(op) => Op::ReduceScatter(op),
            Op::AllGather => Op::AllGather,
            Op::Broadcast { root } => Op::Broadcast { root },
            Op::Reduce { op, root } => Op::Reduce { op, root },
            Op::AllToAll {
                recv_counts: counts,
            } => {
                let (vector, even) = own(counts);
                recv_counts = vector;
                Op::AllToAll { recv_counts: even }
            }
            Op::Gather { root } => Op::Gather { root },
            Op::Scatter { root } => Op::Scatter { root },
            Op::Send { to } => Op::Send { to },
            Op::Recv { from } => Op::Recv { from },
            // A kind that this backend does not know is refused before it comes here.
            _ => Op::Barrier,
        };
        let call = Collective {
            op,
            counts: even,
            dtype: call.dtype,
            send: call.send,
            recv: call.recv,
        };
        Self {
            call,
            counts,
            recv_counts,
        }
    }

    fn borrow(&self) -> Collective<'_> {
        let mut call: Collective<'_> = self.call;
        if let Some(counts) = &self.counts {
            call.counts = Counts::Uneven(counts);
        }
        if let Some(counts) = &self.recv_counts {
            call.op = Op::AllToAll {
                recv_counts: Counts::Uneven(counts),
            };
        }
        call
    }
}

fn own(counts: Counts<'_>) -> (Option<Box<[usize]>>, Counts<'static>) {
    match counts {
        Counts::Uneven(counts) => (Some(counts.into()), Counts::Even(0)),
        counts => (
            None,
            Counts::Even(counts.of(collectives_core::rank::Rank(0))),
        ),
    }
}

/// A recorded call of `enqueue`. It keeps the windows it uses until they are retired, and the communicator's token
/// is among what the graph owns; it does not keep the rank present.
pub(crate) struct CollectiveNode {
    pub(crate) presence: Weak<Presence>,
    pub(crate) calls: Calls,
    /// A window that a graph holds stays mapped over a shutdown; one that was retired is gone.
    pub(crate) windows: Vec<Arc<Window>>,
}

impl Node for CollectiveNode {
    fn prepare(self: Arc<Self>) -> Result<Prepared> {
        let closed = || Error::new(ErrorKind::Closed).on_backend(BACKEND);
        let presence = self.presence.upgrade().ok_or_else(closed)?;
        presence.endpoint().check_open()?;
        if self.windows.iter().any(|window| window.is_retired()) {
            // Its bytes may be somebody else's by now.
            return Err(presence.endpoint().named(Misuse::UnknownWindow.into()));
        }
        if self.calls.meets() {
            presence.endpoint().count_launch();
        }
        let ticket = Ticket::take(presence);
        // SAFETY: Who captured the call promised that the operands stay valid as long as the graph,
        // and who launches it that nothing unordered with the stream uses them.
        Ok(Box::new(move || unsafe { self.calls.run(&ticket) }))
    }

    fn kind(&self) -> &'static str {
        self.calls.kind()
    }
}

impl fmt::Debug for CollectiveNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let windows: Vec<_> = self.windows.iter().map(|window| window.id.0).collect();
        f.debug_struct("CollectiveNode")
            .field("calls", &self.calls.kinds().collect::<Vec<_>>())
            .field("windows", &windows)
            .finish()
    }
}
