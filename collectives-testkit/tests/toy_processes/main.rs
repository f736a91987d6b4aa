//! The toy once more, its ranks processes.

#[path = "../toy/communicator.rs"]
mod communicator;
#[path = "../toy/device.rs"]
mod device;
#[expect(unreachable_pub, reason = "shared by test targets")]
mod harness;
#[path = "../toy/reduce.rs"]
mod reduce;

collectives_testkit::conformance_main!(harness::Processes);
