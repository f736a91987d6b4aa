//! Two leases on one range would overlap.

use collectives_core::scratch::Lease;

fn duplicates(lease: &Lease) -> Lease {
    lease.clone()
}

fn main() {}
