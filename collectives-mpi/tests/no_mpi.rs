//! A machine without MPI is told what to install, before anything else fails.

use std::ffi::OsStr;
use std::fs;

#[expect(dead_code, reason = "its `main` is Cargo's")]
#[path = "../build.rs"]
mod build_script;

use build_script::missing;

#[test]
fn packages_are_named_where_no_compiler_is_found() {
    let nowhere = || false;
    let text = missing(OsStr::new("mpicc"), OsStr::new("/nonexistent"), nowhere).unwrap();
    for part in [
        "`mpicc`",
        "libopenmpi-dev",
        "libmpich-dev",
        "libclang-dev",
        "MPICC",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let named = missing(
        OsStr::new("/nonexistent/mpicc.own"),
        OsStr::new(""),
        nowhere,
    );
    assert!(named.unwrap().contains("/nonexistent/mpicc.own"));
}

#[test]
fn nothing_is_missing_where_the_compiler_or_pkg_config_is() {
    let folder = std::env::temp_dir().join(format!("collectives-no-mpi-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("mpicc.own"), "").unwrap();
    let found = missing(OsStr::new("mpicc.own"), folder.as_os_str(), || false);
    let absolute = missing(folder.join("mpicc.own").as_os_str(), OsStr::new(""), || {
        false
    });
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!((found, absolute), (None, None));
    assert_eq!(missing(OsStr::new("mpicc"), OsStr::new(""), || true), None);
}
