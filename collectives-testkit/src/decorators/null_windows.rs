//! Registrations that give no window.

use collectives_core::addr::WindowId;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, Result, Unsupported};
use collectives_core::layered::Layer;
use collectives_core::memory::Memory;

/// Every registration succeeds without giving a window, on all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullWindows;

impl Layer for NullWindows {
    fn register(&mut self, _inner: &mut dyn Communicator, _memory: &Memory) -> Result<WindowId> {
        Err(Error::unsupported(Unsupported::NullWindow))
    }

    fn for_child(&self) -> Self {
        *self
    }
}
