//! The cost of finding the window of an address.

use collectives_core::addr::Addr;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, Misuse, Result};
use collectives_core::layered::symmetric_of;
use collectives_host::model::DeviceModel;
use collectives_host::world::HostWorld;
use serde::Serialize;

use crate::clock::Clock;
use crate::sample::Sample;
use crate::target::Check;

const WINDOWS: usize = 1024;
const BYTES: usize = 4096;

/// Nanoseconds of `window_of`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Lookup {
    pub(crate) windows: usize,
    /// Addresses inside windows, in a shuffled order.
    pub(crate) found_p50: f64,
    pub(crate) found_p99: f64,
    /// Ordinary addresses.
    pub(crate) missed_p50: f64,
    pub(crate) checks: Vec<Check>,
}

/// Measures in a world of one rank, on small granules so that the windows fit.
pub(crate) fn measure(quick: bool) -> Result<Lookup> {
    let world = HostWorld::new(1).model(|_| DeviceModel::new().with_granule(BYTES));
    let mut comm = world
        .connect()?
        .pop()
        .ok_or_else(|| Error::config("no ranks"))?;
    let mut memories = Vec::with_capacity(WINDOWS);
    for _ in 0..WINDOWS {
        let symmetric = symmetric_of(&mut comm)?;
        let memory = symmetric.allocate(BYTES, None)?;
        symmetric.register(&memory)?;
        memories.push(memory);
    }
    // The step has no factor in common with the number of windows, so all of them come up, in an
    // order that no prefetcher follows.
    let inside = |turn: usize| memories[turn * 389 % WINDOWS].addr().offset(turn % 7 * 256);
    let inside: Vec<_> = (0..WINDOWS).map(inside).collect();
    let mut ordinary = vec![0_u8; WINDOWS];
    let outside: Vec<_> = ordinary
        .iter_mut()
        .map(|byte| Addr::from_ptr(byte))
        .collect();
    for &addr in &inside {
        if comm.window_of(addr, 256).is_none() {
            return Err(Misuse::Other("a window was not found".to_owned()).into());
        }
    }
    let clock = Clock::calibrated();
    let rounds = if quick { 100 } else { 1_000 };
    let found = time(&comm, &inside, &clock, rounds);
    let missed = time(&comm, &outside, &clock, rounds);
    let found_p50 = found.quantile(0.5);
    Ok(Lookup {
        windows: WINDOWS,
        found_p50,
        found_p99: found.quantile(0.99),
        missed_p50: missed.quantile(0.5),
        checks: vec![Check::below("look-up, p50", 100.0, Some(found_p50))],
    })
}

/// Rounds over all addresses, divided.
fn time(comm: &dyn Communicator, addresses: &[Addr], clock: &Clock, rounds: usize) -> Sample {
    let one = |_| {
        let taken = clock.single(|| {
            for &addr in addresses {
                std::hint::black_box(comm.window_of(std::hint::black_box(addr), 256));
            }
        });
        #[expect(clippy::cast_precision_loss, reason = "some thousand")]
        let each = taken / addresses.len() as f64;
        each
    };
    Sample::new((0..rounds).map(one).collect())
}
