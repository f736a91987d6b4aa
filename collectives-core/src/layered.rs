//! Decorators of a communicator.
//!
//! A [`Layer`] overrides the hooks it cares about; [`Layered`] forwards the rest, the children of
//! `split` included.
//!
//! ```
//! use collectives_core::communicator::Communicator;
//! use collectives_core::error::Result;
//! use collectives_core::layered::{Layer, Layered};
//! use collectives_core::submission::Submission;
//!
//! /// Counts calls.
//! #[derive(Debug, Default)]
//! struct Counter(usize);
//!
//! impl Layer for Counter {
//!     fn before_enqueue(
//!         &mut self,
//!         _inner: &mut dyn Communicator,
//!         submission: &Submission<'_>,
//!     ) -> Result<()> {
//!         self.0 += submission.calls.len();
//!         Ok(())
//!     }
//!     fn for_child(&self) -> Self {
//!         Self::default()
//!     }
//! }
//! # fn f<C: Communicator>(comm: C) -> Layered<Counter, C> {
//! Layered::new(Counter::default(), comm)
//! # }
//! ```

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::addr::{Addr, WindowId, WindowSlice};
use crate::agreement::Record;
use crate::collective::Collective;
use crate::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use crate::device::Device;
use crate::error::{Error, Result, Unsupported};
use crate::memory::Memory;
use crate::rank::Rank;
use crate::submission::Submission;
use crate::symmetric::SymmetricMemory;

/// What a decorator may do around the calls of a communicator. Every hook forwards by default.
pub trait Layer: Debug + Send {
    /// Called before anything is enqueued; an error keeps all of it from being enqueued.
    ///
    /// # Errors
    ///
    /// Whatever the decorator is for.
    fn before_enqueue(
        &mut self,
        inner: &mut dyn Communicator,
        submission: &Submission<'_>,
    ) -> Result<()> {
        let _ = (inner, submission);
        Ok(())
    }

    /// Called with the outcome of an enqueue, which it may replace.
    ///
    /// # Errors
    ///
    /// The outcome, unless the decorator changes it.
    fn after_enqueue(
        &mut self,
        inner: &mut dyn Communicator,
        submission: &Submission<'_>,
        outcome: Result<()>,
    ) -> Result<()> {
        let _ = (inner, submission);
        outcome
    }

    /// Hears of a call that its caller refused, as [`Communicator::refused`] says.
    fn refused(
        &mut self,
        inner: &mut dyn Communicator,
        calls: &[Collective<'_>],
        error: Error,
    ) -> Error {
        inner.refused(calls, error)
    }

    /// Exchanges a record.
    ///
    /// # Errors
    ///
    /// As [`Communicator::agree`].
    fn agree(
        &mut self,
        inner: &mut dyn Communicator,
        mine: &Record,
        deadline: Duration,
    ) -> Result<Vec<Record>> {
        inner.agree(mine, deadline)
    }

    /// Allocates symmetric memory.
    ///
    /// # Errors
    ///
    /// As [`SymmetricMemory::allocate`].
    fn allocate(
        &mut self,
        inner: &mut dyn Communicator,
        bytes: usize,
        extend: Option<WindowId>,
    ) -> Result<Memory> {
        symmetric_of(inner)?.allocate(bytes, extend)
    }

    /// Asks for windows that can be extended.
    ///
    /// # Errors
    ///
    /// As [`SymmetricMemory::extensible`].
    fn extensible(&mut self, inner: &mut dyn Communicator) -> Result<usize> {
        symmetric_of(inner)?.extensible()
    }

    /// Registers a window.
    ///
    /// # Errors
    ///
    /// As [`SymmetricMemory::register`].
    fn register(&mut self, inner: &mut dyn Communicator, memory: &Memory) -> Result<WindowId> {
        symmetric_of(inner)?.register(memory)
    }

    /// Retires a window.
    ///
    /// # Errors
    ///
    /// As [`SymmetricMemory::retire`].
    fn retire(&mut self, inner: &mut dyn Communicator, window: WindowId) -> Result<()> {
        symmetric_of(inner)?.retire(window)
    }

    /// Shuts the communicator down.
    ///
    /// # Errors
    ///
    /// As [`Communicator::shutdown`].
    fn shutdown(&mut self, inner: &mut dyn Communicator) -> Result<Deferred> {
        inner.shutdown()
    }

    /// Whether this layer makes a call that differs between ranks fail alike on all of them.
    fn compares_calls(&self) -> bool {
        false
    }

    /// Whether operations still [drain](Capabilities::drains), where those of the communicator do.
    fn drains(&self) -> bool {
        true
    }

    /// The layer around a child of `split`.
    #[must_use]
    fn for_child(&self) -> Self
    where
        Self: Sized;
}

/// The symmetric memory of a communicator.
///
/// # Errors
///
/// The [`Unsupported`] that its capabilities name.
pub fn symmetric_of(comm: &mut dyn Communicator) -> Result<&mut dyn SymmetricMemory> {
    let reason = comm.capabilities().symmetric.clone().err();
    let backend = comm.info().backend;
    comm.symmetric().ok_or_else(|| {
        let missing = || Unsupported::SymmetricMemory("the backend has none".to_owned());
        Error::unsupported(reason.unwrap_or_else(missing)).on_backend(backend)
    })
}

/// A communicator with a layer around it.
#[derive(Debug)]
pub struct Layered<L, C> {
    layer: L,
    inner: C,
    capabilities: Capabilities,
}

impl<L: Layer, C: Communicator> Layered<L, C> {
    /// Puts the layer around the communicator.
    pub fn new(layer: L, inner: C) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.compares_calls |= layer.compares_calls();
        capabilities.drains &= layer.drains();
        Self {
            layer,
            inner,
            capabilities,
        }
    }

    /// The layer.
    pub const fn layer(&self) -> &L {
        &self.layer
    }

    /// The layer, to change it.
    pub const fn layer_mut(&mut self) -> &mut L {
        &mut self.layer
    }

    /// The communicator inside.
    pub const fn inner(&self) -> &C {
        &self.inner
    }
}

impl<L: Layer + 'static, C: Communicator> Communicator for Layered<L, C> {
    fn info(&self) -> &CommInfo {
        self.inner.info()
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.inner.device()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    unsafe fn enqueue(&mut self, submission: &Submission<'_>) -> Result<()> {
        self.layer.before_enqueue(&mut self.inner, submission)?;
        // SAFETY: The caller's promise is passed on unchanged.
        let outcome = unsafe { self.inner.enqueue(submission) };
        self.layer
            .after_enqueue(&mut self.inner, submission, outcome)
    }

    fn refused(&mut self, calls: &[Collective<'_>], error: Error) -> Error {
        self.layer.refused(&mut self.inner, calls, error)
    }

    fn agree(&mut self, mine: &Record, deadline: Duration) -> Result<Vec<Record>> {
        self.layer.agree(&mut self.inner, mine, deadline)
    }

    fn window_of(&self, addr: Addr, bytes: usize) -> Option<WindowSlice> {
        self.inner.window_of(addr, bytes)
    }

    fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory> {
        match self.inner.symmetric() {
            Some(_) => Some(self),
            None => None,
        }
    }

    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Communicator>>> {
        let child = self.inner.split(color, key)?;
        Ok(child.map(|inner| -> Box<dyn Communicator> {
            Box::new(Layered::new(self.layer.for_child(), inner))
        }))
    }

    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }

    fn shutdown(&mut self) -> Result<Deferred> {
        self.layer.shutdown(&mut self.inner)
    }
}

impl<L: Layer, C: Communicator> SymmetricMemory for Layered<L, C> {
    fn allocate(&mut self, bytes: usize, extend: Option<WindowId>) -> Result<Memory> {
        self.layer.allocate(&mut self.inner, bytes, extend)
    }

    fn register(&mut self, memory: &Memory) -> Result<WindowId> {
        self.layer.register(&mut self.inner, memory)
    }

    fn retire(&mut self, window: WindowId) -> Result<()> {
        self.layer.retire(&mut self.inner, window)
    }

    fn extensible(&mut self) -> Result<usize> {
        self.layer.extensible(&mut self.inner)
    }

    fn peer_address(&mut self, window: WindowId, rank: Rank, offset: usize) -> Result<Addr> {
        symmetric_of(&mut self.inner)?.peer_address(window, rank, offset)
    }

    fn window_count(&mut self) -> usize {
        self.inner
            .symmetric()
            .map_or(0, |symmetric| symmetric.window_count())
    }
}
