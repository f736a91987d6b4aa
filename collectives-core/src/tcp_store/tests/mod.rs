//! The contract over real sockets, with ranks that are threads.

mod contract;
mod failure;
mod memory;
mod places;
mod strangers;
mod warnings;
mod wire;

use std::thread;
use std::time::Duration;

use super::TcpStore;

/// Long enough never to pass in a test that is well.
const LONG: Duration = Duration::from_secs(60);
/// Long enough for a rank to arrive in, short enough to wait for.
const SHORT: Duration = Duration::from_millis(60);

fn on_every<R: Send>(ends: &[TcpStore], body: impl Fn(&TcpStore) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = ends
            .iter()
            .map(|end| scope.spawn(move || body(end)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn on_every_rank<R: Send>(world_size: usize, body: impl Fn(&TcpStore) -> R + Sync) -> Vec<R> {
    on_every(&TcpStore::loopback(world_size).unwrap(), body)
}
