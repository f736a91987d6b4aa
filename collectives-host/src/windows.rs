//! The windows of one communicator on one rank.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collectives_core::addr::{Addr, Operand, WindowId, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::collective::Collective;
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Field, Misuse, Result};
use collectives_core::memory::{KeepAlive, Memory};
use collectives_core::rank::{CommId, Rank};
use collectives_core::round::{self, Call, Rounds};
use collectives_core::symmetric::SymmetricMemory;

use crate::device::HostDevice;
use crate::fabric::lock;
use crate::model;
use crate::seat::{Reach, Seat};
use crate::verdict::Outcome;

/// A registered window. Graphs that captured an operation on it hold it too, so that a shutdown
/// leaves it to them; one that is retired before goes at once, whatever graphs hold it.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) id: WindowId,
    base: Addr,
    pub(crate) bytes: usize,
    /// Where each rank's part begins.
    peers: Box<[Addr]>,
    /// Keeps the bytes mapped until the window is retired, this rank's and, where ranks are
    /// processes, those of the others.
    mapped: Mutex<Option<(KeepAlive, Reach)>>,
}

impl Window {
    /// Where a place in a rank's part is.
    pub(crate) fn part(&self, rank: usize, offset: usize) -> Addr {
        self.peers[rank].offset(offset)
    }

    /// Whether the window was retired, so that no replay may use it.
    pub(crate) fn is_retired(&self) -> bool {
        lock(&self.mapped).is_none()
    }
}

/// The windows registered now, and the rounds of their communicator.
#[derive(Debug)]
pub(crate) struct Windows {
    comm: CommId,
    seat: Arc<dyn Seat>,
    device: Arc<HostDevice>,
    rounds: Rounds,
    /// The next ordinal; never reused.
    next: u64,
    live: BTreeMap<WindowId, Arc<Window>>,
    /// The windows by address.
    by_address: Vec<Arc<Window>>,
    /// Whether memory is allocated so that other ranges can map it too.
    extensible: bool,
}

impl Windows {
    pub(crate) fn new(comm: CommId, seat: Arc<dyn Seat>, device: Arc<HostDevice>) -> Self {
        Self {
            comm,
            seat,
            device,
            rounds: Rounds::new("host/control"),
            next: 0,
            live: BTreeMap::new(),
            by_address: Vec::new(),
            extensible: false,
        }
    }

    /// The window that wholly contains a range.
    pub(crate) fn containing(&self, addr: Addr, bytes: usize) -> Option<WindowSlice> {
        let after = self
            .by_address
            .partition_point(|window| window.base <= addr);
        let window = self.by_address.get(after.checked_sub(1)?)?;
        let offset = addr.value() - window.base.value();
        (offset.checked_add(bytes)? <= window.bytes).then_some(WindowSlice {
            comm: self.comm,
            window: window.id,
            offset,
        })
    }

    /// Checks that an operand lies in the window it names, and gives that window.
    #[inline]
    pub(crate) fn check(
        &self,
        which: &'static str,
        operand: Operand,
    ) -> Result<Option<&Arc<Window>>> {
        let Some(slice) = operand.window else {
            return Ok(None);
        };
        let window = match self.live.get(&slice.window) {
            Some(window) if slice.comm == self.comm => window,
            _ => return Err(Misuse::UnknownWindow.into()),
        };
        let end = slice.offset.checked_add(operand.bytes);
        let inside = end.is_some_and(|end| end <= window.bytes)
            && operand.addr == window.base.offset(slice.offset);
        if inside {
            Ok(Some(window))
        } else {
            Err(Misuse::OutsideWindow { which }.into())
        }
    }

    /// The windows that some calls use, each once.
    #[inline]
    pub(crate) fn of(&self, calls: &[Collective<'_>]) -> Result<Vec<Arc<Window>>> {
        let is_plain =
            |call: &Collective<'_>| call.send.window.is_none() && call.recv.window.is_none();
        match calls.iter().all(is_plain) {
            true => Ok(Vec::new()),
            false => self.used(calls),
        }
    }

    fn used(&self, calls: &[Collective<'_>]) -> Result<Vec<Arc<Window>>> {
        let mut windows: Vec<Arc<Window>> = Vec::new();
        for (which, side) in calls
            .iter()
            .flat_map(|call| [("send", call.send), ("recv", call.recv)])
        {
            if let Some(window) = self.check(which, side)?
                && windows.iter().all(|known| known.id != window.id)
            {
                windows.push(Arc::clone(window));
            }
        }
        Ok(windows)
    }

    pub(crate) fn count(&self) -> usize {
        self.live.len()
    }

    /// Deregisters all windows, oldest first, alone; gives those that graphs still hold.
    pub(crate) fn clear(&mut self) -> Vec<usize> {
        self.by_address.clear();
        let mut held = Vec::new();
        while let Some((id, window)) = self.live.pop_first() {
            self.seat.window_closed(id);
            if Arc::strong_count(&window) > 1 {
                held.push(window.bytes);
            }
        }
        held
    }

    fn check_registrable(&self, memory: &Memory) -> Result<(), Outcome> {
        if memory.device() != self.device.id() {
            return Err(Outcome::WrongDevice);
        }
        if self.device.refuse(model::Call::Register).is_err() {
            return Err(Outcome::Refused);
        }
        let operand = Operand::new(memory.addr(), memory.bytes());
        let overlaps =
            |window: &Arc<Window>| operand.overlaps(Operand::new(window.base, window.bytes));
        if self.by_address.iter().any(overlaps) {
            return Err(Outcome::AlreadyRegistered);
        }
        if !self.device.is_symmetric(memory) || self.seat.place_of(memory).is_none() {
            return Err(Outcome::NotSymmetric);
        }
        if self.device.model().null_windows() {
            return Err(Outcome::NullWindow);
        }
        Ok(())
    }

    fn insert(&mut self, memory: &Memory, peers: Box<[Addr]>, reach: Reach) -> WindowId {
        let id = WindowId(self.next);
        self.next += 1;
        let window = Arc::new(Window {
            id,
            base: memory.addr(),
            bytes: memory.bytes(),
            peers,
            mapped: Mutex::new(Some((memory.keep_alive(), reach))),
        });
        let position = self
            .by_address
            .partition_point(|other| other.base < window.base);
        self.by_address.insert(position, Arc::clone(&window));
        self.seat.window_opened(id, window.base, window.bytes);
        self.live.insert(id, window);
        id
    }

    /// Where all ranks' parts begin, once every rank can reach all of them.
    fn reach(&mut self, memory: &Memory) -> Result<(Box<[Addr]>, Reach)> {
        let place = self.seat.place_of(memory).unwrap_or_default();
        let places = self
            .in_round("the places of register", "register", |call| {
                let (bootstrap, deadline) = (self.seat.bootstrap(), self.seat.deadline());
                self.rounds.run(bootstrap, call, &place, deadline)
            })
            .map_err(|error| self.named(error, "register"))?;
        let reached = self.seat.reach(memory, &places);
        if !self.seat.may_not_reach() {
            return reached.map_err(|_| self.named(Misuse::UnknownWindow.into(), "register"));
        }
        // Reaching is local and may fail on one rank alone.
        let local = reached.as_ref().map(|_| ()).map_err(|&outcome| outcome);
        self.round("the end of register", "register", local.map(|()| []))
            .map_err(|error| self.named(of_bytes(error, memory.bytes()), "register"))?;
        reached.map_err(|_| self.named(Misuse::UnknownWindow.into(), "register"))
    }

    /// Gives every rank the record of every rank, or the same error to all, in a round of the call of this
    /// name.
    pub(crate) fn exchange(
        &self,
        name: &str,
        mine: &Record,
        deadline: Duration,
    ) -> Result<Vec<Record>> {
        let words = mine.call();
        let all = self.in_round(name, words.as_deref().unwrap_or(name), |call| {
            let mine = mine.encode();
            self.rounds
                .run(self.seat.bootstrap(), call, &mine, deadline)
        })?;
        all.iter().map(|bytes| Record::decode(bytes)).collect()
    }

    fn round<const N: usize>(
        &self,
        name: &str,
        words: &str,
        mine: Result<[u64; N], Outcome>,
    ) -> Result<Vec<[u64; N]>> {
        self.in_round(name, words, |call| {
            let (bootstrap, deadline) = (self.seat.bootstrap(), self.seat.deadline());
            self.rounds.agree(bootstrap, call, mine, deadline)
        })
    }

    /// Makes a round of the call of this name, which errors call by these words.
    fn in_round<R>(
        &self,
        name: &str,
        words: &str,
        make: impl FnOnce(Call<'_>) -> Result<R>,
    ) -> Result<R> {
        let seat = &*self.seat;
        seat.check_open()?;
        let rounds = self.rounds.made();
        seat.enter_round(rounds, words)?;
        let here = seat.milestone();
        let made = make(here.call(name, words));
        seat.leave_round(rounds);
        match made {
            Ok(made) => {
                seat.settle(here);
                Ok(made)
            }
            Err(error) => Err(seat.round_failed(error)),
        }
    }

    fn named(&self, error: Error, operation: &'static str) -> Error {
        self.seat.named(error.during(operation))
    }
}

/// A want of memory, with the bytes that were wanted.
fn of_bytes(error: Error, bytes: usize) -> Error {
    match *error.kind() {
        ErrorKind::OutOfMemory { rank, .. } => Error::new(ErrorKind::OutOfMemory { rank, bytes }),
        _ => error,
    }
}

impl SymmetricMemory for Windows {
    fn allocate(&mut self, bytes: usize, extend: Option<WindowId>) -> Result<Memory> {
        self.seat.check_open()?;
        let first = match extend {
            Some(window) => Some(self.live.get(&window).ok_or(Misuse::UnknownWindow)?.base),
            None => None,
        };
        match first.is_some() || self.extensible {
            true => self.device.allocate_arena(bytes, first),
            false => self.device.allocate_symmetric(bytes),
        }
    }

    fn extensible(&mut self) -> Result<usize> {
        self.seat.check_open()?;
        let addresses = self.device.model().aliasing()?;
        self.extensible = true;
        Ok(addresses)
    }

    fn register(&mut self, memory: &Memory) -> Result<WindowId> {
        self.seat.check_open()?;
        let local = self.check_registrable(memory);
        self.round(
            "register",
            "register",
            local.map(|()| [memory.bytes() as u64]),
        )
        .and_then(|all| round::equal(all.into_iter().flatten(), Field::Bytes))
        .map_err(|error| self.named(error, "register"))?;
        let (peers, reach) = self.reach(memory)?;
        Ok(self.insert(memory, peers, reach))
    }

    fn retire(&mut self, window: WindowId) -> Result<()> {
        self.seat.check_open()?;
        let local = if !self.live.contains_key(&window) {
            Err(Outcome::UnknownWindow)
        } else if self.device.refuse(model::Call::Retire).is_err() {
            Err(Outcome::Refused)
        } else {
            Ok(())
        };
        self.round("retire", "retire", local.map(|()| [window.0]))
            .and_then(|all| round::equal(all.into_iter().flatten(), Field::Window))
            .map_err(|error| self.named(error, "retire"))?;
        self.seat.window_closed(window);
        self.by_address.retain(|other| other.id != window);
        if let Some(window) = self.live.remove(&window) {
            // Dropped after the lock is free: the last owner's hook may run.
            let mapped = lock(&window.mapped).take();
            drop(mapped);
        }
        Ok(())
    }

    fn peer_address(&mut self, window: WindowId, rank: Rank, offset: usize) -> Result<Addr> {
        let window = self.live.get(&window).ok_or(Misuse::UnknownWindow)?;
        let base = window
            .peers
            .get(rank.index())
            .ok_or(Misuse::RankOutOfRange {
                rank,
                world_size: window.peers.len(),
            })?;
        if offset > window.bytes {
            return Err(Misuse::OutOfBounds {
                offset,
                bytes: 0,
                available: window.bytes,
            }
            .into());
        }
        Ok(base.offset(offset))
    }

    fn window_count(&mut self) -> usize {
        self.count()
    }
}
