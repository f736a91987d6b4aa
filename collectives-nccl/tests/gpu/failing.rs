//! Ranks that fail: the others end with a typed error in time.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::bootstrap::Bootstrap;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::{ErrorKind, Result};
use collectives_core::layered::symmetric_of;
use collectives_core::reduce::ReduceOp;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::options::Options;
use collectives_nccl::setup::Setup;

use crate::rank::Ctx;
use crate::{Outcome, Said, ensure};

fn short() -> Options {
    let mut options = Ctx::options();
    options.deadline = Duration::from_secs(4);
    options.work_deadline = Duration::from_secs(4);
    options
}

/// Whether this rank is the one that fails.
fn fails(ctx: &Ctx) -> bool {
    ctx.rank == ctx.ranks - 1
}

/// The others wait a little, so that what they see is not the end of a process.
fn linger(_: &mut Ctx) {
    thread::sleep(Duration::from_secs(8));
}

fn typed<T>(what: &str, begun: Instant, result: Result<T>) -> Outcome {
    let took = begun.elapsed();
    ensure(took < Duration::from_secs(25), || {
        format!("{what} took {took:?}")
    })?;
    match result.err().map(|error| error.kind().clone()) {
        Some(
            ErrorKind::Timeout { .. }
            | ErrorKind::Aborted { .. }
            | ErrorKind::PeerFailed { .. }
            | ErrorKind::Poisoned { .. },
        ) => Ok(()),
        other => Err(format!("{what}: {other:?}")),
    }
}

/// Has this process killed when it has told how the case went: no destructor runs.
fn die(ctx: &mut Ctx) {
    ctx.dies = true;
}

/// It says hello, so that the others go on into NCCL, and then nothing.
fn only_hello(world: &dyn Bootstrap) -> Outcome {
    let version = collectives_nccl::setup::library_version().said("version")?;
    let mut hello = version.code().to_le_bytes().to_vec();
    hello.push(1);
    hello.extend([0xff; 24]);
    hello.extend([0; 128]);
    let _ = world.all_gather("nccl/hello", &hello, Duration::from_secs(30));
    Ok(())
}

fn set_up(ctx: &mut Ctx, odd: fn(&mut Ctx)) -> Outcome {
    let world = ctx.world()?;
    if fails(ctx) {
        only_hello(&*world)?;
        odd(ctx);
        return Ok(());
    }
    let begun = Instant::now();
    let setup = Setup::new(world, Arc::clone(&ctx.cuda), short()).said("setup")?;
    typed("set-up", begun, setup.connect())
}

fn registration(ctx: &mut Ctx, odd: fn(&mut Ctx)) -> Outcome {
    let mut comm = ctx.connect_with(short())?;
    if fails(ctx) {
        odd(ctx);
        std::mem::forget(comm);
        return Ok(());
    }
    let begun = Instant::now();
    let symmetric = symmetric_of(&mut comm).said("symmetric")?;
    let memory = symmetric.allocate(2 << 20, None).said("allocate")?;
    typed("registration", begun, symmetric.register(&memory))
}

pub(crate) fn missing_in_set_up(ctx: &mut Ctx) -> Outcome {
    set_up(ctx, linger)
}

pub(crate) fn missing_in_registration(ctx: &mut Ctx) -> Outcome {
    registration(ctx, linger)
}

pub(crate) fn killed_in_set_up(ctx: &mut Ctx) -> Outcome {
    set_up(ctx, die)
}

pub(crate) fn killed_in_registration(ctx: &mut Ctx) -> Outcome {
    registration(ctx, die)
}

fn one_sum(ctx: &Ctx, comm: NcclCommunicator) -> (Collectives<NcclCommunicator>, Result<()>) {
    let mut handle = Collectives::without_scratch(comm);
    let outcome = Buffer::from_slice(&ctx.device, &[1.0_f32; 4096], &ctx.stream)
        .and_then(|mut tensor| {
            handle
                .all_reduce(&mut tensor, ReduceOp::Sum, &ctx.stream)
                .map(drop)
        })
        .and_then(|()| ctx.device.synchronize(&ctx.stream));
    (handle, outcome)
}

pub(crate) fn peer_exits(ctx: &mut Ctx) -> Outcome {
    let comm = ctx.connect_with(short())?;
    let (handle, outcome) = one_sum(ctx, comm);
    outcome.said("the first sum")?;
    if fails(ctx) {
        // Killed, as it were: no destructor runs.
        std::mem::forget(handle);
        println!("gone");
        die(ctx);
        return Ok(());
    }
    thread::sleep(Duration::from_secs(1));
    let begun = Instant::now();
    let mut handle = handle;
    let again = Buffer::from_slice(&ctx.device, &[1.0_f32; 4096], &ctx.stream)
        .and_then(|mut tensor| {
            handle
                .all_reduce(&mut tensor, ReduceOp::Sum, &ctx.stream)
                .map(drop)
        })
        .and_then(|()| ctx.device.synchronize(&ctx.stream));
    typed("the sum without a peer", begun, again)?;
    ensure(handle.health().is_err(), || {
        "the communicator thinks it is well".to_owned()
    })
}

pub(crate) fn peer_hangs(ctx: &mut Ctx) -> Outcome {
    let comm = ctx.connect_with(short())?;
    if fails(ctx) {
        linger(ctx);
        // What the others published reaches this rank too.
        let health = comm.abort_handle().health();
        return ensure(health.is_err(), || "the failure did not arrive".to_owned());
    }
    let begun = Instant::now();
    let (_handle, outcome) = one_sum(ctx, comm);
    typed("the sum without a peer", begun, outcome)
}

pub(crate) fn abort(ctx: &mut Ctx) -> Outcome {
    let comm = ctx.connect()?;
    let handle = comm.abort_handle();
    if fails(ctx) {
        thread::sleep(Duration::from_millis(500));
        handle.abort("because the test says so");
        let error = handle.health().err().map(|error| error.kind().clone());
        let aborted = matches!(error, Some(ErrorKind::Aborted { .. }));
        ensure(aborted, || format!("{error:?}"))?;
        // The others must have heard before this process ends.
        linger(ctx);
        return Ok(());
    }
    let begun = Instant::now();
    let (_handle, outcome) = one_sum(ctx, comm);
    typed("the sum that was aborted", begun, outcome)
}
