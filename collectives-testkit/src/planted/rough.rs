//! An allocator of its own, small and rough, with one flaw.
//!
//! It shows what the pool does and a first attempt does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collectives_core::addr::{WindowId, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::communicator::{Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, MissedWhen, Misuse, Result};
use collectives_core::layered::symmetric_of;
use collectives_core::memory::Memory;
use collectives_core::path::Reason;
use collectives_core::rank::CaptureId;
use collectives_core::scratch::{
    Lease, LeaseHold, Plan, Request, ScratchAllocator, SlotId, Trimmed,
};
use collectives_core::stats::{SlotStats, Stats};
use collectives_core::stream::{Fence, StreamRef};

use crate::planted::Planted;

#[derive(Debug)]
pub(super) struct Rough {
    flaw: Planted,
    slots: Vec<Slot>,
    seen: u64,
    stats: Stats,
}

#[derive(Debug)]
struct Slot {
    id: SlotId,
    memory: Memory,
    window: WindowId,
    fence: Fence,
    busy: Arc<AtomicBool>,
    uses: u64,
}

impl Rough {
    pub(super) fn new(flaw: Planted) -> Self {
        Self {
            flaw,
            slots: Vec::new(),
            seen: 0,
            stats: Stats::default(),
        }
    }

    fn is(&self, flaw: Planted) -> bool {
        self.flaw == flaw
    }

    fn fit(&self, bytes: usize) -> Option<usize> {
        let fits =
            |slot: &&Slot| slot.memory.bytes() >= bytes && !slot.busy.load(Ordering::Acquire);
        let by_address = self.is(Planted::TiesByAddress);
        let chosen = self.slots.iter().filter(fits).min_by_key(|slot| {
            let tie = if by_address {
                slot.memory.addr().value()
            } else {
                0
            };
            (slot.memory.bytes(), tie, slot.id)
        })?;
        let id = chosen.id;
        self.slots.iter().position(|slot| slot.id == id)
    }

    fn make(&mut self, comm: &mut dyn Communicator, bytes: usize) -> Result<(Memory, WindowId)> {
        let symmetric = symmetric_of(comm)?;
        let memory = symmetric.allocate(bytes, None)?;
        let window = symmetric.register(&memory)?;
        self.stats.registrations += 1;
        Ok((memory, window))
    }

    fn grow(&mut self, comm: &mut dyn Communicator, bytes: usize) -> Result<usize> {
        let room = bytes
            + if self.is(Planted::UnevenOffsets) {
                4096
            } else {
                0
            };
        let largest = self.slots.iter().map(|slot| slot.memory.bytes()).max();
        if self.is(Planted::ReplaceWithoutClaims) {
            for slot in std::mem::take(&mut self.slots) {
                retire(comm, slot)?;
            }
        }
        let grown = if self.is(Planted::TiesByAddress) {
            room
        } else {
            room.max(largest.unwrap_or(0) * 2)
        };
        let fence = comm.device().create_fence()?;
        let (memory, window) = self.make(comm, grown)?;
        self.seen += 1;
        self.slots.push(Slot {
            id: SlotId(self.seen),
            memory,
            window,
            fence,
            busy: Arc::default(),
            uses: 0,
        });
        Ok(self.slots.len() - 1)
    }

    fn move_slot(&mut self, comm: &mut dyn Communicator, index: usize) -> Result<()> {
        let bytes = self.slots[index].memory.bytes();
        let (memory, window) = self.make(comm, bytes)?;
        let slot = &mut self.slots[index];
        let old = std::mem::replace(&mut slot.memory, memory);
        let old_window = std::mem::replace(&mut slot.window, window);
        symmetric_of(comm)?.retire(old_window)?;
        drop(old);
        Ok(())
    }

    fn lend(
        &mut self,
        comm: &dyn Communicator,
        index: usize,
        bytes: usize,
        (stream, capture): (&StreamRef, Option<CaptureId>),
    ) -> Result<Lease> {
        let claims = !self.is(Planted::ReplaceWithoutClaims);
        let shift = match self.flaw {
            Planted::UnevenOffsets => 64 * comm.info().rank.index(),
            _ => 0,
        };
        let slot = &mut self.slots[index];
        let device = Arc::clone(comm.device());
        if capture.is_some() && claims {
            device.retain(stream, slot.memory.clone())?;
        }
        device.wait(&slot.fence, stream)?;
        slot.busy.store(true, Ordering::Release);
        slot.uses += 1;
        let hold = Hold {
            busy: Arc::clone(&slot.busy),
            fence: slot.fence.clone(),
            stream: stream.clone(),
            device,
        };
        let start = WindowSlice {
            comm: comm.info().id,
            window: slot.window,
            offset: shift,
        };
        let memory = if shift == 0 {
            slot.memory.clone()
        } else {
            part(&slot.memory, shift)
        };
        Lease::new(memory, bytes, start, slot.id, Arc::new(hold))
    }
}

/// The memory without its first bytes.
fn part(memory: &Memory, skipped: usize) -> Memory {
    let whole = memory.clone();
    let (addr, bytes) = (memory.addr().offset(skipped), memory.bytes() - skipped);
    // SAFETY: The range lies in `whole`, which the hook keeps until it runs.
    unsafe { Memory::new(memory.device(), addr, bytes, move |_| drop(whole)) }
}

fn retire(comm: &mut dyn Communicator, slot: Slot) -> Result<()> {
    let device = Arc::clone(comm.device());
    let stream = device.create_stream()?;
    device.wait(&slot.fence, &stream)?;
    device.synchronize(&stream)?;
    comm.agree(&Record::new(), Duration::from_secs(20))?;
    symmetric_of(comm)?.retire(slot.window)?;
    drop(slot);
    device.collect();
    Ok(())
}

impl ScratchAllocator for Rough {
    fn name(&self) -> &'static str {
        "rough"
    }

    fn acquire(
        &mut self,
        comm: &mut dyn Communicator,
        request: Request,
        stream: &StreamRef,
        capture: Option<CaptureId>,
    ) -> Result<Lease> {
        if request.bytes == 0 {
            return Err(Misuse::ZeroBytes.into());
        }
        self.stats.requests += 1;
        let room = request.bytes
            + if self.is(Planted::UnevenOffsets) {
                4096
            } else {
                0
            };
        let index = match self.fit(room) {
            Some(index) => index,
            None if capture.is_some() => {
                return Err(Error::new(ErrorKind::NeedsReserve {
                    bytes: request.bytes,
                    domain: "shared".to_owned(),
                    when: MissedWhen::Capturing,
                }));
            }
            None => self.grow(comm, request.bytes)?,
        };
        if self.is(Planted::SlotsMove) && self.slots[index].uses % 8 == 7 {
            self.move_slot(comm, index)?;
        }
        self.lend(comm, index, request.bytes, (stream, capture))
    }

    fn fallback_reason(&self, _error: &Error) -> Option<Reason> {
        None
    }

    fn plan(&mut self, _comm: &mut dyn Communicator, _requests: &[Request]) -> Result<Plan> {
        Ok(Plan::default())
    }

    fn reserve(&mut self, comm: &mut dyn Communicator, requests: &[Request]) -> Result<Plan> {
        for request in requests {
            if self.fit(request.bytes).is_none() {
                self.grow(comm, request.bytes)?;
            }
        }
        Ok(Plan::default())
    }

    fn seal(&mut self) {}

    fn trim(&mut self, _comm: &mut dyn Communicator) -> Result<Trimmed> {
        Ok(Trimmed::default())
    }

    fn close(&mut self, comm: &mut dyn Communicator) -> Result<Deferred> {
        for slot in std::mem::take(&mut self.slots) {
            retire(comm, slot)?;
        }
        Ok(Deferred::default())
    }

    fn stats(&self) -> Stats {
        let slot = |slot: &Slot| SlotStats {
            generation: slot.id.0,
            capacity: slot.memory.bytes(),
            mapped: slot.memory.bytes(),
            leased: slot.busy.load(Ordering::Acquire),
            claimed: false,
            replays: slot.memory.replays(),
            retired: false,
            arena: None,
        };
        Stats {
            slots: self.slots.iter().map(slot).collect(),
            ..self.stats.clone()
        }
    }
}

#[derive(Debug)]
struct Hold {
    busy: Arc<AtomicBool>,
    fence: Fence,
    stream: StreamRef,
    device: Arc<dyn Device>,
}

impl LeaseHold for Hold {
    fn complete(&self) -> Result<()> {
        let recorded = self.device.record(&self.fence, &self.stream);
        self.busy.store(false, Ordering::Release);
        recorded
    }

    fn abandon(&self) {
        let _lost = self.complete();
    }
}
