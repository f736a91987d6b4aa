//! MPI's codes as our errors.

use std::ffi::{c_char, c_int};

use collectives_core::error::{Error, ErrorKind, Result};
use mpi::ffi;

/// The backend's name.
pub(crate) const BACKEND: &str = "mpi";

/// What an MPI function returned.
pub(crate) fn check(function: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(failed(function, code))
}

#[cold]
fn failed(function: &'static str, code: c_int) -> Error {
    Error::new(ErrorKind::Native {
        library: BACKEND,
        code: i64::from(code),
        text: format!("{function}: {}", text(code)),
    })
    .on_backend(BACKEND)
}

/// What MPI says about a code, which may be one that nobody knows.
fn text(code: c_int) -> String {
    const LENGTH: usize = ffi::MPI_MAX_ERROR_STRING as usize;
    let mut bytes: [c_char; LENGTH] = [0; LENGTH];
    let mut length = 0;
    // SAFETY: The buffer has the length that MPI writes at most.
    let known = unsafe { ffi::MPI_Error_string(code, bytes.as_mut_ptr(), &raw mut length) };
    let length = usize::try_from(length).unwrap_or(0).min(LENGTH);
    if known != 0 || length == 0 {
        return format!("code {code}");
    }
    let text: Vec<u8> = bytes[..length]
        .iter()
        .map(|&byte| byte.cast_unsigned())
        .collect();
    String::from_utf8_lossy(&text).into_owned()
}
