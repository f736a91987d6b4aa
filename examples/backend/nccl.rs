//! A rank on NCCL.

use std::sync::Arc;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::env::World;
use collectives_core::error::Result;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_nccl::options::Options;
use collectives_nccl::setup::check_platform;

use super::{Gauge, Joined};

/// Fails early, and once, where there is no driver, no GPU or no NCCL.
pub(super) fn check() -> Result<()> {
    check_platform()
}

/// Joins the others, on the GPU whose turn it is.
pub(super) fn join(world: &World, bootstrap: Arc<dyn Bootstrap>) -> Result<Joined> {
    let gpus = CudaDevice::count().max(1);
    let turn = |rank: usize| rank % gpus;
    let gpu = turn(world.local_rank);
    let device = CudaDevice::open(gpu)?;
    let local = world.local_world_size.unwrap_or(world.world_size);
    let sharers = (0..local).filter(|&rank| turn(rank) == gpu).count();
    let comm = NcclCommunicator::connect(bootstrap, Arc::clone(&device), Options::from_env())?;
    Ok(Joined {
        comm: Box::new(comm),
        gauge: Box::new(Gpu {
            device,
            gpu,
            sharers,
        }),
    })
}

#[derive(Debug)]
struct Gpu {
    device: Arc<CudaDevice>,
    gpu: usize,
    sharers: usize,
}

impl Gauge for Gpu {
    fn free_bytes(&self) -> Option<usize> {
        self.device.memory_info().ok().map(|(free, _)| free)
    }

    fn ordinary_bytes(&self) -> usize {
        self.device.ordinary_bytes()
    }

    fn gpu(&self) -> Option<usize> {
        Some(self.gpu)
    }

    fn sharers(&self) -> usize {
        self.sharers
    }
}
