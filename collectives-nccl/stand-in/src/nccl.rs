//! The library of collectives.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_int, c_void};

use crate::streams::current;
use crate::world::{Handle, INVALID_VALUE, Kind, Out, SUCCESS, World, changed, functions, lock};

/// `ncclInternalError`, which a call gets whose communicator was aborted.
const ABORTED: c_int = 3;
/// `ncclInvalidArgument`.
const INVALID_ARGUMENT: c_int = 4;
/// What this library says it is.
const VERSION: c_int = 2_30_07;

/// `ncclUniqueId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct UniqueId([u64; 16]);

/// Communicators, and where their ranks meet.
#[derive(Default)]
pub(crate) struct Library {
    ids: u64,
    communicators: BTreeMap<Handle, Communicator>,
    /// Ranks that came to a meeting: setting up, or registering a window.
    meetings: BTreeMap<(u64, u64), BTreeSet<c_int>>,
    windows: BTreeMap<Handle, Window>,
}

struct Communicator {
    id: u64,
    rank: c_int,
    ranks: usize,
    /// Windows it registered.
    registered: u64,
}

struct Window {
    comm: Handle,
    base: usize,
}

/// Waits until all ranks of a communicator have come to its next meeting.
fn meet(comm: Handle, number: u64) -> c_int {
    let mut locked = lock();
    let Some(here) = locked.get().nccl.communicators.get(&comm) else {
        return INVALID_ARGUMENT;
    };
    let (key, rank, ranks) = ((here.id, number), here.rank, here.ranks);
    locked
        .get()
        .nccl
        .meetings
        .entry(key)
        .or_default()
        .insert(rank);
    changed();
    loop {
        let library = &locked.get().nccl;
        if !library.communicators.contains_key(&comm) {
            return ABORTED;
        }
        if library
            .meetings
            .get(&key)
            .is_some_and(|came| came.len() == ranks)
        {
            return SUCCESS;
        }
        locked = locked.wait();
    }
}

impl World {
    /// Ends a communicator, however.
    fn end_communicator(&mut self, comm: Handle) -> Result<(), c_int> {
        self.end(comm, Kind::Communicator)?;
        self.nccl.communicators.remove(&comm);
        changed();
        Ok(())
    }

    /// Windows that a communicator has still.
    fn windows_of(&self, comm: Handle) -> Vec<Handle> {
        let windows = self.nccl.windows.iter();
        windows
            .filter(|(_, window)| window.comm == comm)
            .map(|(handle, _)| *handle)
            .collect()
    }

    /// A collective: a node where the stream captures. A single rank's all-reduce is a copy.
    fn collective(
        &mut self,
        comm: Handle,
        stream: Handle,
        kernel: &'static CStr,
    ) -> Result<(), c_int> {
        current()?;
        self.check(comm, Kind::Communicator)?;
        self.check(stream, Kind::Stream)?;
        self.add_node(stream, kernel.as_ptr())
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    comm: Out<Handle>,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    _config: *mut c_void,
) -> c_int {
    let mut locked = lock();
    let world = locked.get();
    let name = "ncclCommInitRankConfig";
    if let Err(code) = world.admit(name, format_args!("ranks={ranks} rank={rank}")) {
        return code;
    }
    let handle = world.make(Kind::Communicator);
    let made = Communicator {
        id: id.0[0],
        rank,
        ranks: usize::try_from(ranks).unwrap_or(0),
        registered: 0,
    };
    world.nccl.communicators.insert(handle, made);
    // At once, so that a set-up that waits can be aborted.
    comm.put(handle);
    drop(locked);
    meet(handle, 0)
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
    let arguments = format_args!("comm={comm} bytes={bytes} flags={flags}");
    let admitted = world
        .admit("ncclCommWindowRegister", arguments)
        .and_then(|()| current())
        .and_then(|()| world.check(comm, Kind::Communicator));
    if let Err(code) = admitted {
        return code;
    }
    let Some(registering) = world.nccl.communicators.get_mut(&comm) else {
        return INVALID_ARGUMENT;
    };
    registering.registered += 1;
    let number = registering.registered;
    drop(locked);
    let met = meet(comm, number);
    if met == SUCCESS {
        let mut locked = lock();
        let world = locked.get();
        let handle = world.make(Kind::Window);
        world
            .nccl
            .windows
            .insert(handle, Window { comm, base: buffer });
        window.put(handle);
    }
    met
}

functions! {
    fn ncclGetVersion(version: Out<c_int>) |_world| {
        version.put(VERSION);
        Ok(())
    }
    fn ncclGetUniqueId(id: Out<UniqueId>) |world| {
        world.nccl.ids += 1;
        id.put(UniqueId([world.nccl.ids; 16]));
        Ok(())
    }
    fn ncclCommDestroy(comm: Handle) |world| {
        if !world.windows_of(comm).is_empty() {
            world.wrong.push("a communicator was destroyed before its windows".to_owned());
        }
        world.end_communicator(comm)
    }
    fn ncclCommAbort(comm: Handle) |world| {
        // Its windows go with it.
        for window in world.windows_of(comm) {
            world.nccl.windows.remove(&window);
            world.live.remove(&window);
        }
        world.end_communicator(comm)
    }
    fn ncclCommWindowDeregister(comm: Handle, window: Handle) |world| {
        current()?;
        world.check(comm, Kind::Communicator)?;
        world.end(window, Kind::Window)?;
        world.nccl.windows.remove(&window);
        Ok(())
    }
    fn ncclGetPeerDevicePointer(window: Handle, offset: usize, _peer: c_int, pointer: Out<usize>) |world| {
        world.check(window, Kind::Window)?;
        let base = world.nccl.windows.get(&window).map(|window| window.base);
        pointer.put(base.ok_or(INVALID_ARGUMENT)? + offset);
        Ok(())
    }
    fn ncclRedOpCreatePreMulSum(
        operator: Out<c_int>,
        _scalar: *mut c_void,
        _dtype: c_int,
        _residence: c_int,
        comm: Handle,
    ) |world| {
        world.check(comm, Kind::Communicator)?;
        let handle = world.make(Kind::Operator);
        // Codes from 5 on are made by this call.
        operator.put(c_int::try_from(handle & 0xff_ffff).map_err(|_| INVALID_VALUE)? | 0x100_0000);
        Ok(())
    }
    fn ncclRedOpDestroy(operator: c_int, comm: Handle) |world| {
        world.check(comm, Kind::Communicator)?;
        let handle = world.live.iter().find(|(handle, kind)| {
            **kind == Kind::Operator
                && c_int::try_from(**handle & 0xff_ffff).is_ok_and(|low| low | 0x100_0000 == operator)
        });
        let handle = handle.map(|(handle, _)| *handle);
        world.end(handle.unwrap_or(0), Kind::Operator)
    }
    fn ncclGroupStart() |_world| {
        Ok(())
    }
    fn ncclGroupEnd() |_world| {
        Ok(())
    }
    fn ncclAllReduce(
        send: usize,
        recv: usize,
        count: usize,
        dtype: c_int,
        op: c_int,
        comm: Handle,
        stream: Handle,
    ) |world| {
        world.collective(comm, stream, c"ncclSymkDevKernel_AllReduce")
    }
    fn ncclReduce(
        send: usize,
        recv: usize,
        count: usize,
        dtype: c_int,
        op: c_int,
        root: c_int,
        comm: Handle,
        stream: Handle,
    ) |world| {
        world.collective(comm, stream, c"ncclDevKernel_Reduce")
    }
    fn ncclBroadcast(
        send: usize,
        recv: usize,
        count: usize,
        dtype: c_int,
        root: c_int,
        comm: Handle,
        stream: Handle,
    ) |world| {
        world.collective(comm, stream, c"ncclDevKernel_Broadcast")
    }
    fn ncclAllGather(
        send: usize,
        recv: usize,
        count: usize,
        dtype: c_int,
        comm: Handle,
        stream: Handle,
    ) |world| {
        world.collective(comm, stream, c"ncclSymkDevKernel_AllGather")
    }
    fn ncclReduceScatter(
        send: usize,
        recv: usize,
        count: usize,
        dtype: c_int,
        op: c_int,
        comm: Handle,
        stream: Handle,
    ) |world| {
        world.collective(comm, stream, c"ncclSymkDevKernel_ReduceScatter")
    }
    fn ncclSend(send: usize, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Handle) |world| {
        world.collective(comm, stream, c"ncclDevKernel_SendRecv")
    }
    fn ncclRecv(recv: usize, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Handle) |world| {
        world.collective(comm, stream, c"ncclDevKernel_SendRecv")
    }
}

/// The text of a code.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    match code {
        ABORTED => c"internal error".as_ptr(),
        INVALID_ARGUMENT => c"invalid argument".as_ptr(),
        _ => c"an error that was planted".as_ptr(),
    }
}

/// There is no more to say.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_comm: Handle) -> *const c_char {
    c"".as_ptr()
}
