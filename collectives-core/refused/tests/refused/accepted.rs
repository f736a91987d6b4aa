//! The counterpart of the refused cases: this is how it is meant.
#![expect(dead_code, reason = "only compiled")]

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::graph::{Capture, Executable};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::shared::Shared;
use collectives_core::stream::Stream;

type Dynamic = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

fn a_scope_gives_slices_back(collectives: &mut Dynamic) -> Result<f32> {
    let (mut left, mut right) = (vec![1.0_f32; 4], vec![2.0_f32; 4]);
    collectives.scope(|scope| {
        scope.all_reduce(&mut left, ReduceOp::Sum)?;
        scope.all_reduce(&mut right, ReduceOp::Max)
    })?;
    Ok(left[0] + right[0])
}

fn a_capture_borrows_its_stream(
    collectives: &mut Dynamic,
    device: &dyn Device,
    stream: &mut Stream,
    buffer: &mut Buffer<f32>,
) -> Result<Executable> {
    let capture = Capture::begin(device, stream)?;
    collectives.all_reduce(buffer, ReduceOp::Sum, capture.stream())?;
    let graph = capture.end()?;
    collectives.all_reduce(buffer, ReduceOp::Sum, stream)?;
    graph.instantiate()
}

fn generics_and_borrows_work_on_both_sides<C: Communicator, A: ScratchAllocator>(
    mut comm: C,
    mut scratch: A,
    stream: &Stream,
) -> Result<()> {
    Collectives::new(&mut comm, &mut scratch).barrier(stream)?;
    Ok(())
}

fn handles_go_where_they_should() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<Dynamic>();
    send::<Stream>();
    sync::<Stream>();
    send::<Buffer<u8>>();
    sync::<Buffer<u8>>();
    send::<Executable>();
    sync::<Shared<Box<dyn Communicator>, Box<dyn ScratchAllocator>>>();
    send::<collectives_core::scratch::Lease>();
    sync::<collectives_core::communicator::AbortHandle>();
}
