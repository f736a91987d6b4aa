//! The kit on the embedded backend's ranks that are processes.

#[expect(unreachable_pub, reason = "shared by test targets")]
mod host;
#[path = "host/processes.rs"]
#[expect(unreachable_pub, reason = "as above")]
mod processes;

collectives_testkit::conformance_main!(processes::HostProcesses);
