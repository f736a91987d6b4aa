//! What a call of ours adds to the calls of the driver and of NCCL that it makes: instructions, and cache
//! lines of code, counted by callgrind on the stand-in. Time is not measured, so any machine will do.
//!
//! ```text
//! cargo bench -p collectives-nccl --bench instructions -- --json instructions.json
//! ```
//!
//! | option | meaning |
//! |---|---|
//! | `--json FILE` | also writes the counts there |
//! | `--functions` | also says which functions the instructions are in |
//! | a text | only cases whose name contains it |
//!
//! It needs `valgrind`, and says so where there is none.

#[cfg(target_os = "linux")]
mod callgrind;
#[cfg(target_os = "linux")]
mod case;
#[cfg(target_os = "linux")]
#[path = "../../tests/stand_in/folder.rs"]
mod folder;
#[cfg(target_os = "linux")]
mod report;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match report::run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: the stand-in is a library of Linux");
}
