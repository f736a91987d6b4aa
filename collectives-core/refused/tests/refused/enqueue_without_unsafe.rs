//! Operands of a bare communicator are the caller's promise.

use collectives_core::collective::Collective;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::stream::Stream;

fn enqueues(comm: &mut dyn Communicator, call: Collective<'_>, stream: &Stream) -> Result<()> {
    comm.enqueue(&[call], stream)
}

fn main() {}
