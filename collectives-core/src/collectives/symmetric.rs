//! Symmetric buffers of users, for calls that need no staging.

use std::sync::Arc;

use super::{Collectives, outcome};
use crate::addr::{WindowId, WindowSlice};
use crate::agreement::Record;
use crate::buffer::Buffer;
use crate::communicator::{CommInfo, Communicator};
use crate::dtype::Element;
use crate::error::{Field, Misuse, Result};
use crate::layered::symmetric_of;
use crate::memory::Memory;
use crate::scratch::{ScratchAllocator, Trimmed};

/// Tells the agreement rounds of buffers from those of scratch.
const BUFFER_ROUND: u64 = 0xb0ff;

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// A buffer in a window of its own, with unspecified contents; collective.
    ///
    /// All ranks pass the same `count`. Calls on it, or on equal slices of it, take the zero-copy
    /// path where a symmetric kernel exists. After the last handle and the last graph that uses it
    /// are gone on every rank, the next [`Collectives::trim`] or [`Collectives::close`] gives the
    /// memory back.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::error::ErrorKind::OutOfMemory) on every rank if one rank is out of memory,
    /// [`Mismatch`](crate::error::ErrorKind::Mismatch) for different counts,
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) without symmetric memory.
    pub fn symmetric_buffer<T: Element>(&mut self, count: usize) -> Result<Buffer<T>> {
        self.register_buffer::<T>(count)
            .map_err(|error| self.with_context(error, "symmetric_buffer"))
    }

    fn register_buffer<T: Element>(&mut self, count: usize) -> Result<Buffer<T>> {
        let bytes = T::DTYPE.bytes(count)?;
        // A rank that asks for nothing takes part in the round, so that the others need not wait.
        let allocated = match bytes {
            0 => Err(Misuse::ZeroBytes.into()),
            _ => self.allocate_buffer(bytes),
        };
        let outcome = Record::new()
            .field(Field::Operation, BUFFER_ROUND)
            .field(Field::Bytes, bytes as u64)
            .fact(u64::from(allocated.is_ok()));
        let records = self.comm.agree(&outcome, self.deadline)?;
        Record::check_equal(&records)?;
        if bytes == 0 {
            return Err(Misuse::ZeroBytes.into());
        }
        let memory = outcome::on_all_ranks(&records, bytes, allocated)?;
        let window = symmetric_of(&mut self.comm)?.register(&memory)?;
        self.buffers.push((memory.clone(), window));
        let slice = WindowSlice {
            comm: self.comm.info().id,
            window,
            offset: 0,
        };
        Ok(Buffer::over(
            Arc::clone(&self.device),
            memory,
            count,
            Some(slice),
        ))
    }

    /// Retires the windows of buffers that nobody owns on any rank, in the order of registration.
    pub(super) fn retire_buffers(&mut self) -> Result<Trimmed> {
        let mut trimmed = Trimmed::default();
        if self.buffers.is_empty() {
            return Ok(trimmed);
        }
        let mut mine = Record::new()
            .field(Field::Operation, BUFFER_ROUND)
            .field(Field::Slots, self.buffers.len() as u64);
        for (memory, _) in &mut self.buffers {
            mine = mine.fact(u64::from(!memory.is_sole_owner()));
        }
        let records = self.comm.agree(&mine, self.deadline)?;
        Record::check_equal(&records)?;
        let held = |index: usize| {
            records
                .iter()
                .any(|record| record.facts().get(index) != Some(&0))
        };
        let (kept, free): (Vec<_>, Vec<_>) = std::mem::take(&mut self.buffers)
            .into_iter()
            .enumerate()
            .partition(|(index, _)| held(*index));
        self.buffers = kept.into_iter().map(|(_, buffer)| buffer).collect();
        let mapped = |buffers: &[(Memory, WindowId)], info: &CommInfo| {
            let mapped = buffers
                .iter()
                .map(|(memory, _)| info.mapped(memory.bytes()));
            mapped.sum()
        };
        trimmed.held_bytes = mapped(&self.buffers, self.comm.info());
        if free.is_empty() {
            return Ok(trimmed);
        }
        let free: Vec<_> = free.into_iter().map(|(_, buffer)| buffer).collect();
        let settled = free.iter().try_for_each(|(memory, _)| self.settle(memory));
        // No window may go while another rank still works on it.
        let done = Record::new().field(Field::Operation, BUFFER_ROUND);
        self.comm.agree(&done, self.deadline)?;
        for (_, window) in &free {
            symmetric_of(&mut self.comm)?.retire(*window)?;
        }
        trimmed.mapped_bytes = mapped(&free, self.comm.info());
        drop(free);
        self.device.collect();
        settled.map(|()| trimmed)
    }

    /// Waits for the last use of a buffer.
    fn settle(&self, memory: &Memory) -> Result<()> {
        let last = memory.lock_last_user().clone();
        last.map_or(Ok(()), |stream| self.device.synchronize(&stream))
    }

    /// Memory for a buffer; decorators may have made it, so it is checked.
    fn allocate_buffer(&mut self, bytes: usize) -> Result<Memory> {
        let memory = symmetric_of(&mut self.comm)?.allocate(bytes, None)?;
        if memory.bytes() < bytes || memory.device() != self.device.id() {
            let why = "it is smaller than asked for, or of another device";
            return Err(Misuse::NotRegistrable { why }.into());
        }
        Ok(memory)
    }
}
