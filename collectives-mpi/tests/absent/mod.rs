//! What a suite for MPI runs without MPI.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Checks that the crate says what it left out, and shows it.
pub(crate) fn main() -> ExitCode {
    let trial = Trial::test(
        "without_its_feature_the_crate_says_what_it_left_out",
        || match collectives_mpi::availability() {
            Ok(()) => Err("the feature is off, and MPI is there".into()),
            Err(error) => {
                println!("skipped: {error}");
                Ok(())
            }
        },
    );
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}
