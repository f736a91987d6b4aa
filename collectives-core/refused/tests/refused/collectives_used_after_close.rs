//! A closed handle is gone.

use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::scratch::ScratchAllocator;

type Dynamic = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

fn uses_it_afterwards(collectives: Dynamic) -> Result<()> {
    collectives.close()?;
    collectives.health()
}

fn main() {}
