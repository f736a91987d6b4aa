//! The toy of processes under every planted bug that it can show.

#[path = "../toy/communicator.rs"]
mod communicator;
#[path = "../toy/device.rs"]
mod device;
#[expect(unreachable_pub, reason = "shared by test targets")]
mod harness;
#[path = "../toy/reduce.rs"]
mod reduce;

use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    collectives_testkit::matrix::main(Arc::new(harness::Processes))
}
