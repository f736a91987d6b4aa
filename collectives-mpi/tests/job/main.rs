//! A whole MPI job: how it ends when a rank does not, what it refuses, and what only MPI has.

#[cfg(feature = "system-mpi")]
mod bodies;
#[cfg(feature = "system-mpi")]
mod cases;
#[cfg(feature = "system-mpi")]
mod counts;

#[cfg(feature = "system-mpi")]
fn main() -> std::process::ExitCode {
    collectives_testkit::launch::dispatch(&[&bodies::BODIES[..], &counts::BODIES].concat());
    cases::run()
}

#[cfg(not(feature = "system-mpi"))]
#[path = "../absent/mod.rs"]
mod absent;

#[cfg(not(feature = "system-mpi"))]
fn main() -> std::process::ExitCode {
    absent::main()
}
