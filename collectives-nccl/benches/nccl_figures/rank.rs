//! What every rank does: the same, in the same order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives_core::buffer::Buffer;
use collectives_core::device::Device;
use collectives_core::env::World;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_nccl::options::Options as NcclOptions;
use collectives_nccl::setup::library_version;

use crate::driver::Driver;
use crate::options::{Options, Part};
use crate::report::Report;
use crate::variant::{Ways, handle};
use crate::{growth, host, point, registration, units};

const PATIENCE: Duration = Duration::from_secs(60);

/// Sizes between which staging may begin to pay, two an octave.
const CALIBRATED: [usize; 15] = [
    48 << 10,
    64 << 10,
    96 << 10,
    128 << 10,
    192 << 10,
    256 << 10,
    384 << 10,
    512 << 10,
    768 << 10,
    1 << 20,
    3 << 19,
    2 << 20,
    3 << 20,
    4 << 20,
    8 << 20,
];

pub(crate) fn measure(world: &World, options: &Options) -> Result<Report> {
    let bootstrap = world.bootstrap(PATIENCE)?;
    let gpus = CudaDevice::count().max(1);
    let gpu = world.local_rank % gpus;
    let cuda = CudaDevice::open(gpu)?;
    let members: Vec<_> = (0..world.world_size).map(Rank::new).collect();
    let connect = |name: &str| {
        let bootstrap = bootstrap.subgroup(name, &members)?;
        NcclCommunicator::connect(bootstrap, Arc::clone(&cuda), NcclOptions::from_env())
    };
    let mut report = Report {
        nccl: library_version()?.to_string(),
        ranks: world.world_size,
        gpus: gpus.min(world.world_size),
        rounds: options.rounds,
        calibrated: None,
        points: Vec::new(),
        host: Vec::new(),
        registration: Vec::new(),
        growth: Vec::new(),
        units: Vec::new(),
    };
    if options.parts.contains(&Part::Growth) {
        report.growth = growth::measure(connect("growth")?)?;
    }
    if options.parts.contains(&Part::Units) {
        report.units = units::measure(connect("units")?, &cuda, &Driver::new(gpu)?)?;
    }
    if options.parts.contains(&Part::Calls) {
        let mut ways = ways(&cuda, gpu, connect("caller")?, connect("events")?)?;
        calls(&mut ways, &cuda, options, &mut report)?;
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
    }
    // The rank that hosts the control plane leaves last; how this ends tells nothing any more.
    let _left = bootstrap.all_gather("end", &[], PATIENCE);
    Ok(report)
}

fn ways(
    cuda: &Arc<CudaDevice>,
    gpu: usize,
    caller: NcclCommunicator,
    events: NcclCommunicator,
) -> Result<Ways> {
    let device: Arc<dyn Device> = Arc::clone(cuda) as Arc<dyn Device>;
    let mut caller = handle(caller, "caller")?;
    let events = handle(events, "events")?;
    let stream = device.create_stream()?;
    Ok(Ways {
        nccl: nccl_sys::nccl().map_err(|error| Error::new(ErrorKind::System(error.to_string())))?,
        driver: Driver::new(gpu)?,
        window: caller.symmetric_buffer(8)?,
        plain: Buffer::zeroed(&device, 8, &stream)?,
        device,
        stream,
        caller,
        events,
        auto: None,
    })
}

/// Everything about calls and their windows.
fn calls(ways: &mut Ways, cuda: &CudaDevice, options: &Options, report: &mut Report) -> Result<()> {
    if options.calibrate {
        let begun = Instant::now();
        let _measured = ways.events.calibrate(&CALIBRATED, &mut ways.stream)?;
        report.calibrated = Some(begun.elapsed().as_secs_f64());
    }
    for &bytes in &options.sizes {
        ways.resize(bytes)?;
        ways.check(report.ranks)?;
        report
            .points
            .push(point::eager(ways, bytes, options.rounds)?);
        report
            .points
            .push(point::graph(ways, cuda, bytes, options.rounds)?);
    }
    ways.resize(16)?;
    report.host = host::measure(ways)?;
    report.registration = registration::measure(ways)?;
    Ok(())
}
