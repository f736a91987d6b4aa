//! Calls that a rank refuses before another hears of them, with `check`: what one rank alone refuses is the
//! same error on all of them at once, and what all refuse is each rank's own mistake.

use std::sync::Arc;
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::{ErrorKind, Field, Misuse, Result};
use collectives_core::path::{Fallback, OpReport, Staging};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::stream::Stream;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

type Dynamic = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

const RANKS: usize = 3;

/// One rank, which makes its call wrongly where `wrong` says so.
struct Call<'a> {
    on: &'a mut Dynamic,
    device: &'a Arc<dyn Device>,
    stream: &'a Stream,
    wrong: bool,
}

impl Call<'_> {
    fn buffer(&self, count: usize) -> Buffer<f32> {
        Buffer::zeroed(self.device, count, self.stream).unwrap()
    }

    fn pick<T>(&self, wrong: T, right: T) -> T {
        if self.wrong { wrong } else { right }
    }
}

type Make = fn(&mut Call<'_>) -> Result<OpReport>;

fn length(call: &mut Call<'_>) -> Result<OpReport> {
    let (send, mut recv) = (call.buffer(8), call.buffer(call.pick(7, 8)));
    call.on
        .all_reduce_into(&send, &mut recv, ReduceOp::Sum, call.stream)
}

fn dtype(call: &mut Call<'_>) -> Result<OpReport> {
    let send = call.buffer(8);
    let mut recv = call.buffer(8);
    let mut others = Buffer::<i32>::zeroed(call.device, 8, call.stream).unwrap();
    match call.wrong {
        true => call
            .on
            .all_reduce_into(&send, &mut others, ReduceOp::Sum, call.stream),
        false => call
            .on
            .all_reduce_into(&send, &mut recv, ReduceOp::Sum, call.stream),
    }
}

fn root(call: &mut Call<'_>) -> Result<OpReport> {
    let mut tensor = call.buffer(8);
    let root = call.pick(Rank(9), Rank(0));
    call.on.broadcast(&mut tensor, root, call.stream)
}

fn parts(call: &mut Call<'_>) -> Result<OpReport> {
    let send = call.buffer(call.pick(7, 6));
    let mut recv = call.buffer(2);
    call.on
        .reduce_scatter(&send, &mut recv, ReduceOp::Sum, call.stream)
}

fn counts(call: &mut Call<'_>) -> Result<OpReport> {
    let (send, mut recv) = (call.buffer(1), call.buffer(3));
    let counts = call.pick(&[1, 1][..], &[1, 1, 1]);
    call.on.all_gather_v(&send, &mut recv, counts, call.stream)
}

fn overlap(call: &mut Call<'_>) -> Result<OpReport> {
    let whole = call.buffer(16);
    let send = whole.slice(..8)?;
    let start = call.pick(1, 8);
    let mut recv = whole.slice(start..start + 8)?;
    call.on
        .all_reduce_into(&send, &mut recv, ReduceOp::Sum, call.stream)
}

fn average(call: &mut Call<'_>) -> Result<OpReport> {
    let (send, mut recv) = (call.buffer(3), call.buffer(1));
    let mut others = Buffer::<i32>::zeroed(call.device, 1, call.stream).unwrap();
    let averaged = match call.wrong {
        true => call
            .on
            .reduce_scatter_average(&send, &mut others, &[1; 3], call.stream),
        false => call
            .on
            .reduce_scatter_average(&send, &mut recv, &[1; 3], call.stream),
    };
    averaged.map(|averaged| averaged.report)
}

fn stream(call: &mut Call<'_>) -> Result<OpReport> {
    let mut tensor = call.buffer(8);
    let elsewhere = HostDevice::new(DeviceModel::new()).unwrap();
    let foreign = elsewhere.create_stream().unwrap();
    let stream = call.pick(&foreign, call.stream);
    call.on.all_reduce(&mut tensor, ReduceOp::Sum, stream)
}

fn memory(call: &mut Call<'_>) -> Result<OpReport> {
    let elsewhere: Arc<dyn Device> = HostDevice::new(DeviceModel::new()).unwrap();
    let foreign = elsewhere.create_stream().unwrap();
    let theirs = Buffer::zeroed(&elsewhere, 8, &foreign).unwrap();
    let mut tensor = call.pick(theirs, call.buffer(8));
    call.on.all_reduce(&mut tensor, ReduceOp::Sum, call.stream)
}

fn fallback(call: &mut Call<'_>) -> Result<OpReport> {
    // Equal on all ranks, as it must be, but where one has lost its way.
    let (staging, fallback) = call.pick(
        (Staging::Never, Fallback::Forbid),
        (Staging::Never, Fallback::Allow),
    );
    call.on.set_staging(staging);
    call.on.set_fallback(fallback);
    let mut tensor = call.buffer(8);
    let result = call.on.all_reduce(&mut tensor, ReduceOp::Sum, call.stream);
    call.on.set_fallback(Fallback::Allow);
    call.on.set_staging(Staging::Auto);
    result
}

/// The reports of a group, of which the first counts.
fn first(reports: Result<Vec<OpReport>>) -> Result<OpReport> {
    reports.map(|reports| reports[0])
}

fn member(call: &mut Call<'_>) -> Result<OpReport> {
    let (mut left, mut right) = (call.buffer(8), call.buffer(8));
    let root = call.pick(Rank(9), Rank(0));
    first(call.on.group(call.stream, |group| {
        group.all_reduce(&mut left, ReduceOp::Sum)?;
        group.broadcast(&mut right, root).map(drop)
    }))
}

fn member_added(call: &mut Call<'_>) -> Result<OpReport> {
    let (send, mut recv) = (call.buffer(1), call.buffer(3));
    let mut others = Buffer::<i32>::zeroed(call.device, 3, call.stream).unwrap();
    let wrong = call.wrong;
    first(call.on.group(call.stream, |group| {
        match wrong {
            true => group.all_gather_v(&send, &mut others, &[1; 3]),
            false => group.all_gather_v(&send, &mut recv, &[1; 3]),
        }
        .map(drop)
    }))
}

fn members_overlap(call: &mut Call<'_>) -> Result<OpReport> {
    let whole = call.buffer(16);
    let mut left = whole.slice(..8)?;
    let start = call.pick(4, 8);
    let mut right = whole.slice(start..start + 8)?;
    first(call.on.group(call.stream, |group| {
        group.all_reduce(&mut left, ReduceOp::Sum)?;
        group.all_reduce(&mut right, ReduceOp::Sum).map(drop)
    }))
}

fn slice(call: &mut Call<'_>) -> Result<OpReport> {
    let send = vec![0.0_f32; call.pick(7, 6)];
    let mut recv = [0.0; 2];
    call.on.reduce_scatter_host(&send, &mut recv, ReduceOp::Sum)
}

#[rstest]
fn is_the_same_error_everywhere_at_once(
    #[values(
        length,
        dtype,
        root,
        parts,
        counts,
        overlap,
        average,
        stream,
        memory,
        fallback,
        member,
        member_added,
        members_overlap,
        slice
    )]
    make: Make,
    #[values(false, true)] reserved: bool,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let mut config = ScratchConfig::default();
    config.check = true;
    // Nobody waits for it: who refuses says so.
    config.agree_deadline = Duration::from_secs(600);
    let errors = crate::world(mode, RANKS).run(|comm| {
        let mut on = Collectives::new(config.decorate(Box::new(comm)), config.build().unwrap());
        if reserved {
            let _plan = on.reserve(&[Request::new(4096)]).unwrap();
        }
        let device = Arc::clone(on.device());
        let stream = device.create_stream().unwrap();
        let is_odd = on.rank() == Rank(1);
        let mut make = |wrong| {
            make(&mut Call {
                on: &mut on,
                device: &device,
                stream: &stream,
                wrong,
            })
        };
        let alone = make(is_odd).unwrap_err();
        // Told once, so that nobody meets it in the next round.
        make(false).unwrap();
        let own = make(true).unwrap_err();
        make(false).unwrap();
        let _deferred = on.close().unwrap();
        assert!(!alone.poisons() && !own.poisons());
        (alone, own)
    });
    for (alone, own) in &errors {
        assert_eq!(alone.kind(), errors[0].0.kind());
        let ErrorKind::Mismatch {
            rank: Rank(1),
            field: Field::Operation,
            theirs,
            ours,
        } = alone.kind()
        else {
            panic!("{alone}");
        };
        assert_eq!(theirs, "a call that its own checks refuse");
        // Without a reservation the others may be where they ask for scratch first.
        let in_acquire = ["a miss of acquire", "acquire"].contains(&ours.as_str());
        assert!(
            ours == "a valid call" || (!reserved && in_acquire),
            "{alone}"
        );
        let is_own =
            own.misuse().is_some() || matches!(own.kind(), ErrorKind::FallbackForbidden { .. });
        assert!(is_own, "{own}");
    }
    let why = errors.iter().map(|(alone, _)| {
        let error: &dyn std::error::Error = alone;
        error.source().is_some()
    });
    let why: Vec<_> = why.collect();
    assert_eq!(why, [false, true, false], "who refused knows why");
}

#[test]
fn a_message_concerns_two_ranks_and_is_told_to_nobody() {
    let mut config = ScratchConfig::default();
    config.check = true;
    config.agree_deadline = Duration::from_secs(600);
    let results = crate::world(Inline, RANKS).run(|comm| {
        let mut on = Collectives::without_scratch(config.decorate(Box::new(comm)));
        let device = Arc::clone(on.device());
        let stream = device.create_stream()?;
        let mut tensor = Buffer::<f32>::zeroed(&device, 8, &stream)?;
        if on.rank() == Rank(1) {
            let error = on.send(&tensor, Rank(9), &stream).unwrap_err();
            assert!(matches!(
                error.misuse(),
                Some(Misuse::RankOutOfRange { .. })
            ));
        }
        on.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
        on.close().map(drop)
    });
    results.into_iter().for_each(|result| result.unwrap());
}
