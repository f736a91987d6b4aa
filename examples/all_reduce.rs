//! Four ranks sum a vector: the smallest whole program.
#![forbid(unsafe_code)]

use std::error::Error;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::error::Result;
use collectives_core::reduce::ReduceOp;
use collectives_host::communicator::HostCommunicator;
use collectives_host::world::HostWorld;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    for (rank, line) in HostWorld::new(4).run(rank_main).into_iter().enumerate() {
        println!("rank {rank}: {}", line?);
    }
    Ok(())
}

fn rank_main(comm: HostCommunicator) -> Result<String> {
    let mut collectives = Collectives::new(comm, ScratchConfig::default().build()?);
    let stream = collectives.device().create_stream()?;

    // A tensor in ordinary memory is staged through scratch.
    let mine = [f64::from(collectives.rank().0 + 1); 4];
    let mut tensor = Buffer::from_slice(collectives.device(), &mine, &stream)?;
    let staged = collectives.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;

    // A tensor in symmetric memory is not copied at all.
    let mut symmetric = collectives.symmetric_buffer::<f64>(4)?;
    symmetric.write(&mine, &stream)?;
    let direct = collectives.all_reduce(&mut symmetric, ReduceOp::Max, &stream)?;

    // A host slice gets a call that blocks.
    let mut slice = mine;
    collectives.all_reduce_host(&mut slice, ReduceOp::Average)?;

    let line = format!(
        "sum {:?} ({}), max {:?} ({}), average {slice:?}",
        tensor.read(&stream)?,
        staged.path,
        symmetric.read(&stream)?,
        direct.path,
    );
    drop((tensor, symmetric));
    let _deferred = collectives.close()?;
    Ok(line)
}
