//! Domains of streams that are gone: their slots serve other streams.

use collectives_core::communicator::Communicator;
use collectives_core::error::Result;

use crate::options::DomainMode;
use crate::pool::Pool;
use crate::pool::round::{Ballot, Step, Subject};

impl Pool {
    /// Puts the slots of streams that are gone on all ranks into the shared domain, from where any stream
    /// takes them over; whether there were any. Indices of domains change then.
    ///
    /// Ranks drop a stream at different times, so they vote, and come here in the same calls: a miss, and
    /// `reserve`. The domain at `but`, whose stream the call is on, is left out. Where the caller orders
    /// uses, a slot stays with its stream, because nothing would order the next one.
    pub(super) fn take_back_from_gone(
        &mut self,
        comm: &mut dyn Communicator,
        but: Option<usize>,
    ) -> Result<bool> {
        if self.options.domain != DomainMode::Stream || !self.orders_by_events {
            return Ok(false);
        }
        let lent = self.table.lent_to_streams(but);
        if lent.is_empty() {
            return Ok(false);
        }
        let gone = self.table.lent_to_gone();
        let ballot = Ballot::new(lent, |slot| gone.binary_search(&slot).is_err());
        let facts = ballot.facts(0);
        let records = self.round(comm, Step::Gone, Subject::default(), &facts)?;
        let gone = ballot.free(&records);
        self.table.share(&gone);
        Ok(!gone.is_empty())
    }
}
