//! GPU suite.
fn main() {}
