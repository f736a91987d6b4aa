//! What graphs own, also those that a framework captures and launches.

use collectives_core::device::Device as _;
use collectives_core::path::Staging;
use collectives_core::reduce::ReduceOp;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;

use crate::calls::is_clean;
use crate::control;
use crate::life::{Actor, PATIENCE, on_ranks, settle};

/// Has every rank capture something as a framework does, close its communicator, and launch the graph.
fn outlives(capture: impl Fn(&mut Actor) + Sync) {
    let before = control::live();
    on_ranks(|end| {
        let cuda = CudaDevice::open(0).expect("a device");
        let mut actor = Actor::join(end, &cuda).expect("ranks that join");
        actor.operate().expect("every operation");
        let raw = actor.stream.raw();
        control::begin_foreign_capture(raw);
        capture(&mut actor);
        let graph = control::end_foreign_capture(raw);
        let Actor {
            handle,
            stream,
            window,
            plain,
            ..
        } = actor;
        drop((window, plain));
        let deferred = handle.close().expect("an end");
        assert!(deferred.communicator, "the graph owns the communicator");
        cuda.collect();
        // What the graph uses is there, though nobody else has it.
        for _ in 0..2 {
            graph.launch(raw);
        }
        graph.destroy();
        drop(stream);
        settle(&cuda, PATIENCE);
    });
    is_clean(&before);
}

pub(crate) fn barrier() {
    outlives(|actor| {
        let captured = actor.handle.barrier(&actor.stream);
        captured.expect("a captured barrier");
    });
}

pub(crate) fn deferred() {
    outlives(|actor| {
        let live = NcclCommunicator::live_count();
        assert!(live > 0);
        for staging in [Staging::Auto, Staging::Forced] {
            actor.handle.set_staging(staging);
            let (window, plain, stream) = (&mut actor.window, &mut actor.plain, &actor.stream);
            let reduced = actor.handle.all_reduce(window, ReduceOp::Sum, stream);
            reduced.expect("a captured call");
            let averaged = actor.handle.all_reduce(plain, ReduceOp::Average, stream);
            averaged.expect("a captured average");
        }
    });
}
