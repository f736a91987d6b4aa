//! The kit on the embedded backend.

#[expect(unreachable_pub, reason = "shared by test targets")]
mod host;

collectives_testkit::conformance_main!(host::Host);
