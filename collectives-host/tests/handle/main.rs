//! `Collectives` on the host backend: what users call, with scratch and without.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod calibrate;
mod disagreement;
mod failure;
mod graphs;
mod groups;
mod kernels;
mod lifetime;
mod operations;
mod paths;
mod pieces;
mod refusals;
mod requests;
mod rooted;
mod slices;
mod switch;
mod symmetric;
mod work;

use std::sync::Arc;
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_core::collectives::Collectives;
use collectives_core::device::Device;
use collectives_core::error::{Error, Result};
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;
use collectives_host::communicator::HostCommunicator;
use collectives_host::model::{DeviceModel, StreamMode};
use collectives_host::world::HostWorld;

type Handle = Collectives<HostCommunicator, Box<dyn ScratchAllocator>>;

/// Runs `body` on every rank of a world, with a pool of the policy, and gives back what each said.
fn ranks<R: Send>(
    mode: StreamMode,
    world_size: usize,
    policy: &str,
    body: impl Fn(&mut Handle, &mut Stream) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    world(mode, world_size).run(|comm| {
        let mut collectives = Collectives::new(comm, pool(policy)?);
        let mut stream = collectives.device().create_stream()?;
        let result = body(&mut collectives, &mut stream);
        drop(stream);
        let _deferred = collectives.close()?;
        result
    })
}

/// As [`ranks`], with the pool most tests use, and every rank must succeed.
fn all<R: Send>(
    mode: StreamMode,
    world_size: usize,
    body: impl Fn(&mut Handle, &mut Stream) -> Result<R> + Sync,
) -> Vec<R> {
    let results = ranks(mode, world_size, "geometric", body);
    results.into_iter().map(Result::unwrap).collect()
}

/// A world whose streams run like this, and that gives up on a rank after 20 s.
fn world(mode: StreamMode, ranks: usize) -> HostWorld {
    HostWorld::new(ranks)
        .model(move |_| DeviceModel::new().with_stream_mode(mode))
        .deadline(Duration::from_secs(20))
}

/// The error of a call: at once where it ran inline, else when its stream is waited for.
fn error_of<R: std::fmt::Debug>(result: Result<R>, device: &dyn Device, stream: &Stream) -> Error {
    result
        .map(drop)
        .and_then(|()| device.synchronize(stream))
        .unwrap_err()
}

fn pool(policy: &str) -> Result<Box<dyn ScratchAllocator>> {
    ScratchConfig::with_policy(policy).build()
}

fn device(collectives: &Handle) -> Arc<dyn Device> {
    Arc::clone(collectives.device())
}
