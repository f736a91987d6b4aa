//! Symmetric buffers of users, for calls that need no staging.

use std::sync::Arc;

use super::Collectives;
use crate::addr::{WindowId, WindowSlice};
use crate::agreement::Record;
use crate::buffer::Buffer;
use crate::communicator::{CommInfo, Communicator};
use crate::dtype::Element;
use crate::error::{CaptureFault, Error, ErrorKind, Field, Misuse, Refusal, Result};
use crate::layered::symmetric_of;
use crate::memory::Memory;
use crate::outcome;
use crate::scratch::{ScratchAllocator, Trimmed};

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
    /// The same on every rank: [`Mismatch`](crate::error::ErrorKind::Mismatch) for different counts or
    /// element types,
    /// [`OutOfMemory`](crate::error::ErrorKind::OutOfMemory) if one rank is out of memory,
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) without symmetric memory,
    /// [`Refused`](ErrorKind::Refused) beyond the windows that the scratch allocator
    /// [allows](ScratchAllocator::max_windows),
    /// [`PeerFailed`](crate::error::ErrorKind::PeerFailed) if one rank cannot allocate for another reason;
    /// [`CaptureFault::WindowChange`] while a capture goes on that calls of this handle were recorded into;
    /// [`Misuse`] if all ask for nothing, or for more than an address can express.
    pub fn symmetric_buffer<T: Element>(&mut self, count: usize) -> Result<Buffer<T>> {
        self.register_buffer::<T>(count)
            .map_err(|error| self.with_context(error, "symmetric_buffer"))
    }

    fn register_buffer<T: Element>(&mut self, count: usize) -> Result<Buffer<T>> {
        let limit = self.scratch.max_windows(&mut self.comm)?;
        // Whatever is wrong on this rank, it takes part in the round, so that no other waits.
        let allocated = match T::DTYPE.bytes(count) {
            Ok(0) => Err(Misuse::EmptyBuffer.into()),
            Ok(_) if self.captures.any_goes_on(&*self.device) => {
                Err(Error::capture(CaptureFault::WindowChange))
            }
            Ok(bytes) if self.windows_with_one_more() > limit.unwrap_or(usize::MAX) => {
                let (windows, limit) = (self.windows_with_one_more(), limit.unwrap_or(usize::MAX));
                let why = Refusal::OverWindows { windows, limit };
                Err(Error::new(ErrorKind::Refused { bytes, why }))
            }
            Ok(bytes) => self.allocate_buffer(bytes),
            Err(error) => Err(error),
        };
        let mine = Record::new()
            .named(Field::Operation, "symmetric_buffer")
            .named(Field::DType, T::DTYPE.name())
            .field(Field::Count, count as u64);
        let mine = outcome::facts(&allocated)
            .into_iter()
            .fold(mine, Record::fact);
        let records = self.comm.agree(&mine, self.deadline)?;
        Record::check_equal(&records)?;
        let memory = outcome::settle(allocated, &records)?;
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
    pub(super) fn retire_buffers(&mut self, call: &'static str) -> Result<Trimmed> {
        let mut trimmed = Trimmed::default();
        if self.buffers.is_empty() {
            return Ok(trimmed);
        }
        let capturing = self.captures.any_goes_on(&*self.device);
        let mut mine = Record::new()
            .named(Field::Operation, call)
            .field(Field::Slots, self.buffers.len() as u64)
            .fact(capturing.into());
        for (memory, _) in &mut self.buffers {
            mine = mine.fact(u64::from(!memory.is_sole_owner()));
        }
        let records = self.comm.agree(&mine, self.deadline)?;
        Record::check_equal(&records)?;
        let told = |fact: usize| {
            let mut records = records.iter();
            records.any(|record| record.facts().get(fact) != Some(&0))
        };
        let capturing = told(0);
        if capturing && call == "trim" {
            return Err(Error::capture(CaptureFault::WindowChange).during(call));
        }
        // Closing goes on, and leaves windows to the communicator.
        let held = |index: usize| capturing || told(1 + index);
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
        let done = Record::new().named(Field::Operation, call);
        self.comm.agree(&done, self.deadline)?;
        for (_, window) in &free {
            symmetric_of(&mut self.comm)?.retire(*window)?;
        }
        trimmed.mapped_bytes = mapped(&free, self.comm.info());
        drop(free);
        self.device.collect();
        settled.map(|()| trimmed)
    }

    /// Windows there would be.
    fn windows_with_one_more(&mut self) -> usize {
        let symmetric = self.comm.symmetric();
        symmetric.map_or(0, |symmetric| symmetric.window_count()) + 1
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
