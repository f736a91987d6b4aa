//! Few addresses for windows.

use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::layered::{Layer, symmetric_of};

/// Windows that are extended may take this many bytes of addresses, or what the backend has, if that
/// is less. Ranks may differ; the least counts.
#[derive(Clone, Copy, Debug)]
pub struct FewAddresses(pub usize);

impl Layer for FewAddresses {
    fn extensible(&mut self, inner: &mut dyn Communicator) -> Result<usize> {
        Ok(symmetric_of(inner)?.extensible()?.min(self.0))
    }

    fn for_child(&self) -> Self {
        *self
    }
}
