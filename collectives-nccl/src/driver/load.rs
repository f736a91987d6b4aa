//! Finds the driver, once.

use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use collectives_core::error::{Error, ErrorKind, Result, Unsupported};
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use super::sys::Functions;

const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The loaded driver.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(super) functions: Functions,
}

/// The driver of this process, initialised; the same answer at every call.
pub(crate) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
    DRIVER.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// The driver if it is loaded already; never loads it.
pub(super) fn loaded() -> Option<&'static Functions> {
    LOADED.get()
}

static LOADED: OnceLock<Functions> = OnceLock::new();

fn find() -> Result<Driver> {
    let mut tried = Vec::new();
    for name in NAMES {
        // SAFETY: Loading the driver runs its initialisers, which only set up its own state.
        match unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL) } {
            Ok(library) => return initialise(library),
            Err(error) => {
                let source = std::error::Error::source(&error);
                tried.push(source.map_or_else(|| error.to_string(), ToString::to_string));
            }
        }
    }
    let text = format!(
        "no CUDA driver was found ({}); is there an NVIDIA GPU and its driver?",
        tried.join("; ")
    );
    Err(Error::unsupported(Unsupported::Operation(text)))
}

fn initialise(library: Library) -> Result<Driver> {
    // The driver stays loaded as long as the process: its threads and pointers do.
    let library = ManuallyDrop::new(library);
    let functions = *LOADED.get_or_init(|| Functions::load(&library));
    let driver = Driver { functions };
    // SAFETY: `cuInit` takes zero (cuda.h, "Initialization").
    unsafe { driver.init(0) }.map_err(|error| {
        let text = match error.kind() {
            ErrorKind::Native { text, code, .. } => {
                format!("the CUDA driver does not start: {text} ({code})")
            }
            other => other.to_string(),
        };
        Error::unsupported(Unsupported::Operation(text)).caused_by(error)
    })?;
    Ok(driver)
}
