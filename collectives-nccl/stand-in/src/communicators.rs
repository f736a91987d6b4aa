//! Communicators: how ranks meet, and how they part.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::arithmetic::{self, Reduction};
use crate::collectives::{Arrival, Key};
use crate::devices::current;
use crate::windows::Window;
use crate::world::{Handle, INVALID_VALUE, Kind, Out, SUCCESS, World, changed, functions, lock};

/// `ncclInternalError`, which a call gets whose communicator was aborted.
const ABORTED: c_int = 3;
/// `ncclInvalidArgument`.
pub(crate) const INVALID_ARGUMENT: c_int = 4;
/// What this library says it is, unless it was told otherwise.
const VERSION: c_int = 2_30_07;
/// Says otherwise.
const VERSION_VARIABLE: &str = "STAND_IN_NCCL_VERSION";

/// `ncclUniqueId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct UniqueId([u64; 16]);

/// What `ncclConfig_t` begins with.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// Communicators, and where their ranks meet.
#[derive(Default)]
pub(crate) struct Library {
    ids: u64,
    pub(crate) communicators: BTreeMap<Handle, Communicator>,
    /// What ranks bring to a meeting: setting up, or registering a window.
    meetings: BTreeMap<(u64, u64), BTreeMap<c_int, usize>>,
    pub(crate) windows: BTreeMap<Handle, Window>,
    /// Numbers of the windows that the ranks of a communicator deregister, in order.
    pub(crate) deregistered: BTreeMap<u64, Vec<u64>>,
    /// Windows that a rank was refused, by the ranks they belong to and number.
    pub(crate) refused: BTreeSet<(u64, u64)>,
    /// Ranks that came to a collective.
    pub(crate) arrivals: BTreeMap<Key, BTreeMap<c_int, Arrival>>,
    operators: BTreeMap<c_int, Operator>,
}

pub(crate) struct Communicator {
    pub(crate) id: u64,
    pub(crate) rank: c_int,
    pub(crate) ranks: usize,
    /// Windows it registered, and deregistered.
    pub(crate) registered: u64,
    pub(crate) deregistered: usize,
    /// Collectives that were enqueued on it, and halves of messages, by which, sender and receiver.
    pub(crate) collectives: u64,
    pub(crate) messages: BTreeMap<(c_int, c_int, c_int), u64>,
}

/// A reduction that was made for one communicator and element type.
struct Operator {
    comm: Handle,
    dtype: c_int,
    scalar: [u8; 8],
    handle: Handle,
}

thread_local! {
    /// Whether this thread stays away from its next meeting, as a process does that was stopped.
    pub(crate) static AWAY: Cell<bool> = const { Cell::new(false) };
}

/// Whether this library is at least this version.
pub(crate) fn is_at_least(version: c_int) -> bool {
    self::version() >= version
}

fn version() -> c_int {
    let told = std::env::var(VERSION_VARIABLE).ok();
    told.and_then(|told| told.parse().ok()).unwrap_or(VERSION)
}

/// Waits until all ranks of a communicator have come to its next meeting, and brought the same.
pub(crate) fn meet(comm: Handle, number: u64, what: &str, brought: usize) -> c_int {
    let mut locked = lock();
    let world = locked.get();
    let Some(here) = world.nccl.communicators.get(&comm) else {
        return INVALID_ARGUMENT;
    };
    let (key, rank, ranks) = ((here.id, number), here.rank, here.ranks);
    let meeting = world.nccl.meetings.entry(key).or_default();
    if !AWAY.take() {
        meeting.insert(rank, brought);
    }
    if meeting.values().any(|other| *other != brought) {
        let text = format!("ranks that differ in {what}: {meeting:?}");
        world.wrong.push(text);
    }
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
        self.abandon(comm);
        self.advance();
        changed();
        Ok(())
    }

    /// The reduction that a number is on this communicator and for this type.
    pub(crate) fn reduction(
        &mut self,
        number: c_int,
        comm: Handle,
        dtype: c_int,
    ) -> Result<Reduction, c_int> {
        if let Some(known) = Reduction::of(number) {
            return Ok(known);
        }
        let made = self.nccl.operators.get(&number);
        let made = made.filter(|made| made.comm == comm && made.dtype == dtype);
        made.map(|made| Reduction::Scaled(made.scalar))
            .ok_or_else(|| {
                self.wrong
                    .push(format!("{number} is no reduction of type {dtype} here"));
                INVALID_ARGUMENT
            })
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    comm: Out<Handle>,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> c_int {
    let mut locked = lock();
    let world = locked.get();
    let name = "ncclCommInitRankConfig";
    // SAFETY: nccl.h has the caller pass null or a configuration, which begins like this.
    let config = unsafe { config.as_ref() }.copied();
    let arguments = format_args!("ranks={ranks} rank={rank} config={config:?}");
    if let Err(code) = world.admit(name, arguments).and_then(|()| current()) {
        return code;
    }
    let handle = world.make(Kind::Communicator);
    let made = Communicator {
        id: id.0[0],
        rank,
        ranks: usize::try_from(ranks).unwrap_or(0),
        registered: 0,
        deregistered: 0,
        collectives: 0,
        messages: BTreeMap::new(),
    };
    world.nccl.communicators.insert(handle, made);
    // At once, so that a set-up that waits can be aborted.
    comm.put(handle);
    drop(locked);
    meet(
        handle,
        0,
        "how many they are",
        usize::try_from(ranks).unwrap_or(0),
    )
}

functions! {
    fn ncclGetVersion(version: Out<c_int>) |_world| {
        version.put(self::version());
        Ok(())
    }
    fn ncclGetUniqueId(id: Out<UniqueId>) |world| {
        world.nccl.ids += 1;
        id.put(UniqueId([world.nccl.ids; 16]));
        Ok(())
    }
    fn ncclCommDestroy(comm: Handle) |world| {
        if world.has_windows(comm) {
            world.wrong.push("a communicator was destroyed before its windows".to_owned());
        }
        if world.is_captured(comm) {
            world.wrong.push("a communicator was destroyed before its graphs".to_owned());
        }
        if world.has_work(comm) {
            world.wrong.push("a communicator was destroyed before its work".to_owned());
        }
        world.end_communicator(comm)
    }
    fn ncclCommAbort(comm: Handle) |world| {
        world.forget_windows(comm);
        world.end_communicator(comm)
    }
    fn ncclRedOpCreatePreMulSum(
        operator: Out<c_int>,
        scalar: *const c_void,
        dtype: c_int,
        residence: c_int,
        comm: Handle,
    ) |world| {
        world.check(comm, Kind::Communicator)?;
        let size = arithmetic::size(dtype).ok_or(INVALID_ARGUMENT)?;
        if residence != 1 {
            // A scalar in memory of the device, which this backend never has.
            return Err(INVALID_ARGUMENT);
        }
        let mut bytes = [0; 8];
        // SAFETY: nccl.h has the caller pass an element of the type.
        bytes[..size].copy_from_slice(unsafe { std::slice::from_raw_parts(scalar.cast(), size) });
        let handle = world.make(Kind::Operator);
        // Numbers from 5 on are made by this call.
        let number = c_int::try_from(handle & 0xff_ffff).map_err(|_| INVALID_VALUE)? | 0x100_0000;
        world.note(format_args!("operator={number} scalar={:?}", &bytes[..size]));
        world.nccl.operators.insert(number, Operator { comm, dtype, scalar: bytes, handle });
        operator.put(number);
        Ok(())
    }
    fn ncclRedOpDestroy(operator: c_int, comm: Handle) |world| {
        world.check(comm, Kind::Communicator)?;
        let found = world.nccl.operators.remove(&operator);
        let handle = found.filter(|found| found.comm == comm).map(|found| found.handle);
        world.end(handle.unwrap_or(0), Kind::Operator)
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
