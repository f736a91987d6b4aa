//! Communicators and allocators behind `&mut` and `Box`; no logic.
#![deny(clippy::missing_trait_methods)]

use std::sync::Arc;
use std::time::Duration;

use crate::addr::{Addr, WindowSlice};
use crate::agreement::Record;
use crate::collective::Collective;
use crate::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::path::Reason;
use crate::rank::CaptureId;
use crate::scratch::{Lease, Plan, Request, ScratchAllocator, Splitting, Trimmed};
use crate::stats::Stats;
use crate::stream::StreamRef;
use crate::submission::Submission;
use crate::symmetric::SymmetricMemory;

macro_rules! forward_communicator {
    ($($pointer:ty),+) => {$(
        impl<C: Communicator + ?Sized> Communicator for $pointer {
            fn info(&self) -> &CommInfo {
                (**self).info()
            }

            fn device(&self) -> &Arc<dyn Device> {
                (**self).device()
            }

            fn capabilities(&self) -> &Capabilities {
                (**self).capabilities()
            }

            #[inline(always)]
            unsafe fn enqueue(&mut self, submission: &Submission<'_>) -> Result<()> {
                // SAFETY: The caller's promise is passed on unchanged.
                unsafe { (**self).enqueue(submission) }
            }

            fn refused(&mut self, calls: &[Collective<'_>], error: Error) -> Error {
                (**self).refused(calls, error)
            }

            fn agree(&mut self, mine: &Record, deadline: Duration) -> Result<Vec<Record>> {
                (**self).agree(mine, deadline)
            }

            fn window_of(&self, addr: Addr, bytes: usize) -> Option<WindowSlice> {
                (**self).window_of(addr, bytes)
            }

            fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory> {
                (**self).symmetric()
            }

            fn split(
                &mut self,
                color: Option<u32>,
                key: u32,
            ) -> Result<Option<Box<dyn Communicator>>> {
                (**self).split(color, key)
            }

            fn abort_handle(&self) -> AbortHandle {
                (**self).abort_handle()
            }

            fn shutdown(&mut self) -> Result<Deferred> {
                (**self).shutdown()
            }
        }
    )+};
}

forward_communicator!(&mut C, Box<C>);

macro_rules! forward_allocator {
    ($($pointer:ty),+) => {$(
        impl<A: ScratchAllocator + ?Sized> ScratchAllocator for $pointer {
            fn name(&self) -> &str {
                (**self).name()
            }

            fn acquire(
                &mut self,
                comm: &mut dyn Communicator,
                request: Request,
                stream: &StreamRef,
                capture: Option<CaptureId>,
            ) -> Result<Lease> {
                (**self).acquire(comm, request, stream, capture)
            }

            fn release(&mut self, lease: Lease) -> Result<()> {
                (**self).release(lease)
            }

            fn fallback_reason(&self, error: &Error) -> Option<Reason> {
                (**self).fallback_reason(error)
            }

            fn plan(
                &mut self,
                comm: &mut dyn Communicator,
                requests: &[Request],
            ) -> Result<Plan> {
                (**self).plan(comm, requests)
            }

            fn reserve(
                &mut self,
                comm: &mut dyn Communicator,
                requests: &[Request],
            ) -> Result<Plan> {
                (**self).reserve(comm, requests)
            }

            fn seal(&mut self) {
                (**self).seal();
            }

            fn trim(&mut self, comm: &mut dyn Communicator) -> Result<Trimmed> {
                (**self).trim(comm)
            }

            fn close(&mut self, comm: &mut dyn Communicator) -> Result<Deferred> {
                (**self).close(comm)
            }

            fn stats(&self) -> Stats {
                (**self).stats()
            }

            fn max_windows(&mut self, comm: &mut dyn Communicator) -> Result<Option<usize>> {
                (**self).max_windows(comm)
            }

            fn note_capture(
                &mut self,
                device: &dyn Device,
                capture: CaptureId,
                stream: &StreamRef,
            ) {
                (**self).note_capture(device, capture, stream);
            }

            fn splitting(&self) -> Option<Splitting> {
                (**self).splitting()
            }

            fn note_pieces(&mut self, pieces: u64) {
                (**self).note_pieces(pieces);
            }
        }
    )+};
}

forward_allocator!(&mut A, Box<A>);
