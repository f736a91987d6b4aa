//! Windows of symmetric memory, and their registration on all ranks alike.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use collectives_core::addr::{Addr, Operand, WindowId, WindowSlice};
use collectives_core::device::Device;
use collectives_core::error::{Error, Field, Misuse, Result, Unsupported};
use collectives_core::memory::{KeepAlive, Memory};
use collectives_core::rank::{CommId, Rank};
use collectives_core::round::{self, Call, Rounds};
use collectives_core::symmetric::SymmetricMemory;
use nccl_sys::WindowFlags;

use crate::addresses;
use crate::convert;
use crate::device::{CudaDevice, address};
use crate::error::nccl_error;
use crate::state::{State, lock};
use crate::verdict::Outcome;

/// `NCCL_WIN_REQUIRED_ALIGNMENT`.
const ALIGNMENT: usize = 4096;

/// A registered window. It keeps the bytes mapped and is no owner of them.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) native: nccl_sys::Window,
    #[expect(dead_code, reason = "held for its drop, after the window's end")]
    mapped: KeepAlive,
}

/// The windows of one communicator on one rank.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Windows {
    /// Where the live windows are, ascending by ordinal: what a call looks up without a lock.
    places: Vec<Place>,
    comm: CommId,
    state: Arc<State>,
    device: Arc<CudaDevice>,
    rounds: Arc<Rounds>,
    /// The next ordinal; never reused.
    next: u64,
}

/// Where a window lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    window: WindowId,
    base: Addr,
    bytes: usize,
}

impl Windows {
    pub(crate) fn new(
        comm: CommId,
        state: Arc<State>,
        device: Arc<CudaDevice>,
        rounds: Arc<Rounds>,
    ) -> Self {
        Self {
            comm,
            state,
            device,
            rounds,
            next: 0,
            places: Vec::new(),
        }
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<WindowId, Window>> {
        lock(&self.state.windows)
    }

    /// The window that wholly contains a range.
    pub(crate) fn containing(&self, addr: Addr, bytes: usize) -> Option<WindowSlice> {
        self.places.iter().find_map(|place| {
            let offset = addr.value().checked_sub(place.base.value())?;
            (offset.checked_add(bytes)? <= place.bytes).then_some(WindowSlice {
                comm: self.comm,
                window: place.window,
                offset,
            })
        })
    }

    /// The place of a live window.
    #[inline(always)]
    fn place(&self, window: WindowId) -> Option<&Place> {
        // Windows are numbered as they come, so as long as none has gone it is where its number says.
        let first = self.places.first()?.window.0;
        let guess = usize::try_from(window.0.wrapping_sub(first)).ok();
        match guess.and_then(|index| self.places.get(index)) {
            Some(place) if place.window == window => Some(place),
            _ => self.place_among_gaps(window),
        }
    }

    #[inline(never)]
    fn place_among_gaps(&self, window: WindowId) -> Option<&Place> {
        let index = self
            .places
            .binary_search_by_key(&window, |place| place.window);
        index.ok().map(|index| &self.places[index])
    }

    /// Checks that an operand lies in the window it names.
    #[inline(always)]
    pub(crate) fn check(&self, which: &'static str, operand: Operand) -> Result<()> {
        let Some(slice) = operand.window else {
            return Ok(());
        };
        let fits = |place: &Place| {
            let end = slice.offset.checked_add(operand.bytes);
            end.is_some_and(|end| end <= place.bytes)
                && operand.addr == place.base.offset(slice.offset)
        };
        let place = self.place(slice.window);
        match place.filter(|_| slice.comm == self.comm) {
            Some(place) if fits(place) => Ok(()),
            place => Err(outside(which, place)),
        }
    }

    /// Windows that have not been deregistered.
    pub(crate) fn count(&self) -> usize {
        self.live().len()
    }

    /// Bytes of the windows there are.
    pub(crate) fn bytes(&self) -> Vec<usize> {
        self.places.iter().map(|place| place.bytes).collect()
    }

    fn check_registrable(&self, memory: &Memory) -> Result<(), Outcome> {
        if memory.device() != self.device.id() {
            return Err(Outcome::WrongDevice);
        }
        let operand = Operand::new(memory.addr(), memory.bytes());
        let overlaps = |place: &Place| operand.overlaps(Operand::new(place.base, place.bytes));
        if self.places.iter().any(overlaps) {
            return Err(Outcome::AlreadyRegistered);
        }
        if memory.bytes() == 0 || !memory.addr().value().is_multiple_of(ALIGNMENT) {
            return Err(Outcome::NotSymmetric);
        }
        if !self.is_suitable(memory) {
            return Err(Outcome::NotSymmetric);
        }
        Ok(())
    }

    /// Whether the memory is physical memory that was mapped by somebody; memory of `cuMemAlloc`
    /// would make NCCL fail half way.
    fn is_suitable(&self, memory: &Memory) -> bool {
        let shared = &self.device.shared;
        let ours = shared
            .blocks()
            .is_ok_and(|blocks| blocks.find(memory.addr(), memory.bytes()).is_some());
        if ours {
            return true;
        }
        let Ok(_current) = shared.context.enter_relaxed() else {
            return false;
        };
        let mut handle = 0;
        let driver = shared.driver();
        // SAFETY: `cuMemRetainAllocationHandle` (cuda.h, "Virtual Memory Management") takes any
        // address and fails for memory that was made otherwise.
        let retained = unsafe { driver.mem_retain_handle(&raw mut handle, memory.addr().as_ptr()) };
        if retained.is_err() {
            return false;
        }
        // SAFETY: `cuMemRelease` (same section) undoes the retain.
        unsafe { driver.mem_release(handle) }.is_ok()
    }

    /// The words of all ranks after one round, or the same error everywhere.
    fn round<const N: usize>(
        &self,
        (name, words): (&str, &str),
        mine: Result<[u64; N], Outcome>,
    ) -> Result<Vec<[u64; N]>> {
        let state = &*self.state;
        let call = Call::named(name).in_words(words);
        let call = call.after(state.operations(), false);
        self.rounds
            .agree(&*state.bootstrap, call, mine, state.options.deadline)
            .map_err(|error| state.own_failure(error))
    }

    fn register_checked(&mut self, memory: &Memory) -> Result<WindowId> {
        let mine = self.check_registrable(memory);
        let all = self.round(
            ("register", "register"),
            mine.map(|()| [memory.bytes() as u64]),
        )?;
        round::equal(all.into_iter().flatten(), Field::Bytes)?;
        let native = self.register_native(memory)?;
        let local = match native.is_null() {
            true => Err(Outcome::NullWindow),
            false => Ok(()),
        };
        if let Err(error) = self.round(("the end of register", "register"), local.map(|()| [])) {
            if local.is_ok() {
                self.deregister(native)?;
            }
            return Err(error);
        }
        let id = WindowId(self.next);
        self.next += 1;
        self.live().insert(
            id,
            Window {
                native,
                mapped: memory.keep_alive(),
            },
        );
        self.places.push(Place {
            window: id,
            base: memory.addr(),
            bytes: memory.bytes(),
        });
        Ok(id)
    }

    /// Every rank comes here or none; a failure leaves NCCL in an unknown state.
    fn register_native(&self, memory: &Memory) -> Result<nccl_sys::Window> {
        let _current = self.device.shared.context.enter_relaxed()?;
        let mut window = nccl_sys::Window::NULL;
        self.state
            .with_comm_blocking("registration", |nccl, comm| {
                // SAFETY: `ncclCommWindowRegister` (nccl.h): the range is mapped until the window is
                // gone, all ranks have agreed to call it, and the out pointer lives until it returns,
                // because the communicator is a blocking one.
                unsafe {
                    nccl.comm_window_register(
                        comm,
                        memory.addr().as_ptr(),
                        memory.bytes(),
                        &raw mut window,
                        WindowFlags::COLL_SYMMETRIC.0,
                    )
                }
                .map_err(nccl_error)
            })?;
        Ok(window)
    }

    fn deregister(&self, native: nccl_sys::Window) -> Result<()> {
        let _current = self.device.shared.context.enter_relaxed()?;
        self.state.with_comm(|nccl, comm| {
            // SAFETY: `ncclCommWindowDeregister` (nccl.h): registered with this communicator and
            // not deregistered yet; no work uses it, as `retire` demands.
            unsafe { nccl.comm_window_deregister(comm, native) }.map_err(nccl_error)
        })
    }

    fn retire_checked(&mut self, window: WindowId) -> Result<()> {
        let local = self.place(window).map(drop).ok_or(Outcome::UnknownWindow);
        let all = self.round(("retire", "retire"), local.map(|()| [window.0]))?;
        round::equal(all.into_iter().flatten(), Field::Window)?;
        self.places.retain(|place| place.window != window);
        let removed = self.live().remove(&window);
        match removed {
            Some(window) => self.deregister(window.native),
            None => Ok(()),
        }
    }

    fn peer(&self, window: WindowId, rank: Rank, offset: usize) -> Result<Addr> {
        let world_size = self.state.bootstrap.world_size();
        if rank.index() >= world_size {
            return Err(Misuse::RankOutOfRange { rank, world_size }.into());
        }
        let place = self.place(window).ok_or(Misuse::UnknownWindow)?;
        if offset > place.bytes {
            return Err(Misuse::OutOfBounds {
                offset,
                bytes: 0,
                available: place.bytes,
            }
            .into());
        }
        if rank == self.state.rank() {
            // The memory's own address, so that a kernel sees its bytes at one address only.
            return Ok(place.base.offset(offset));
        }
        let native = self.live().get(&window).map(|window| window.native);
        let (native, peer) = (native.ok_or(Misuse::UnknownWindow)?, convert::rank(rank)?);
        let _current = self.device.shared.context.enter_relaxed()?;
        let mut pointer = std::ptr::null_mut();
        self.state.with_comm(|nccl, _| {
            // SAFETY: `ncclGetPeerDevicePointer` (nccl_device/core.h): the window is registered.
            unsafe { nccl.get_peer_device_pointer(native, offset, peer, &raw mut pointer) }
                .map_err(nccl_error)
        })?;
        if pointer.is_null() {
            let text = format!("rank {rank} cannot be reached by loads and stores");
            return Err(Error::unsupported(Unsupported::Operation(text)));
        }
        Ok(address(pointer.expose_provenance() as u64))
    }

    fn check_extensible(&self) -> Result<()> {
        let checked = addresses::check(self.state.nccl.version());
        checked.map_err(|error| self.state.named(error.during("allocate")))
    }

    fn outcome<T>(&self, result: Result<T>, operation: &'static str) -> Result<T> {
        result.map_err(|error| self.state.note(error.during(operation)))
    }
}

/// What is wrong with an operand's window, which is not there or lies elsewhere.
#[cold]
fn outside(which: &'static str, place: Option<&Place>) -> Error {
    match place {
        None => Misuse::UnknownWindow.into(),
        Some(_) => Misuse::OutsideWindow { which }.into(),
    }
}

impl SymmetricMemory for Windows {
    fn allocate(&mut self, bytes: usize, extend: Option<WindowId>) -> Result<Memory> {
        self.state.check_open()?;
        let first = match extend {
            None => None,
            Some(window) => {
                self.check_extensible()?;
                let place = self.place(window).ok_or(Misuse::UnknownWindow)?;
                let blocks = self.device.shared.blocks()?;
                let why = "only memory that was allocated here can be extended";
                Some(
                    blocks
                        .find(place.base, place.bytes)
                        .ok_or(Misuse::NotRegistrable { why })?,
                )
            }
        };
        self.device
            .allocate_symmetric(bytes, first, self.state.rank())
            .map_err(|error| self.state.named(error.during("allocate")))
    }

    fn extensible(&mut self) -> Result<usize> {
        self.state.check_open()?;
        self.check_extensible()?;
        let (_, total) = self.device.memory_info()?;
        Ok(addresses::budget(total))
    }

    fn register(&mut self, memory: &Memory) -> Result<WindowId> {
        self.state.check_open()?;
        let registered = self.register_checked(memory);
        self.outcome(registered, "register")
    }

    fn retire(&mut self, window: WindowId) -> Result<()> {
        self.state.check_open()?;
        let retired = self.retire_checked(window);
        self.outcome(retired, "retire")
    }

    fn peer_address(&mut self, window: WindowId, rank: Rank, offset: usize) -> Result<Addr> {
        self.state.check_open()?;
        let peer = self.peer(window, rank, offset);
        peer.map_err(|error| self.state.named(error.during("peer_address")))
    }

    fn window_count(&mut self) -> usize {
        self.count()
    }
}
