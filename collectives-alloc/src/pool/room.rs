//! Whether there is room for a slot: mapped bytes, windows and addresses.

use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Refusal, Result};
use collectives_core::scratch::SlotId;

use crate::pool::arena::Base;
use crate::pool::{Growing, Pool};

impl Pool {
    /// Whether the rules allow one slot more once `going` are gone. The same on all ranks.
    pub(super) fn check_room(
        &self,
        comm: &mut dyn Communicator,
        growing: &Growing,
        base: Option<&Base>,
        going: &[SlotId],
    ) -> Result<()> {
        let mapped = comm.info().mapped(growing.capacity);
        self.check_limit(growing, base, going, mapped)?;
        self.check_windows(comm, growing, going)?;
        self.check_addresses(growing, going, mapped)
    }

    /// Mapped bytes there would be, each once.
    fn check_limit(
        &self,
        growing: &Growing,
        base: Option<&Base>,
        going: &[SlotId],
        mapped: usize,
    ) -> Result<()> {
        let Some(limit) = self.options.limit else {
            return Ok(());
        };
        let added = mapped - base.map_or(0, |base| base.mapped.min(mapped));
        let staying = self.table.mapped_without(going);
        let mapped = staying.saturating_add(added);
        if mapped <= limit {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Refused {
            bytes: growing.bytes,
            why: Refusal::OverLimit { mapped, limit },
        }))
    }

    /// Windows there would be, also those that are not scratch.
    fn check_windows(
        &self,
        comm: &mut dyn Communicator,
        growing: &Growing,
        going: &[SlotId],
    ) -> Result<()> {
        let Some(limit) = self.options.max_windows else {
            return Ok(());
        };
        let there_are = comm
            .symmetric()
            .map_or(0, |symmetric| symmetric.window_count());
        let windows = (there_are + 1).saturating_sub(going.len());
        if windows <= limit {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Refused {
            bytes: growing.bytes,
            why: Refusal::OverWindows { windows, limit },
        }))
    }
}
