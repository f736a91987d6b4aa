//! Says which package is missing where there is no MPI, before a dependency fails without saying so.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MPICC");
    println!("cargo:rerun-if-env-changed=PATH");
    if env::var_os("CARGO_FEATURE_SYSTEM_MPI").is_none() {
        return;
    }
    let compiler = env::var_os("MPICC").unwrap_or_else(|| OsString::from("mpicc"));
    let path = env::var_os("PATH").unwrap_or_default();
    if let Some(text) = missing(&compiler, &path, knows_pkg_config) {
        println!("cargo::error={text}");
    }
}

/// What to install, where neither the compiler is in the path nor anything else knows an MPI.
pub(crate) fn missing(
    compiler: &OsStr,
    path: &OsStr,
    is_known_elsewhere: fn() -> bool,
) -> Option<String> {
    let text = || {
        let compiler = compiler.to_string_lossy();
        format!(
            "the feature `system-mpi` needs an MPI and found neither `{compiler}` nor an `ompi` or \
             `mpich` of pkg-config. On Debian and Ubuntu: `apt-get install libopenmpi-dev openmpi-bin \
             libclang-dev`, or `libmpich-dev mpich libclang-dev` and `MPICC=mpicc.mpich`"
        )
    };
    let is_there = is_in_path(Path::new(compiler), path) || is_known_elsewhere();
    (!is_there).then(text)
}

fn is_in_path(program: &Path, path: &OsStr) -> bool {
    if program.components().count() > 1 {
        return program.exists();
    }
    env::split_paths(path).any(|folder| folder.join(program).exists())
}

fn knows_pkg_config() -> bool {
    ["ompi", "mpich"].iter().any(|library| {
        let found = Command::new("pkg-config")
            .args(["--exists", library])
            .status();
        found.is_ok_and(|status| status.success())
    })
}
