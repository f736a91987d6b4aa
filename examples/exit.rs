//! How an example ends.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;

use collectives_core::error::with_causes;

/// Prints a line or more; that nobody reads them any more is no error.
///
/// # Errors
///
/// Those of standard output.
pub fn print(text: impl Display) -> io::Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The error with the file that it is about.
#[must_use]
pub fn about(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

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
            eprintln!("error: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}
