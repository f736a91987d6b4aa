//! A slice is borrowed until its scope has waited.

use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;

type Dynamic = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

fn reads_too_early(collectives: &mut Dynamic) -> Result<f32> {
    let mut values = vec![1.0_f32; 4];
    collectives.scope(|scope| {
        scope.all_reduce(&mut values, ReduceOp::Sum)?;
        Ok(values[0])
    })
}

fn main() {}
