//! Operands of a bare communicator are the caller's promise.

use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::submission::Submission;

fn enqueues(comm: &mut dyn Communicator, submission: &Submission<'_>) -> Result<()> {
    comm.enqueue(submission)
}

fn main() {}
