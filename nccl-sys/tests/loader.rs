//! The loader, tried on tiny libraries that are built here if there is a C compiler.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use nccl_sys::{Code, Error, LIBRARY_VARIABLE, Nccl, Version};

/// Compiles a shared object, or says why it cannot.
fn compile(name: &str, source: &str) -> Option<PathBuf> {
    let directory = env::temp_dir().join(format!("nccl-sys-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a temporary directory");
    let (from, to) = (
        directory.join(format!("{name}.c")),
        directory.join(format!("{name}.so")),
    );
    fs::write(&from, source).expect("a temporary file");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,-soname"])
        .arg(format!("-Wl,{name}.so"))
        .arg("-o")
        .args([&to, &from])
        .status();
    match compiled {
        Ok(status) if status.success() => Some(to),
        _ => {
            println!("skipped: there is no C compiler to build `{name}` with");
            None
        }
    }
}

fn open(path: &Path) -> Result<Nccl, Error> {
    Nccl::open(path.as_os_str())
}

#[test]
fn a_library_with_few_symbols_loads_and_names_what_it_lacks() {
    let source = "int ncclGetVersion(int* v) { *v = 21903; return 0; }\n\
         int ncclGroupStart(void) { return 77; }\n\
         const char* ncclGetErrorString(int c) { return c == 77 ? \"seventy-seven\" : 0; }\n";
    let Some(path) = compile("few", source) else {
        return;
    };
    let nccl = open(&path).unwrap();
    assert_eq!(nccl.version(), Version::new(2, 19, 3));
    // SAFETY: The function above takes nothing.
    let failed = unsafe { nccl.group_start() }.unwrap_err();
    assert_eq!(
        failed,
        Error::Failed {
            name: "ncclGroupStart",
            code: Code(77),
            text: "seventy-seven".to_owned()
        }
    );
    // SAFETY: There is no such function.
    let missing = unsafe { nccl.group_end() }.unwrap_err();
    assert_eq!(missing.to_string(), "NCCL 2.19.3 has no ncclGroupEnd");
}

#[test]
fn what_tells_no_version_is_no_nccl() {
    for (name, source) in [
        ("none", "int something(void) { return 0; }\n"),
        (
            "refuses",
            "int ncclGetVersion(int* v) { *v = 23007; return 3; }\n",
        ),
        (
            "negative",
            "int ncclGetVersion(int* v) { *v = -1; return 0; }\n",
        ),
    ] {
        let Some(path) = compile(name, source) else {
            return;
        };
        assert!(
            matches!(open(&path), Err(Error::NoVersion { .. })),
            "{name}"
        );
    }
}

#[test]
fn what_does_not_exist_or_is_no_library_says_what_was_tried() {
    let text = env::temp_dir().join(format!("nccl-sys-text-{}", std::process::id()));
    fs::write(&text, "not a library").unwrap();
    for path in [Path::new("/nowhere/libnccl.so.2"), text.as_path()] {
        let error = open(path).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }));
        let said = error.to_string();
        assert!(said.contains(LIBRARY_VARIABLE) && said.contains(&*path.to_string_lossy()));
    }
}

#[test]
fn looking_the_library_up_never_panics() {
    match nccl_sys::nccl() {
        Ok(nccl) => assert!(nccl.version() > Version::new(2, 0, 0)),
        Err(error) => assert!(error.to_string().contains(LIBRARY_VARIABLE)),
    }
}
