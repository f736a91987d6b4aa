//! The kit on the embedded backend's ranks that are processes.

#[path = "host/device.rs"]
#[expect(unreachable_pub, reason = "shared by test targets")]
mod device;
#[path = "host/processes.rs"]
#[expect(unreachable_pub, reason = "as above")]
mod processes;

collectives_testkit::conformance_main!(processes::HostProcesses);
