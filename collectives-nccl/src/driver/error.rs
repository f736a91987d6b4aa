//! Codes of the driver as errors.

use std::ffi::CStr;
use std::ptr;

use collectives_core::error::{CaptureFault, Error, ErrorKind, Unsupported};

use super::load::loaded;
use super::sys::Code;

/// The library's name in errors.
const LIBRARY: &str = "cuda";

/// The error of a function that the driver lacks.
#[cold]
pub(super) fn missing(name: &'static str) -> Error {
    let text = format!("the CUDA driver has no {name}; it is too old");
    Error::unsupported(Unsupported::Version(text))
}

/// The error of a call that returned a code.
#[cold]
pub(super) fn failed(name: &'static str, code: Code) -> Error {
    let fault = match code {
        Code::CAPTURE_INVALIDATED | Code::CAPTURE_UNSUPPORTED => Some(CaptureFault::Invalidated),
        Code::CAPTURE_UNJOINED => Some(CaptureFault::Unjoined),
        Code::CAPTURE_UNMATCHED => Some(CaptureFault::NotCapturing),
        Code::CAPTURE_ISOLATION | Code::CAPTURE_IMPLICIT | Code::CAPTURED_EVENT => {
            Some(CaptureFault::Isolation)
        }
        _ => None,
    };
    let native = Error::new(ErrorKind::Native {
        library: LIBRARY,
        code: i64::from(code.0),
        text: format!("{name}: {}", text_of(code)),
    });
    match fault {
        Some(fault) => Error::capture(fault).caused_by(native),
        None => native,
    }
}

/// The driver's code in an error, if it has one.
pub(crate) fn driver_error(error: &Error) -> Option<Code> {
    match error.kind() {
        ErrorKind::Native {
            library: LIBRARY,
            code,
            ..
        } => i32::try_from(*code).ok().map(Code),
        _ => None,
    }
}

fn text_of(code: Code) -> String {
    let unknown = || format!("error {}", code.0);
    let Some(functions) = loaded() else {
        return unknown();
    };
    let driver = super::load::Driver {
        functions: *functions,
    };
    let mut text = ptr::null();
    let found = driver.has_error_strings() && {
        // SAFETY: `cuGetErrorString` (cuda.h, "Error Handling") takes any code and writes a
        // pointer; for a code it does not know it leaves it null.
        unsafe { driver.get_error_string(code, &raw mut text) }.is_ok()
    };
    if !found || text.is_null() {
        return unknown();
    }
    // SAFETY: The text is a constant of the driver.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
