//! A slot: memory, its window, its last user and its claims.

use std::sync::Arc;

use collectives_core::addr::{WindowId, WindowSlice};
use collectives_core::device::Device;
use collectives_core::error::{Error, Misuse, Result};
use collectives_core::memory::Memory;
use collectives_core::rank::{CaptureId, CommId};
use collectives_core::scratch::{Lease, LeaseHold, SlotId};
use collectives_core::stats::SlotStats;
use collectives_core::stream::{Fence, StreamRef};

use crate::budget::Charge;
use crate::pool::hold::Hold;

/// Memory registered as one window, which leases take in turns.
///
/// In the order of declaration: what a lease reads and writes comes first, on two cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Slot {
    pub(super) id: SlotId,
    /// The pool is one owner; every graph that claimed the slot is another, and a lease is.
    pub(super) memory: Memory,
    /// What a lease is made of and that comes back with it, so that no owner is counted.
    spare: Option<(Memory, Arc<dyn LeaseHold>)>,
    hold: Arc<Hold>,
    /// The stream of the last eager use.
    pub(super) last_user: Option<StreamRef>,
    start: WindowSlice,
    /// Whether a graph owned the bytes when that was last looked at.
    pub(super) claimed: bool,
    pub(super) window: WindowId,
    pub(super) capacity: usize,
    pub(super) mapped: usize,
    /// The last capture that used the slot, and the stream it used it on.
    pub(super) last_capture: Option<(CaptureId, StreamRef)>,
    /// Whether a graph owned this slot's own addresses when that was last looked at.
    pub(super) captured: bool,
    /// The first generation of the arena that the slot is a generation of.
    pub(super) arena: Option<SlotId>,
    /// What every graph that captured any generation of the arena owns. Only the newest has it.
    pub(super) body: Option<Memory>,
    /// What the bytes are charged as, for the next generation to keep them charged too.
    pub(super) charges: Vec<Arc<Charge>>,
}

/// What becomes a slot once all ranks have it.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) memory: Memory,
    pub(super) fence: Fence,
    /// What the bytes are charged as, oldest first.
    pub(super) charges: Vec<Arc<Charge>>,
}

impl Slot {
    pub(super) fn new(
        id: SlotId,
        parts: Parts,
        device: Arc<dyn Device>,
        (comm, window): (CommId, WindowId),
        (capacity, mapped): (usize, usize),
    ) -> Self {
        let start = WindowSlice {
            comm,
            window,
            offset: 0,
        };
        let hold = Hold::new(id, parts.fence, device, parts.memory.keep_alive());
        Self {
            id,
            window,
            capacity,
            mapped,
            start,
            hold,
            memory: parts.memory,
            spare: None,
            last_user: None,
            claimed: false,
            last_capture: None,
            captured: false,
            arena: None,
            body: None,
            charges: parts.charges,
        }
    }

    #[inline]
    pub(super) fn is_leased(&self) -> bool {
        self.hold.is_leased()
    }

    /// A lease of the first `bytes` bytes; the caller has ordered the use and checked that the slot
    /// is free and large enough.
    #[inline(always)]
    pub(super) fn lease(&mut self, bytes: usize) -> Result<Lease> {
        if bytes <= self.memory.bytes() {
            self.hold.take();
        }
        let (owner, hold) = self.spare.take().unwrap_or_else(|| self.parts());
        // Last, so that it is made where the caller wants it: moving it costs more than making it.
        Lease::new(owner, bytes, self.start, self.id, hold)
    }

    #[cold]
    fn parts(&self) -> (Memory, Arc<dyn LeaseHold>) {
        let hold = Arc::<Hold>::clone(&self.hold);
        (self.memory.clone(), hold)
    }

    /// Whether the lease is this slot's, and no decorator's around it.
    #[inline(always)]
    pub(super) fn lent(&self, lease: &Lease) -> bool {
        lease.ends_through(&self.hold)
    }

    /// Ends a lease that this slot [lent](Slot::lent), and keeps what the next one is made of.
    #[inline(always)]
    pub(super) fn take_back(&mut self, lease: Lease) -> Result<()> {
        self.spare = lease.into_parts();
        self.hold.give_back()
    }

    /// Orders the coming use after the last one, if `events`, and gives the graph its claim.
    /// Returns whether a wait was enqueued.
    #[inline]
    pub(super) fn order(
        &mut self,
        stream: &StreamRef,
        capture: Option<CaptureId>,
        events: bool,
    ) -> Result<bool> {
        match capture {
            Some(capture) => self.order_captured(stream, capture, events),
            None => {
                let last = self.last_user.as_ref();
                let moved = last.is_none_or(|last| !last.is_same_as(stream));
                if moved || self.claimed {
                    return self.order_eager(stream, moved, events);
                }
                Ok(false)
            }
        }
    }

    /// Orders a use after one on another stream, or after replays.
    #[inline(never)]
    fn order_eager(&mut self, stream: &StreamRef, moved: bool, events: bool) -> Result<bool> {
        self.forget_dead_claims();
        let mut waits = false;
        if events {
            let (device, fence) = (&*self.hold.device, &self.hold.fence);
            if self.claimed {
                // Replays are invisible to the pool; the fence is what they record and wait for.
                let entered = self.claims().try_enter()?;
                device.wait(fence, stream)?;
                self.hold.record_at_end(stream, Some(entered));
                waits = true;
            } else if moved && let Some(last) = &self.last_user {
                device.record_eager(fence, last)?;
                device.wait(fence, stream)?;
                waits = true;
            }
        } else {
            self.stay_on(stream)?;
        }
        if moved {
            self.last_user = Some(stream.clone());
        }
        Ok(waits)
    }

    #[inline(never)]
    fn order_captured(
        &mut self,
        stream: &StreamRef,
        capture: CaptureId,
        events: bool,
    ) -> Result<bool> {
        let (device, fence) = (&*self.hold.device, &self.hold.fence);
        let same_capture = match &self.last_capture {
            Some((last, branch)) if *last == capture => Some(branch),
            _ => None,
        };
        if same_capture.is_none() {
            device.retain(stream, self.memory.clone())?;
            if let Some(body) = &self.body {
                device.retain(stream, body.clone())?;
            }
        }
        if events {
            if let Some(branch) = same_capture
                && branch.id() != stream.id()
                && device.capture_state(branch)? == Some(capture)
            {
                // Fences order replays with each other; this orders two branches of one graph.
                device.order(branch, stream)?;
            }
            if !self.claimed
                && let Some(last) = &self.last_user
            {
                device.record_eager(fence, last)?;
            }
            device.wait(fence, stream)?;
            self.hold.record_at_end(stream, None);
        } else if same_capture.is_some_and(|branch| branch.id() != stream.id()) {
            return Err(left_its_stream(self.id));
        }
        self.claimed = true;
        self.captured = true;
        self.last_capture = Some((capture, stream.clone()));
        Ok(events)
    }

    /// Where the caller keeps all uses on one stream: refuses one that is on another, whether the
    /// last use was a call or a replay.
    fn stay_on(&self, stream: &StreamRef) -> Result<()> {
        let eager = self.last_user.as_ref().map(StreamRef::id);
        let last = if self.claimed {
            self.claims().last_stream().or(eager)
        } else {
            eager
        };
        match last {
            Some(last) if last != stream.id() => Err(left_its_stream(self.id)),
            _ => Ok(()),
        }
    }

    /// Notices that all graphs that claimed the slot are gone, which changes no decision.
    fn forget_dead_claims(&mut self) {
        if !self.claimed {
            return;
        }
        let dead = match &mut self.body {
            Some(body) => body.is_sole_owner(),
            None => self.is_sole_owner(),
        };
        if dead {
            self.claimed = false;
            self.captured = false;
            self.last_capture = None;
        }
    }

    /// Whether no graph and no lease owns the bytes.
    fn is_sole_owner(&mut self) -> bool {
        self.spare = None;
        self.memory.is_sole_owner()
    }

    /// What every graph owns that uses the bytes, at whatever addresses.
    fn claims(&self) -> &Memory {
        self.body.as_ref().unwrap_or(&self.memory)
    }

    /// Whether anything on this rank may still use the bytes, or waiting for it is impossible.
    pub(super) fn is_held(&mut self) -> bool {
        self.forget_dead_claims();
        self.is_leased() || !self.is_sole_owner() || self.last_user_captures()
    }

    fn last_user_captures(&self) -> bool {
        self.last_user.as_ref().is_some_and(|stream| {
            let state = self.hold.device.capture_state(stream);
            matches!(state, Ok(Some(_)))
        })
    }

    /// What orders uses of the bytes.
    pub(super) fn fence(&self) -> &Fence {
        &self.hold.fence
    }

    /// Waits until the last use has finished, also if it failed.
    pub(super) fn settle(&self) {
        if let Some(stream) = &self.last_user
            && let Err(error) = self.hold.device.synchronize(stream)
        {
            tracing::warn!(slot = self.id.0, %error, "the last use of a retiring slot failed");
        }
    }

    pub(super) fn stats(&self, retired: bool) -> SlotStats {
        SlotStats {
            generation: self.id.0,
            capacity: self.capacity,
            mapped: self.mapped,
            leased: self.is_leased(),
            claimed: self.captured,
            replays: self.memory.replays(),
            retired,
            arena: self.arena.map(|first| first.0),
        }
    }
}

fn left_its_stream(slot: SlotId) -> Error {
    let text = format!(
        "with `ordering = \"caller\"` every use of {slot} must be on one stream, and this one is not"
    );
    Misuse::Other(text).into()
}
