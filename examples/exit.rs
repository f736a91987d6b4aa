//! How an example ends.

use std::error::Error;
use std::process::ExitCode;

/// Success if nothing is wrong; what is goes to standard error, a line each.
#[must_use]
pub fn code(faults: Result<Vec<String>, Box<dyn Error>>) -> ExitCode {
    match faults {
        Ok(faults) if faults.is_empty() => ExitCode::SUCCESS,
        Ok(faults) => {
            faults.iter().for_each(|fault| eprintln!("{fault}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
