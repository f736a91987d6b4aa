//! The conformance kit on this backend where there is no GPU: over the stand-in, whose collectives
//! compute. Ranks are threads, each with a device of its own.
//!
//! ```text
//! cargo test -p collectives-nccl --test stand_in_kit
//! COLLECTIVES_KIT_CHECKED=1 cargo test -p collectives-nccl --test stand_in_kit
//! ```
//!
//! In concurrent terrain work runs no earlier than somebody waits for it. What the stand-in found
//! wrong fails the case that it happened in.

#[cfg(target_os = "linux")]
#[path = "../stand_in/control.rs"]
#[expect(dead_code, reason = "shared with the other tests over the stand-in")]
mod control;
#[cfg(target_os = "linux")]
#[path = "../stand_in/folder.rs"]
mod folder;
#[cfg(target_os = "linux")]
mod harness;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    if let Some(code) = control::run_again() {
        return std::process::ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    collectives_testkit::runner::main(std::sync::Arc::new(harness::StandIn::new()))
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: the stand-in is a library of Linux");
}
