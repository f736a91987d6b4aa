//! What the processes of these tests do.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use collectives_core::bootstrap::{Bootstrap, DEFAULT_DEADLINE};
use collectives_core::env::World;
use collectives_core::error::Result;
use collectives_core::rank::Rank;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_host::process::ProcessCommunicator;
use collectives_host::world::HostWorld;
use collectives_testkit::launch::Body;

use crate::limit::{self, Limit};
use crate::scratch::{self, Ranks};

/// How long a rank waits for others at the end, when nothing depends on it any more.
const LEAVING: Duration = Duration::from_secs(5);

pub(crate) const BODIES: [(&str, Body); 4] = [
    ("scratch", scratch),
    ("connect", connect),
    ("meets", meets),
    ("threads", threads),
];

fn is_limited(world: &World) -> bool {
    std::env::var(limit::RANK).unwrap() == world.rank.to_string()
}

fn model() -> DeviceModel {
    DeviceModel::new().with_granule(64 << 10)
}

fn join(bootstrap: Arc<dyn Bootstrap>) -> Result<ProcessCommunicator> {
    let device = HostDevice::new(model().with_shared_memory(true))?;
    ProcessCommunicator::connect(bootstrap, device)
}

fn scratch(world: &World) -> Result<Vec<u8>> {
    let (limit, limited) = (Limit::named(), is_limited(world));
    if limited && limit.is_early() {
        limit.set();
    }
    if std::env::var(scratch::KIND).unwrap() == format!("{:?}", Ranks::Processes) {
        let bootstrap = world.bootstrap(DEFAULT_DEADLINE)?;
        let comm = join(Arc::clone(&bootstrap))?;
        let said = scratch::serve(comm, limit, limited, || {})?;
        let _left = bootstrap.all_gather("end", &[], LEAVING);
        return Ok(said);
    }
    let barrier = Barrier::new(scratch::RANKS);
    let host = HostWorld::new(scratch::RANKS).model(|_| model());
    let said = host.run(|comm| {
        let first = comm.host_device().model().rank() == Rank(0);
        scratch::serve(comm, limit, first, || {
            barrier.wait();
        })
    });
    let said = said.into_iter().collect::<Result<Vec<_>>>()?;
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
    Ok(said.concat()[..said[0].len()].to_vec())
}

/// The error of ranks that cannot share a segment.
fn connect(world: &World) -> Result<Vec<u8>> {
    let bootstrap = world.bootstrap(DEFAULT_DEADLINE)?;
    if is_limited(world) {
        Limit::named().set();
    }
    let error = join(Arc::clone(&bootstrap)).expect_err("a rank has not enough");
    let _left = bootstrap.all_gather("end", &[], LEAVING);
    Ok(error.kind().to_string().into_bytes())
}

/// Meets the others.
fn meets(world: &World) -> Result<Vec<u8>> {
    if is_limited(world) {
        Limit::named().set();
    }
    let bootstrap = world.bootstrap(DEFAULT_DEADLINE)?;
    // Where a rank says at once that it cannot come, the launcher ends the others.
    bootstrap.all_gather("met", &[], DEFAULT_DEADLINE)?;
    Ok(Vec::new())
}

/// A world of more ranks than there may be threads.
fn threads(_: &World) -> Result<Vec<u8>> {
    Limit::named().set();
    HostWorld::new(3).run(drop);
    Ok(Vec::new())
}
