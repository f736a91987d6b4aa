//! The planted bugs on the embedded backend.

#[expect(unreachable_pub, reason = "shared by test targets")]
mod host;

fn main() -> std::process::ExitCode {
    collectives_testkit::matrix::main(std::sync::Arc::new(host::Host))
}
