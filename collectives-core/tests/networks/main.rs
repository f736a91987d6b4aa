//! Ranks meet on every kind of network: machines with IPv4 alone, with IPv6 alone, and with both,
//! made of network namespaces. Each rank is a process, and its launcher's variables are its own.

#![forbid(unsafe_code)]

mod machines;
mod rank;
mod trials;

fn main() -> std::process::ExitCode {
    rank::dispatch();
    trials::run()
}
