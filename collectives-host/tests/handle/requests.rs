//! What scratch calls are said to take, and what they take.

use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collective::{Counts, Op};
use collectives_core::collectives::Collectives;
use collectives_core::dtype::DType;
use collectives_core::error::{Misuse, Result};
use collectives_core::path::{OpReport, Path, Staging};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::stream::Stream;
use collectives_host::communicator::HostCommunicator;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::{Handle, all, device, world};

const SUM: Op<'static> = Op::AllReduce(ReduceOp::Sum);

/// The group of these tests: uneven parts in the middle, and one member that is never staged.
fn members(counts: &[usize]) -> [(Op<'_>, DType, Counts<'_>); 4] {
    let message = Op::Broadcast { root: Rank(0) };
    [
        (SUM, DType::U8, Counts::Even(5)),
        (Op::AllGather, DType::F32, Counts::Uneven(counts)),
        (message, DType::U8, Counts::Even(3)),
        (Op::AllReduce(ReduceOp::Max), DType::F64, Counts::Even(700)),
    ]
}

/// The same, as calls.
fn run(handle: &mut Handle, counts: &[usize], stream: &Stream) -> Result<Vec<OpReport>> {
    let device = device(handle);
    let me = handle.rank().index();
    let mut first = Buffer::<u8>::zeroed(&device, 5, stream)?;
    let part = Buffer::<f32>::zeroed(&device, counts[me], stream)?;
    let mut whole = Buffer::<f32>::zeroed(&device, counts.iter().sum(), stream)?;
    let mut message = Buffer::<u8>::zeroed(&device, 3, stream)?;
    let mut last = Buffer::<f64>::zeroed(&device, 700, stream)?;
    handle.group(stream, |group| {
        group.all_reduce(&mut first, ReduceOp::Sum)?;
        group.all_gather_v(&part, &mut whole, counts)?;
        group.broadcast(&mut message, Rank(0))?;
        group.all_reduce(&mut last, ReduceOp::Max)?;
        Ok(())
    })
}

fn capped(comm: HostCommunicator, bytes: usize) -> Result<Handle> {
    let mut config = ScratchConfig::with_policy("geometric");
    config.cap = Some(ByteSize::new(bytes));
    let mut handle = Collectives::new(comm, config.build()?);
    handle.set_staging(Staging::Forced);
    Ok(handle)
}

#[rstest]
fn a_call_that_was_reserved_for_is_a_hit(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 2, |handle, stream| {
        handle.set_staging(Staging::Forced);
        let plan = handle.reserve_for(SUM, DType::F32, 5000)?;
        assert!(plan.mapped_bytes >= 20_000, "{plan:?}");
        let (before, device) = (handle.stats(), device(handle));
        handle.seal();
        let mut tensor = Buffer::<f32>::zeroed(&device, 5000, stream)?;
        let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
        assert_eq!(report.path, Path::Staged);
        let after = handle.stats();
        assert_eq!(after.registrations, before.registrations);
        assert_eq!(after.hits, before.hits + 1);
        Ok(())
    });
}

#[rstest]
fn what_is_never_staged_reserves_nothing(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 2, |handle, _| {
        let exchange = Op::AllToAll {
            recv_counts: Counts::Even(9),
        };
        let plan = handle.reserve_for(exchange, DType::F32, 9)?;
        assert_eq!((plan.mapped_bytes, handle.stats().registrations), (0, 0));
        assert_eq!(handle.request_for_group([])?, None);
        let none = [(exchange, DType::F32, Counts::Even(9))];
        assert_eq!(handle.request_for_group(none)?, None);
        // Found before anybody is asked.
        let long = handle.reserve_for(SUM, DType::F32, usize::MAX / 2);
        let misuse = long.unwrap_err().misuse().cloned();
        assert!(matches!(misuse, Some(Misuse::SizeOverflow { .. })));
        let short = [(Op::AllGather, DType::U8, Counts::Uneven(&[1]))];
        let misuse = handle
            .request_for_group(short)
            .unwrap_err()
            .misuse()
            .cloned();
        assert!(matches!(misuse, Some(Misuse::WrongCountsLength { .. })));
        Ok(())
    });
}

#[rstest]
fn a_group_takes_what_is_said_and_no_byte_less(#[values(Inline, Asynchronous)] mode: StreamMode) {
    let counts = [3, 1200];
    let said = all(mode, 2, |handle, _| {
        handle.request_for_group(members(&counts))
    });
    let bytes = said[0].map(|request| request.bytes).unwrap();
    assert_eq!(
        said[1].map(|request| request.bytes),
        Some(bytes),
        "alike on all ranks"
    );
    for (cap, staged) in [(bytes, true), (bytes - 1, false)] {
        let outcomes = world(mode, 2).run(|comm| {
            let mut handle = capped(comm, cap)?;
            let stream = handle.device().create_stream()?;
            let reports = run(&mut handle, &counts, &stream);
            handle.device().synchronize(&stream)?;
            drop(stream);
            let _deferred = handle.close()?;
            reports
        });
        for reports in outcomes {
            let paths: Vec<_> = reports.unwrap().iter().map(|report| report.path).collect();
            let [a, b, message, c] = paths[..] else {
                panic!("{paths:?}");
            };
            assert_eq!(
                [a, b, c].map(|path| path == Path::Staged),
                [staged; 3],
                "{cap}"
            );
            assert_ne!(message, Path::Staged);
        }
    }
}
