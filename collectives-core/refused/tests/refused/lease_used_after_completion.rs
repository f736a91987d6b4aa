//! A lease is given back once.

use collectives_core::error::Result;
use collectives_core::scratch::Lease;

fn completes_twice(lease: Lease) -> Result<()> {
    lease.complete()?;
    lease.complete()
}

fn main() {}
