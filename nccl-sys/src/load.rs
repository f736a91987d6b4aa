//! Finds the library, once.

use std::env;
use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use crate::error::Error;
use crate::symbols::{Nccl, Symbols};
use crate::types::Code;
use crate::version::Version;

/// The environment variable that names the library.
pub const LIBRARY_VARIABLE: &str = "COLLECTIVES_NCCL_LIB";

const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Finds only what is loaded already; see dlopen(3). The value is the same on all Linux targets.
#[cfg(target_os = "linux")]
const RTLD_NOLOAD: std::ffi::c_int = 4;

/// The library of this process, looked up at the first call.
///
/// # Errors
///
/// [`Error::NotFound`] with everything that was tried, and [`Error::NoVersion`]; the same at every
/// call.
pub fn nccl() -> Result<&'static Nccl, Error> {
    static NCCL: OnceLock<Result<Nccl, Error>> = OnceLock::new();
    NCCL.get_or_init(find).as_ref().map_err(Clone::clone)
}

fn find() -> Result<Nccl, Error> {
    if let Some(library) = NAMES.iter().find_map(|name| loaded(name)) {
        return Nccl::over(library, "the NCCL that the process has loaded".to_owned());
    }
    if let Some(path) = env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        // Whoever names a file wants that file, so nothing else is tried.
        return Nccl::open(&path);
    }
    let mut tried = Vec::new();
    for name in NAMES {
        match Nccl::open(OsStr::new(name)) {
            Err(Error::NotFound { tried: mut one }) => tried.append(&mut one),
            found => return found,
        }
    }
    Err(Error::NotFound { tried })
}

#[cfg(target_os = "linux")]
fn loaded(name: &str) -> Option<Library> {
    // SAFETY: With RTLD_NOLOAD (dlopen(3)) nothing is loaded and no initialiser runs.
    unsafe { Library::open(Some(name), RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL) }.ok()
}

#[cfg(not(target_os = "linux"))]
fn loaded(_name: &str) -> Option<Library> {
    None
}

impl Nccl {
    /// The library in a file, apart from the one that [`nccl`] finds.
    ///
    /// Handles of one library must never be given to another.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] and [`Error::NoVersion`].
    pub fn open(path: &OsStr) -> Result<Self, Error> {
        let shown = path.to_string_lossy().into_owned();
        // SAFETY: Loading NCCL runs its initialisers, which only set up its own state. That the
        // file is NCCL is what its name says.
        match unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) } {
            Ok(library) => Self::over(library, shown),
            Err(error) => {
                let source = std::error::Error::source(&error);
                let why = source.map_or_else(|| error.to_string(), ToString::to_string);
                Err(Error::NotFound {
                    tried: vec![format!("{shown} ({why})")],
                })
            }
        }
    }

    fn over(library: Library, name: String) -> Result<Self, Error> {
        // Threads of the library and pointers into it live as long as the process.
        let library = ManuallyDrop::new(library);
        let symbols = Symbols::load(&library);
        let no_version = || Error::NoVersion {
            library: name.clone(),
        };
        let get_version = symbols.get_version.ok_or_else(no_version)?;
        let mut code = 0;
        // SAFETY: `ncclGetVersion` (nccl.h) writes one integer.
        let result = unsafe { get_version(&raw mut code) };
        match u32::try_from(code) {
            Ok(code) if result == Code::SUCCESS && code > 0 => {
                Ok(Self::new(symbols, Version::from_code(code), name))
            }
            _ => Err(no_version()),
        }
    }
}
