//! Nothing: this package exists for its test, `tests/refused.rs`, which compiles small programs
//! against `collectives-core` and compares what the compiler says of those it must refuse.
#![forbid(unsafe_code)]
