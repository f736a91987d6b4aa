//! The kit on MPI ranks.

#[cfg(feature = "system-mpi")]
#[expect(unreachable_pub, reason = "shared by test targets")]
mod kit;

#[cfg(feature = "system-mpi")]
collectives_testkit::conformance_main!(kit::Mpi { checked: false });

#[cfg(not(feature = "system-mpi"))]
mod absent;

#[cfg(not(feature = "system-mpi"))]
fn main() -> std::process::ExitCode {
    absent::main()
}
