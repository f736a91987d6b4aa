//! Several hosts: network namespaces of this machine, with MPI over TCP between them.

#[cfg(feature = "system-mpi")]
mod network;
#[cfg(feature = "system-mpi")]
mod rank;
#[cfg(feature = "system-mpi")]
mod trial;

#[cfg(feature = "system-mpi")]
fn main() -> std::process::ExitCode {
    rank::dispatch();
    trial::run()
}

#[cfg(not(feature = "system-mpi"))]
#[path = "../absent/mod.rs"]
mod absent;

#[cfg(not(feature = "system-mpi"))]
fn main() -> std::process::ExitCode {
    absent::main()
}
