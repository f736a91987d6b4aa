//! A slice that dies inside the scope would be written after its end.

use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;

type Dynamic = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

fn dies_too_early(collectives: &mut Dynamic) -> Result<()> {
    collectives.scope(|scope| {
        let mut values = vec![1.0_f32; 4];
        scope.all_reduce(&mut values, ReduceOp::Sum)?;
        Ok(())
    })
}

fn main() {}
