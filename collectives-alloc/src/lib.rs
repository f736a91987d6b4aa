//! Scratch policies, the slot pool they share, configuration and decorators.
#![forbid(unsafe_code)]
