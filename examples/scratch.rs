//! The scratch of a program, as its user configures it.

use std::path::Path;

use collectives_alloc::config::ScratchConfig;
use collectives_core::error::Result;

/// The configuration of a file, if there is one, and of the variables `COLLECTIVES_SCRATCH_…`, which win
/// over it.
///
/// # Errors
///
/// [`Config`](collectives_core::error::ErrorKind::Config), with the file or variable.
pub fn configured(file: Option<&Path>) -> Result<ScratchConfig> {
    let base = match file {
        Some(path) => ScratchConfig::from_toml_file(path)?,
        None => ScratchConfig::default(),
    };
    base.overridden_by_env()
}
