//! Ranks whose addresses are in another order than their peers'.

use collectives_core::addr::WindowId;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::layered::{Layer, symmetric_of};
use collectives_core::memory::Memory;

/// Blocks of one size that are allocated ahead.
const AHEAD: usize = 8;

/// Successive allocations of one size lie higher and higher, eight at a time, or lower and lower.
///
/// Where a rank ascends and a peer descends, what a decision owes to addresses differs, whatever the
/// backend's allocator does.
#[derive(Debug)]
pub struct Sorted {
    descending: bool,
    /// Requests of so many bytes get these, the last one next.
    stock: (usize, Vec<Memory>),
}

impl Sorted {
    /// Ascending addresses, or descending ones.
    #[must_use]
    pub const fn new(descending: bool) -> Self {
        Self {
            descending,
            stock: (0, Vec::new()),
        }
    }
}

impl Layer for Sorted {
    fn allocate(
        &mut self,
        inner: &mut dyn Communicator,
        bytes: usize,
        extend: Option<WindowId>,
    ) -> Result<Memory> {
        let symmetric = symmetric_of(inner)?;
        if extend.is_some() {
            return symmetric.allocate(bytes, extend);
        }
        let (size, stock) = &mut self.stock;
        if *size != bytes || stock.is_empty() {
            let fresh = (0..AHEAD).map(|_| symmetric.allocate(bytes, None));
            (*size, *stock) = (bytes, fresh.collect::<Result<_>>()?);
            stock.sort_by_key(Memory::addr);
            if !self.descending {
                stock.reverse();
            }
        }
        match stock.pop() {
            Some(memory) => Ok(memory),
            None => symmetric.allocate(bytes, None),
        }
    }

    fn for_child(&self) -> Self {
        Self::new(self.descending)
    }
}
