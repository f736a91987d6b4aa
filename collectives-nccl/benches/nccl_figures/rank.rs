//! What every rank does: the same, in the same order.

use std::sync::Arc;
use std::time::Duration;

use collectives_core::buffer::Buffer;
use collectives_core::device::Device;
use collectives_core::env::World;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_nccl::options::Options as NcclOptions;

use crate::driver::Driver;
use crate::options::Options;
use crate::report::Report;
use crate::variant::{Ways, handle};
use crate::{host, point, registration};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn measure(world: &World, options: &Options) -> Result<Report> {
    let bootstrap = world.bootstrap(PATIENCE)?;
    let gpus = CudaDevice::count().max(1);
    let gpu = world.local_rank % gpus;
    let cuda = CudaDevice::open(gpu)?;
    let device: Arc<dyn Device> = Arc::clone(&cuda) as Arc<dyn Device>;
    let members: Vec<_> = (0..world.world_size)
        .map(collectives_core::rank::Rank::new)
        .collect();
    let connect = |name: &str| {
        let bootstrap = bootstrap.subgroup(name, &members)?;
        NcclCommunicator::connect(bootstrap, Arc::clone(&cuda), NcclOptions::from_env())
    };
    let mut caller = handle(connect("caller")?, "caller")?;
    let events = handle(connect("events")?, "events")?;
    let version = caller.communicator().version().to_string();
    let stream = device.create_stream()?;
    let mut ways = Ways {
        nccl: nccl_sys::nccl().map_err(|error| Error::new(ErrorKind::System(error.to_string())))?,
        driver: Driver::new(gpu)?,
        window: caller.symmetric_buffer(8)?,
        plain: Buffer::zeroed(&device, 8, &stream)?,
        device,
        stream,
        caller,
        events,
        auto: None,
    };
    let mut points = Vec::new();
    for &bytes in &options.sizes {
        ways.resize(bytes)?;
        ways.check(world.world_size)?;
        points.push(point::eager(&mut ways, bytes, options.rounds)?);
        points.push(point::graph(&mut ways, &cuda, bytes, options.rounds)?);
    }
    ways.resize(16)?;
    let host = host::measure(&mut ways)?;
    let registration = registration::measure(&mut ways)?;
    let report = Report {
        nccl: version,
        ranks: world.world_size,
        gpus: gpus.min(world.world_size),
        rounds: options.rounds,
        points,
        host,
        registration,
    };
    let Ways {
        caller,
        events,
        window,
        plain,
        ..
    } = ways;
    drop((window, plain));
    let _ = caller.close()?;
    let _ = events.close()?;
    // The rank that hosts the control plane leaves last; how this ends tells nothing any more.
    let _left = bootstrap.all_gather("end", &[], PATIENCE);
    Ok(report)
}
