//! What captures in progress own, ours and other people's.

use std::any::Any;
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use collectives_core::error::{CaptureFault, Error, Result};
use collectives_core::memory::Memory;
use collectives_core::rank::{CaptureId, StreamId};

use super::departing::{Departing, Owned, Owner};
use super::stream::Capturing;
use crate::driver::{Driver, RawUserObject, USER_OBJECT_MOVE, USER_OBJECT_NO_SYNC};
use crate::state::State;

/// Captures of frameworks end without our knowing, so only the latest few are remembered. One that
/// is forgotten too early owns a memory twice, which is harmless.
const FOREIGN_REMEMBERED: usize = 16;

/// The captures there are.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    active: Mutex<Vec<Capture>>,
    departing: Arc<Departing>,
}

#[derive(Debug)]
struct Capture {
    id: CaptureId,
    /// The stream, if the capture began here.
    origin: Option<StreamId>,
    /// What the graph has a user object for, by address of the counted object.
    owned: HashSet<u64>,
    /// Streams that forked and have not joined. One that joined still captures, until the end.
    branches: Vec<StreamId>,
    contents: Contents,
}

/// What a graph of ours was captured with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    pub(crate) memories: Vec<Memory>,
    pub(crate) communicators: Vec<Arc<State>>,
    /// Of what the driver holds for it, and for its children.
    pub(crate) owners: Vec<Arc<Owner>>,
}

impl Captures {
    /// A capture of ours has begun.
    pub(crate) fn begin(&self, id: CaptureId, origin: StreamId) {
        let mut capture = Capture::new(id, Some(origin));
        capture.contents.owners = vec![Arc::new(Owner::new(&self.departing))];
        self.lock().push(capture);
    }

    /// The capture that began on this stream, if one did.
    pub(crate) fn of_origin(&self, origin: StreamId) -> Option<CaptureId> {
        let captures = self.lock();
        captures
            .iter()
            .find(|capture| capture.origin == Some(origin))
            .map(|capture| capture.id)
    }

    /// A capture of ours has ended.
    pub(crate) fn end(&self, id: CaptureId) -> Contents {
        let mut captures = self.lock();
        match captures.iter().position(|capture| capture.id == id) {
            Some(position) => captures.swap_remove(position).contents,
            None => Contents::default(),
        }
    }

    /// A stream becomes a branch; not if it is one.
    pub(crate) fn fork(&self, id: CaptureId, branch: StreamId) -> Result<()> {
        let mut captures = self.lock();
        let capture = remember(&mut captures, id);
        if capture.branches.contains(&branch) || capture.origin == Some(branch) {
            return Err(Error::capture(CaptureFault::AlreadyCapturing));
        }
        capture.branches.push(branch);
        Ok(())
    }

    /// A branch is none any more, and may be one again.
    pub(crate) fn join(&self, id: CaptureId, branch: StreamId) {
        let mut captures = self.lock();
        if let Some(capture) = captures.iter_mut().find(|capture| capture.id == id) {
            capture.branches.retain(|&open| open != branch);
        }
    }

    /// Makes the graph own `memory`, once.
    pub(crate) fn own(&self, driver: &Driver, capturing: Capturing, memory: Memory) -> Result<()> {
        let mut captures = self.lock();
        let capture = remember(&mut captures, capturing.id);
        if capture.owned.contains(&memory.id()) {
            return Ok(());
        }
        capture.give(driver, capturing, Box::new(memory.clone()))?;
        capture.owned.insert(memory.id());
        if capture.origin.is_some() {
            capture.contents.memories.push(memory);
        }
        Ok(())
    }

    /// Makes the graph own something else, once for each `key`.
    pub(crate) fn keep<T: Any + Send>(
        &self,
        driver: &Driver,
        capturing: Capturing,
        key: usize,
        value: T,
    ) -> Result<()> {
        // Memories count from one, so the upper half is free for addresses.
        let key = key as u64 | 1 << 63;
        let mut captures = self.lock();
        let capture = remember(&mut captures, capturing.id);
        if capture.owned.contains(&key) {
            return Ok(());
        }
        capture.give(driver, capturing, Box::new(value))?;
        capture.owned.insert(key);
        Ok(())
    }

    /// Notes that a capture, if it is one of ours, uses a communicator.
    pub(crate) fn uses(&self, id: CaptureId, state: &Arc<State>) {
        let mut captures = self.lock();
        if let Some(capture) = captures.iter_mut().find(|capture| capture.id == id)
            && capture.origin.is_some()
            && !capture
                .contents
                .communicators
                .iter()
                .any(|known| Arc::ptr_eq(known, state))
        {
            capture.contents.communicators.push(Arc::clone(state));
        }
    }

    /// Notes that a capture, if it is one of ours, has a child that was captured with this.
    pub(crate) fn adopt(&self, id: CaptureId, child: &Contents) {
        for communicator in &child.communicators {
            self.uses(id, communicator);
        }
        let mut captures = self.lock();
        if let Some(capture) = captures.iter_mut().find(|capture| capture.id == id)
            && capture.origin.is_some()
        {
            capture.contents.owners.extend(child.owners.iter().cloned());
        }
    }

    /// What the driver still holds for graphs of ours that are gone.
    pub(crate) fn departing(&self) -> usize {
        self.departing.len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Capture>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Capture {
    fn new(id: CaptureId, origin: Option<StreamId>) -> Self {
        Self {
            id,
            origin,
            owned: HashSet::new(),
            branches: Vec::new(),
            contents: Contents::default(),
        }
    }

    /// Gives a value to the graph that is being captured; it is dropped on a thread of the driver,
    /// which may call nothing of the driver, after the graph and its executables are gone.
    fn give(
        &self,
        driver: &Driver,
        capturing: Capturing,
        value: Box<dyn Any + Send>,
    ) -> Result<()> {
        // A thin pointer, as the driver carries no more.
        let owner = self.contents.owners.first().map(|owner| &**owner);
        let pointer = Box::into_raw(Box::new(Owned::new(value, owner)));
        let mut object = RawUserObject::NULL;
        // SAFETY: `cuUserObjectCreate` (cuda.h, "Graph Management"): the destructor takes the pointer
        // back, once, when the one reference is gone.
        let created = unsafe {
            driver.user_object_create(
                &raw mut object,
                pointer.cast(),
                drop_value,
                1,
                USER_OBJECT_NO_SYNC,
            )
        };
        if let Err(error) = created {
            // SAFETY: The driver did not take the pointer.
            drop(unsafe { Box::from_raw(pointer) });
            return Err(error);
        }
        // SAFETY: `cuGraphRetainUserObject` (same section): the graph of an active capture is valid,
        // and our reference moves to it.
        let retained = unsafe {
            driver.graph_retain_user_object(capturing.graph, object, 1, USER_OBJECT_MOVE)
        };
        if retained.is_err() {
            // SAFETY: The reference is still ours; releasing it runs the destructor.
            if let Err(error) = unsafe { driver.user_object_release(object, 1) } {
                tracing::debug!(%error, "a user object could not be released");
            }
        }
        retained
    }
}

fn remember(captures: &mut Vec<Capture>, id: CaptureId) -> &mut Capture {
    let position = match captures.iter().position(|capture| capture.id == id) {
        Some(position) => position,
        None => {
            let foreign = |capture: &Capture| capture.origin.is_none();
            if captures.iter().filter(|capture| foreign(capture)).count() >= FOREIGN_REMEMBERED
                && let Some(oldest) = captures.iter().position(foreign)
            {
                captures.remove(oldest);
            }
            captures.push(Capture::new(id, None));
            captures.len() - 1
        }
    };
    &mut captures[position]
}

/// Drops what [`Capture::give`] boxed. Everything that is given only queues in its drop.
unsafe extern "C" fn drop_value(pointer: *mut c_void) {
    // SAFETY: `Capture::give` made the pointer, and the driver calls this once.
    drop(unsafe { Box::from_raw(pointer.cast::<Owned>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_may_branch_again_once_it_has_joined() {
        let captures = Captures::default();
        let (ours, theirs) = (CaptureId::from_raw(1), CaptureId::from_raw(2));
        let [origin, one, other] = [3, 4, 5].map(StreamId::from_raw);
        captures.begin(ours, origin);
        captures.fork(ours, one).unwrap();
        captures.fork(ours, other).unwrap();
        for open in [origin, one, other] {
            captures.fork(ours, open).unwrap_err();
        }
        // A framework's capture has branches of its own.
        captures.fork(theirs, origin).unwrap();
        captures.join(theirs, one);
        captures.fork(ours, one).unwrap_err();
        captures.join(ours, one);
        captures.fork(ours, one).unwrap();
        captures.fork(ours, other).unwrap_err();
        // What ended is forgotten.
        let _contents = captures.end(ours);
        captures.begin(ours, one);
        captures.fork(ours, other).unwrap();
    }
}
