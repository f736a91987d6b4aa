//! What the ranks of those jobs do.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::dtype::Element;
use collectives_core::env::World;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;
use collectives_core::reduce::{ReduceOp, Scalar};
use collectives_host::device::HostDevice;
use collectives_host::model::{DeviceModel, StreamMode};
use collectives_mpi::bootstrap::MpiBootstrap;
use collectives_mpi::communicator::MpiCommunicator;
use collectives_mpi::environment::{Mpi, Threads};
use collectives_testkit::launch::Body;
use half::bf16;
use mpi::ffi;

pub(crate) const BODIES: [(&str, Body); 15] = [
    ("panics", panics),
    ("is-killed", is_killed),
    ("fails", fails),
    ("is-late", is_late),
    ("aborts", aborts),
    ("large", large),
    ("serialized", serialized),
    ("rounding", rounding),
    ("rules", rules),
    ("finalizes", finalizes),
    ("adopted", adopted),
    ("funneled", funneled),
    ("strangers", strangers),
    ("ordered", ordered),
    ("orders-apart", orders_apart),
];

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

type Handle<C> = Collectives<C, collectives_core::no_scratch::NoScratch>;

pub(crate) struct Job {
    pub(crate) comm: MpiCommunicator,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

pub(crate) fn job() -> Result<Job> {
    let bootstrap: Arc<dyn Bootstrap> = MpiBootstrap::of_world(DEADLINE)?;
    let device = HostDevice::new(DeviceModel::new().with_shared_memory(true))?;
    let comm = MpiCommunicator::connect_within(bootstrap, device, DEADLINE)?;
    let info = comm.info();
    Ok(Job {
        rank: info.rank.index(),
        ranks: info.world_size,
        device: Arc::clone(comm.device()),
        comm,
    })
}

pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: &[T],
    expected: &[T],
) -> Result<()> {
    let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
    if found.len() == expected.len() && wrong.is_none() {
        return Ok(());
    }
    let at = wrong.unwrap_or(0);
    Err(failure(format!(
        "{what}: element {at} is {:?} and should be {:?}",
        found.get(at),
        expected.get(at)
    )))
}

pub(crate) fn failure(text: String) -> Error {
    Error::new(ErrorKind::System(text))
}

/// All ranks but this one wait in an operation.
fn others_wait(job: Job, absent: usize) -> Result<()> {
    if job.rank == absent {
        return Ok(());
    }
    let stream = job.device.create_stream()?;
    let mut tensor = Buffer::from_slice(&job.device, &[1_u32; 1000], &stream)?;
    let mut handle = Collectives::without_scratch(job.comm);
    handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
    Ok(())
}

fn panics(_: &World) -> Result<Vec<u8>> {
    let job = job()?;
    assert!(job.rank != 1, "a rank panics here");
    others_wait(job, 1)?;
    Ok(Vec::new())
}

fn is_killed(_: &World) -> Result<Vec<u8>> {
    let job = job()?;
    if job.rank == 1 {
        let own = rustix::process::getpid();
        let _gone = rustix::process::kill_process(own, rustix::process::Signal::KILL);
    }
    others_wait(job, 1)?;
    Ok(Vec::new())
}

fn fails(_: &World) -> Result<Vec<u8>> {
    let job = job()?;
    if job.rank == 1 {
        return Err(failure("this rank has had enough".to_owned()));
    }
    others_wait(job, 1)?;
    Ok(Vec::new())
}

fn is_late(_: &World) -> Result<Vec<u8>> {
    let job = job()?;
    job.comm.set_deadline(Duration::from_millis(700));
    if job.rank == 1 {
        thread::sleep(DEADLINE);
    }
    others_wait(job, 1)?;
    Ok(Vec::new())
}

fn aborts(_: &World) -> Result<Vec<u8>> {
    let job = job()?;
    if job.rank == 1 {
        thread::sleep(Duration::from_millis(200));
        job.comm.abort_handle().abort("on purpose");
        thread::sleep(DEADLINE);
    }
    others_wait(job, 1)?;
    Ok(Vec::new())
}

/// This rank's input; sums and products of it are exact.
fn input<T: From<u8>>(rank: usize, count: usize) -> Vec<T> {
    let value = |index: usize| u8::try_from((index * 7 + rank * 3) % 11).unwrap_or(0);
    (0..count).map(|index| T::from(value(index))).collect()
}

fn sum_of(ranks: usize, count: usize) -> Vec<u32> {
    (0..count)
        .map(|index| {
            (0..ranks)
                .map(|rank| input::<u32>(rank, count)[index])
                .sum()
        })
        .collect()
}

/// Every operation, with calls that carry next to nothing, so that all of them are cut.
fn large(_: &World) -> Result<Vec<u8>> {
    Mpi::limit_calls(256);
    let job = job()?;
    let (rank, ranks) = (job.rank, job.ranks);
    let stream = job.device.create_stream()?;
    let device = Arc::clone(&job.device);
    let mut handle = Collectives::without_scratch(job.comm);
    let count = 3 * 97;
    let whole = input::<u32>(rank, count);
    let sum = sum_of(ranks, count);
    let part = count / ranks;
    let root = Rank(1);
    let send = Buffer::from_slice(&device, &whole, &stream)?;

    let mut out = Buffer::from_slice(&device, &whole, &stream)?;
    handle.all_reduce(&mut out, ReduceOp::Sum, &stream)?;
    expect("all_reduce", &out.read(&stream)?, &sum)?;

    let mut out = Buffer::<u32>::zeroed(&device, part, &stream)?;
    handle.reduce_scatter(&send, &mut out, ReduceOp::Sum, &stream)?;
    expect(
        "reduce_scatter",
        &out.read(&stream)?,
        &sum[rank * part..][..part],
    )?;

    let mut out = Buffer::<u32>::zeroed(&device, count * ranks, &stream)?;
    handle.all_gather(&send, &mut out, &stream)?;
    let all: Vec<_> = (0..ranks)
        .flat_map(|rank| input::<u32>(rank, count))
        .collect();
    expect("all_gather", &out.read(&stream)?, &all)?;

    let mut out = Buffer::from_slice(&device, &whole, &stream)?;
    handle.broadcast(&mut out, root, &stream)?;
    expect("broadcast", &out.read(&stream)?, &input::<u32>(1, count))?;

    let mut out = Buffer::<u32>::zeroed(&device, count, &stream)?;
    handle.all_to_all(&send, &mut out, &stream)?;
    let swapped: Vec<_> = (0..ranks)
        .flat_map(|from| input::<u32>(from, count)[rank * part..][..part].to_vec())
        .collect();
    expect("all_to_all", &out.read(&stream)?, &swapped)?;
    let _deferred = handle.close()?;
    Ok(Vec::new())
}

/// Two communicators and two streams of one process take turns.
fn serialized(_: &World) -> Result<Vec<u8>> {
    let mpi = Mpi::initialize_with(Threads::Serialized)?;
    if mpi.threads() == Threads::Multiple {
        // This MPI grants more than was asked for, so there are no turns to take.
        return Ok(b"granted more".to_vec());
    }
    let mut job = job()?;
    let second = job.comm.split(Some(0), 0)?;
    let second = second.ok_or_else(|| failure("no child".to_owned()))?;
    let host = Arc::clone(job.comm.host_device());
    let streams = [
        host.create_stream_with(StreamMode::Asynchronous)?,
        host.create_stream_with(StreamMode::Asynchronous)?,
    ];
    let (device, ranks, rank) = (job.device, job.ranks, job.rank);
    let mut first = Collectives::without_scratch(job.comm);
    let mut second: Handle<Box<dyn Communicator>> = Collectives::without_scratch(second);
    let count = 5000;
    let (own, sum) = (input::<u32>(rank, count), sum_of(ranks, count));
    let mut tensors = Vec::new();
    for round in 0..20 {
        let stream = &streams[round % 2];
        let mut tensor = Buffer::from_slice(&device, &own, stream)?;
        match round % 2 {
            0 => first.all_reduce(&mut tensor, ReduceOp::Sum, stream)?,
            _ => second.all_reduce(&mut tensor, ReduceOp::Sum, stream)?,
        };
        tensors.push((tensor, round % 2));
    }
    for (tensor, stream) in &tensors {
        expect(
            "an operation in turn",
            &tensor.read(&streams[*stream])?,
            &sum,
        )?;
    }
    let _deferred = first.close()?;
    let _deferred = second.close()?;
    Ok(Vec::new())
}

fn reduced<T: Element>(
    job: &mut Handle<MpiCommunicator>,
    own: &[T],
    op: ReduceOp,
) -> Result<Vec<T>> {
    let device = Arc::clone(job.communicator().device());
    let stream = device.create_stream()?;
    let mut tensor = Buffer::from_slice(&device, own, &stream)?;
    job.all_reduce(&mut tensor, op, &stream)?;
    tensor.read(&stream)
}

/// 256, 1 and 1: rounded at every step, the sum of the first two is 256 again.
fn rounding(_: &World) -> Result<Vec<u8>> {
    let job = job()?;
    let rank = job.rank;
    let mut handle = Collectives::without_scratch(job.comm);
    for count in [3, 20_000] {
        let own = [256.0, 1.0, 1.0][rank];
        let found = reduced(
            &mut handle,
            &vec![bf16::from_f32(own); count],
            ReduceOp::Sum,
        )?;
        expect("a sum of bf16", &found, &vec![bf16::from_f32(258.0); count])?;
    }
    let _deferred = handle.close()?;
    Ok(Vec::new())
}

fn rules(_: &World) -> Result<Vec<u8>> {
    let job = job()?;
    let rank = job.rank;
    let mut handle = Collectives::without_scratch(job.comm);
    let own = [-7_i32, -1, 1][rank];
    let average = reduced(&mut handle, &[own; 5], ReduceOp::Average)?;
    expect("a truncated average", &average, &[-2; 5])?;
    let own = [1.0_f32, 2.0, 6.0][rank];
    let average = reduced(&mut handle, &[own; 5], ReduceOp::Average)?;
    expect("an average", &average, &[3.0; 5])?;
    let own = [0.0_f32, -0.0, f32::NAN][rank];
    let largest = reduced(&mut handle, &[own; 3], ReduceOp::Max)?;
    if !largest.iter().all(|value| value.is_nan()) {
        return Err(failure(format!("a NaN was lost: {largest:?}")));
    }
    let own = [0.0_f32, -0.0, 0.0][rank];
    let smallest = reduced(&mut handle, &[own; 3], ReduceOp::Min)?;
    if !smallest.iter().all(|value| value.is_sign_negative()) {
        return Err(failure(format!("zeroes are not ordered: {smallest:?}")));
    }
    let scalar = Scalar::new([2.0_f32, 3.0, 5.0][rank]);
    let scaled = reduced(&mut handle, &[1.0_f32; 4], ReduceOp::PreMulSum(scalar))?;
    expect("a sum with scalars", &scaled, &[10.0; 4])?;
    let _deferred = handle.close()?;
    Ok(Vec::new())
}

fn finalizes(_: &World) -> Result<Vec<u8>> {
    let job = job()?;
    // SAFETY: Nothing of MPI is in flight; what comes after must find out.
    let _ = unsafe { ffi::MPI_Finalize() };
    let stream = job.device.create_stream()?;
    let mut tensor = Buffer::from_slice(&job.device, &[1_u32; 10], &stream)?;
    let mut handle = Collectives::without_scratch(job.comm);
    match handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream) {
        Ok(_) => Err(failure("an operation without MPI".to_owned())),
        Err(error) => Ok(error.to_string().into_bytes()),
    }
}

fn begin_elsewhere(wanted: std::ffi::c_int) -> Result<()> {
    let mut level = 0;
    let (none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: MPI is not initialised yet; it needs no arguments.
    let code = unsafe { ffi::MPI_Init_thread(none, nothing, wanted, &raw mut level) };
    match code {
        0 => Ok(()),
        _ => Err(failure(format!("MPI_Init_thread returned {code}"))),
    }
}

fn adopted(_: &World) -> Result<Vec<u8>> {
    // SAFETY: The shim's constant is initialised before `main`.
    begin_elsewhere(unsafe { ffi::RSMPI_THREAD_MULTIPLE })?;
    let job = job()?;
    let rank = job.rank;
    let mut handle = Collectives::without_scratch(job.comm);
    let sum = reduced(&mut handle, &input::<u32>(rank, 100), ReduceOp::Sum)?;
    expect("a sum", &sum, &sum_of(2, 100))?;
    let _deferred = handle.close()?;
    // Whoever began ends it.
    // SAFETY: Nothing of MPI is in flight, and nothing comes after.
    match unsafe { ffi::MPI_Finalize() } {
        0 => Ok(Vec::new()),
        code => Err(failure(format!("MPI_Finalize returned {code}"))),
    }
}

fn funneled(_: &World) -> Result<Vec<u8>> {
    // SAFETY: The shim's constant is initialised before `main`.
    begin_elsewhere(unsafe { ffi::RSMPI_THREAD_FUNNELED })?;
    let refused = match Mpi::initialize() {
        Ok(mpi) => Err(failure(format!("{:?} was taken", mpi.threads()))),
        Err(error) => Ok(error.to_string().into_bytes()),
    };
    // SAFETY: Nothing of MPI is in flight, and nothing comes after.
    let _ = unsafe { ffi::MPI_Finalize() };
    refused
}

fn strangers(_: &World) -> Result<Vec<u8>> {
    job().map(|_| Vec::new())
}

/// 2^24, 1 and 1 in f32: in the order of ranks nothing but 2^24 comes of it, in the other one 2^24 + 2.
fn ordered(_: &World) -> Result<Vec<u8>> {
    Mpi::initialize()?.sum_in_rank_order(true);
    let job = job()?;
    let (rank, ranks) = (job.rank, job.ranks);
    let mut handle = Collectives::without_scratch(job.comm);
    let large = 16_777_216.0_f32;
    for count in [1, 700, 100_000] {
        for odd in 0..ranks {
            let own = if rank == odd { large } else { 1.0 };
            let found = reduced(&mut handle, &vec![own; count], ReduceOp::Sum)?;
            let before = (0..odd).map(|_| 1.0_f32).sum::<f32>();
            let sum = (odd + 1..ranks).fold(before + large, |sum, _| sum + 1.0);
            expect("a sum in order", &found, &vec![sum; count])?;
        }
    }
    let _deferred = handle.close()?;
    Ok(Vec::new())
}

fn orders_apart(world: &World) -> Result<Vec<u8>> {
    Mpi::initialize()?.sum_in_rank_order(world.rank == Rank(1));
    match job() {
        Ok(_) => Err(failure("ranks that sum differently joined".to_owned())),
        Err(error) => Ok(error.to_string().into_bytes()),
    }
}
