//! Counts: those that ranks disagree on, and those above what MPI's `int` can say.

use std::sync::Arc;
use std::time::Duration;

use collectives_alloc::checked::Checked;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::env::World;
use collectives_core::error::{ErrorKind, Field, Result};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_testkit::launch::Body;

use crate::bodies::{DEADLINE, expect, failure, job};

pub(crate) const BODIES: [(&str, Body); 3] = [
    ("checked-counts", checked),
    ("unchecked-counts", unchecked),
    ("beyond-int", beyond_int),
];

/// Names the operation and the elements of a job that is not checked.
pub(crate) const CASE: &str = "COLLECTIVES_TEST_COUNTS";

/// The rank whose counts are others.
const ODD: usize = 1;

/// Every operation says on every rank who is odd, and nothing has moved.
fn checked(_: &World) -> Result<Vec<u8>> {
    let job = job()?;
    let (rank, ranks, device) = (job.rank, job.ranks, job.device);
    let stream = device.create_stream()?;
    let mut handle = Collectives::without_scratch(Checked::new(DEADLINE).around(job.comm));
    for count in [8, 3_000, 300_000] {
        let mine = if rank == ODD { count / 2 } else { count };
        let send = Buffer::from_slice(&device, &vec![1_u32; mine], &stream)?;
        let mut same = Buffer::<u32>::zeroed(&device, mine, &stream)?;
        let mut all = Buffer::<u32>::zeroed(&device, mine * ranks, &stream)?;
        let refused = [
            handle.all_reduce_into(&send, &mut same, ReduceOp::Sum, &stream),
            handle.all_gather(&send, &mut all, &stream),
            handle.broadcast(&mut same, Rank(0), &stream),
            handle.reduce_scatter(&all, &mut same, ReduceOp::Sum, &stream),
        ];
        for outcome in refused {
            let kind = outcome.err().map(|error| error.kind().clone());
            let is_named = matches!(
                &kind,
                Some(ErrorKind::Mismatch {
                    rank: Rank(1),
                    field: Field::Count,
                    ..
                })
            );
            if !is_named {
                return Err(failure(format!("{count} elements: {kind:?}")));
            }
        }
        expect("what was not moved", &same.read(&stream)?, &vec![0; mine])?;
        // The communicator is whole.
        let mut tensor = Buffer::from_slice(&device, &vec![1_u32; count], &stream)?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
        let sum = u32::try_from(ranks).unwrap_or(0);
        expect("a sum", &tensor.read(&stream)?, &vec![sum; count])?;
    }
    let _deferred = handle.close()?;
    Ok(Vec::new())
}

/// What MPI makes of counts that nobody compares: an error, or how many elements are wrong.
fn unchecked(_: &World) -> Result<Vec<u8>> {
    let case = std::env::var(CASE).map_err(|error| failure(error.to_string()))?;
    let (operation, count) = case.split_once(' ').unwrap_or((&case, ""));
    let count: usize = count.parse().map_err(|_| failure(case.clone()))?;
    let job = job()?;
    job.comm.set_deadline(Duration::from_secs(2));
    let (rank, ranks, device) = (job.rank, job.ranks, job.device);
    let stream = device.create_stream()?;
    let mut handle = Collectives::without_scratch(job.comm);
    let mine = if rank == ODD { count / 2 } else { count };
    let send = Buffer::from_slice(&device, &vec![1_u32; mine], &stream)?;
    let mut same = Buffer::from_slice(&device, &vec![1_u32; mine], &stream)?;
    let mut all = Buffer::<u32>::zeroed(&device, mine * ranks, &stream)?;
    let (outcome, found, right) = match operation {
        "all_reduce" => {
            let outcome = handle.all_reduce(&mut same, ReduceOp::Sum, &stream);
            (outcome, same, u32::try_from(ranks).unwrap_or(0))
        }
        "broadcast" => {
            let mut same = Buffer::from_slice(&device, &vec![u32::from(rank == 0); mine], &stream)?;
            let outcome = handle.broadcast(&mut same, Rank(0), &stream);
            (outcome, same, 1)
        }
        _ => (handle.all_gather(&send, &mut all, &stream), all, 1),
    };
    let text = match outcome {
        Err(error) => error.to_string(),
        Ok(_) => {
            let wrong = found.read(&stream)?.into_iter();
            let wrong = wrong.filter(|&value| value != right).count();
            format!("ends well, {wrong} of {} elements wrong", found.len())
        }
    };
    let _deferred = handle.close();
    Ok(text.into_bytes())
}

/// More bytes than an `int` counts: broadcast and added up, for real.
fn beyond_int(_: &World) -> Result<Vec<u8>> {
    const BYTES: usize = (1 << 31) + 4099;
    const LOOK: usize = 64 << 20;
    let job = job()?;
    // Open MPI takes its time with two gigabytes.
    job.comm.set_deadline(Duration::from_secs(200));
    let (rank, device) = (job.rank, Arc::clone(&job.device));
    let stream = device.create_stream()?;
    let mut handle = Collectives::without_scratch(job.comm);
    let mut tensor = Buffer::<u8>::zeroed(&device, BYTES, &stream)?;
    // Marks at both ends, around the places where an `int` ends, and at odd places between.
    let marks = [
        0,
        12_345_679,
        (1 << 31) - 2,
        (1 << 31) - 1,
        1 << 31,
        BYTES - 1,
    ];
    if rank == 0 {
        for (value, &at) in (7..).zip(&marks) {
            tensor.slice(at..=at)?.write(&[value], &stream)?;
        }
    }
    let check = |tensor: &Buffer<u8>, times: u8| -> Result<()> {
        let mut begin = 0;
        while begin < BYTES {
            let end = (begin + LOOK).min(BYTES);
            let mut expected = vec![0_u8; end - begin];
            for (value, &at) in (7..).zip(&marks) {
                if (begin..end).contains(&at) {
                    expected[at - begin] = value * times;
                }
            }
            let found = tensor.slice(begin..end)?.read(&stream)?;
            // Which it is, is only asked where some differ: these are many.
            if found != expected {
                expect(&format!("bytes from {begin}"), &found, &expected)?;
            }
            begin = end;
        }
        Ok(())
    };
    handle.broadcast(&mut tensor, Rank(0), &stream)?;
    check(&tensor, 1)?;
    handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
    check(&tensor, 2)?;
    let _deferred = handle.close()?;
    Ok(Vec::new())
}
