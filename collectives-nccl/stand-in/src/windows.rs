//! Windows: what ranks register alike, and what kernels find in them.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use crate::communicators::{INVALID_ARGUMENT, meet};
use crate::devices::current;
use crate::world::{Handle, Kind, Out, SUCCESS, World, functions, lock};

pub(crate) struct Window {
    comm: Handle,
    /// The ranks it belongs to, and which of their windows it is.
    id: u64,
    number: u64,
    rank: c_int,
    base: usize,
    bytes: usize,
}

thread_local! {
    /// Whether the next window that this thread registers is refused.
    pub(crate) static REFUSES: Cell<bool> = const { Cell::new(false) };
}

impl World {
    fn windows_of(&self, comm: Handle) -> Vec<Handle> {
        let windows = self.nccl.windows.iter();
        windows
            .filter(|(_, window)| window.comm == comm)
            .map(|(handle, _)| *handle)
            .collect()
    }

    pub(crate) fn has_windows(&self, comm: Handle) -> bool {
        !self.windows_of(comm).is_empty()
    }

    /// Windows go with a communicator that is aborted.
    pub(crate) fn forget_windows(&mut self, comm: Handle) {
        for window in self.windows_of(comm) {
            self.nccl.windows.remove(&window);
            self.live.remove(&window);
        }
    }

    /// The window that an operand begins in, by number, and where; only the first byte counts.
    pub(crate) fn window_at(&self, comm: Handle, address: usize) -> Option<(u64, usize)> {
        let mut windows = self
            .nccl
            .windows
            .values()
            .filter(|window| window.comm == comm);
        windows.find_map(|window| {
            let offset = address.checked_sub(window.base)?;
            (offset < window.bytes).then_some((window.number, offset))
        })
    }

    /// Notes ranks that deregister their windows in different orders.
    fn note_deregistered(&mut self, comm: Handle, number: u64) {
        let Some(rank) = self.nccl.communicators.get_mut(&comm) else {
            return;
        };
        if self.nccl.refused.contains(&(rank.id, number)) {
            // Not all have it.
            return;
        }
        let order = self.nccl.deregistered.entry(rank.id).or_default();
        match order.get(rank.deregistered) {
            None => order.push(number),
            Some(other) if *other == number => {}
            Some(other) => self.wrong.push(format!(
                "rank {} deregisters window {number} where another deregistered {other}",
                rank.rank
            )),
        }
        rank.deregistered += 1;
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommWindowRegister(
    comm: Handle,
    buffer: usize,
    bytes: usize,
    window: Out<Handle>,
    flags: c_int,
) -> c_int {
    let mut locked = lock();
    let world = locked.get();
    let arguments = format_args!("comm={comm} buffer={buffer} bytes={bytes} flags={flags}");
    let admitted = world
        .admit("ncclCommWindowRegister", arguments)
        .and_then(|()| current())
        .and_then(|_| world.check(comm, Kind::Communicator));
    if let Err(code) = admitted {
        return code;
    }
    if !world.ranges.has(buffer, bytes) {
        world.wrong.push(format!(
            "{bytes} bytes at {buffer:#x} are not there, and are registered"
        ));
        return INVALID_ARGUMENT;
    }
    let Some(rank) = world.nccl.communicators.get_mut(&comm) else {
        return INVALID_ARGUMENT;
    };
    rank.registered += 1;
    let (id, number, rank) = (rank.id, rank.registered, rank.rank);
    drop(locked);
    let met = meet(comm, number, "the bytes of a window", bytes);
    if met != SUCCESS {
        return met;
    }
    let mut locked = lock();
    let world = locked.get();
    if REFUSES.take() {
        world.nccl.refused.insert((id, number));
        return met;
    }
    let handle = world.make(Kind::Window);
    let made = Window {
        comm,
        id,
        number,
        rank,
        base: buffer,
        bytes,
    };
    world.nccl.windows.insert(handle, made);
    window.put(handle);
    met
}

functions! {
    fn ncclCommWindowDeregister(comm: Handle, window: Handle) |world| {
        current()?;
        world.check(comm, Kind::Communicator)?;
        world.end(window, Kind::Window)?;
        if let Some(window) = world.nccl.windows.remove(&window) {
            world.note_deregistered(comm, window.number);
            if let Some(work) = world.work_on(window.base, window.bytes) {
                world.wrong.push(format!("a window was deregistered under {work}"));
            }
        }
        Ok(())
    }
    fn ncclGetPeerDevicePointer(window: Handle, offset: usize, peer: c_int, pointer: Out<*mut c_void>) |world| {
        world.check(window, Kind::Window)?;
        let windows = &world.nccl.windows;
        let mine = windows.get(&window).ok_or(INVALID_ARGUMENT)?;
        let mut peers = windows.values().filter(|other| (other.id, other.number) == (mine.id, mine.number));
        let theirs = peers.find(|other| other.rank == peer).ok_or(INVALID_ARGUMENT)?;
        pointer.put(std::ptr::with_exposed_provenance_mut(theirs.base + offset));
        Ok(())
    }
}
