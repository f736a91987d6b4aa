//! Ranks that disagree, with and without `check`: one typed error everywhere, and work goes on.

use std::sync::Arc;
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Field, Result};
use collectives_core::graph::Capture;
use collectives_core::path::Staging;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::stream::Stream;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::error_of;

type Dynamic = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

/// Rank 1 is the odd one of three.
const ODD: Rank = Rank(1);

struct Case<'a> {
    on: &'a mut Dynamic,
    device: Arc<dyn Device>,
    stream: &'a mut Stream,
    /// A symmetric buffer of 4096 elements.
    symmetric: Buffer<f32>,
}

impl Case<'_> {
    fn is_odd(&self) -> bool {
        self.on.rank() == ODD
    }

    fn pick<T>(&self, odd: T, usual: T) -> T {
        if self.is_odd() { odd } else { usual }
    }

    fn buffer(&self, count: usize) -> Result<Buffer<f32>> {
        Buffer::from_slice(&self.device, &vec![1.0; count], self.stream)
    }

    fn error<R: std::fmt::Debug>(&self, result: Result<R>) -> Error {
        error_of(result, &*self.device, self.stream)
    }
}

/// Makes a call that differs on the odd rank; gives its error.
type Call = fn(&mut Case<'_>) -> Result<Error>;

fn operation(case: &mut Case<'_>) -> Result<Error> {
    let mut tensor = case.buffer(1000)?;
    let result = match case.is_odd() {
        true => case.on.broadcast(&mut tensor, Rank(0), case.stream),
        false => case.on.all_reduce(&mut tensor, ReduceOp::Sum, case.stream),
    };
    Ok(case.error(result))
}

fn dtype(case: &mut Case<'_>) -> Result<Error> {
    let mut integers = Buffer::from_slice(&case.device, &[1_i32; 1000], case.stream)?;
    let mut floats = case.buffer(1000)?;
    let result = match case.is_odd() {
        true => case
            .on
            .all_reduce(&mut integers, ReduceOp::Sum, case.stream),
        false => case.on.all_reduce(&mut floats, ReduceOp::Sum, case.stream),
    };
    Ok(case.error(result))
}

fn reduction(case: &mut Case<'_>) -> Result<Error> {
    let mut tensor = case.buffer(1000)?;
    let op = case.pick(ReduceOp::Max, ReduceOp::Sum);
    let result = case.on.all_reduce(&mut tensor, op, case.stream);
    Ok(case.error(result))
}

fn count(case: &mut Case<'_>) -> Result<Error> {
    let mut tensor = case.buffer(case.pick(1001, 1000))?;
    let result = case.on.all_reduce(&mut tensor, ReduceOp::Sum, case.stream);
    Ok(case.error(result))
}

fn counts(case: &mut Case<'_>) -> Result<Error> {
    let counts = case.pick([300, 300, 400], [400, 300, 300]);
    let send = case.buffer(counts[case.on.rank().index()])?;
    let mut recv = case.buffer(1000)?;
    let result = case.on.all_gather_v(&send, &mut recv, &counts, case.stream);
    Ok(case.error(result))
}

fn root(case: &mut Case<'_>) -> Result<Error> {
    let mut tensor = case.buffer(1000)?;
    let root = case.pick(Rank(2), Rank(0));
    let result = case.on.broadcast(&mut tensor, root, case.stream);
    Ok(case.error(result))
}

fn window(case: &mut Case<'_>) -> Result<Error> {
    case.on.set_staging(Staging::Never);
    let mut tensor = match case.is_odd() {
        true => case.buffer(64)?,
        false => case.symmetric.slice(..64)?,
    };
    let result = case.on.all_reduce(&mut tensor, ReduceOp::Sum, case.stream);
    case.on.set_staging(Staging::Forced);
    Ok(case.error(result))
}

fn offset(case: &mut Case<'_>) -> Result<Error> {
    case.on.set_staging(Staging::Never);
    let start = case.pick(32, 0);
    let mut tensor = case.symmetric.slice(start..start + 64)?;
    let result = case.on.all_reduce(&mut tensor, ReduceOp::Sum, case.stream);
    case.on.set_staging(Staging::Forced);
    Ok(case.error(result))
}

fn group(case: &mut Case<'_>) -> Result<Error> {
    let (mut first, mut second) = (case.buffer(10)?, case.buffer(20)?);
    let odd = case.is_odd();
    let result = case.on.group(case.stream, |group| {
        group.all_reduce(&mut first, ReduceOp::Sum)?;
        if !odd {
            group.broadcast(&mut second, Rank(0))?;
        }
        Ok(())
    });
    Ok(case.error(result))
}

fn capture(case: &mut Case<'_>) -> Result<Error> {
    let mut tensor = case.buffer(1000)?;
    if !case.is_odd() {
        let result = case.on.all_reduce(&mut tensor, ReduceOp::Sum, case.stream);
        return Ok(case.error(result));
    }
    let device = Arc::clone(&case.device);
    let capture = Capture::begin(&*device, case.stream)?;
    let result = case
        .on
        .all_reduce(&mut tensor, ReduceOp::Sum, capture.stream());
    // The capture goes on.
    let _graph = capture.end()?;
    Ok(result.unwrap_err())
}

#[rstest]
#[case::operation(operation, Field::Operation)]
#[case::dtype(dtype, Field::DType)]
#[case::reduction(reduction, Field::Reduction)]
#[case::count(count, Field::Count)]
#[case::counts(counts, Field::Counts)]
#[case::root(root, Field::Root)]
#[case::window(window, Field::Window)]
#[case::offset(offset, Field::Offset)]
#[case::group(group, Field::GroupLength)]
#[case::capture(capture, Field::Capture)]
fn is_the_same_error_everywhere_and_everything_works_on(
    #[case] call: Call,
    #[case] field: Field,
    #[values(false, true)] check: bool,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let mut config = ScratchConfig::with_policy("geometric");
    config.check = check;
    config.agree_deadline = Duration::from_secs(20);
    let results: Vec<Result<Error>> = crate::world(mode, 3).run(|comm| {
        let host = Arc::clone(comm.host_device());
        let mut on = Collectives::new(config.decorate(Box::new(comm)), config.build()?);
        on.set_staging(Staging::Forced);
        let device = Arc::clone(on.device());
        // Everything is a hit, so that nothing is found by the pool.
        let _plan = on.reserve(&[Request::new(1 << 20)])?;
        let mut symmetric = on.symmetric_buffer::<f32>(4096)?;
        let mut stream = device.create_stream()?;
        symmetric.write(&[1.0; 4096], &stream)?;
        // A graph that claims the slot, on the stream that will fail.
        let mut captured = Buffer::from_slice(&device, &[1_i32; 100], &stream)?;
        let recording = Capture::begin(&*device, &mut stream)?;
        on.all_reduce(&mut captured, ReduceOp::Sum, recording.stream())?;
        let mut graph = recording.end()?.instantiate()?;

        let error = call(&mut Case {
            on: &mut on,
            device: Arc::clone(&device),
            stream: &mut stream,
            symmetric: symmetric.clone(),
        })?;
        assert!(!error.poisons(), "{error}");
        on.health()?;

        // A stream keeps its asynchronous error; another one works, hits, misses and replays.
        let stream = device.create_stream()?;
        for count in [1000, 1 << 20] {
            let mut tensor = Buffer::from_slice(&device, &vec![1_i32; count], &stream)?;
            on.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
            assert!(tensor.read(&stream)?.iter().all(|&value| value == 3));
        }
        graph.launch(&*device, &stream)?;
        assert_eq!(captured.read(&stream)?, [3; 100]);
        let mut values = [1_u8; 3];
        on.all_reduce_host(&mut values, ReduceOp::Sum)?;
        assert_eq!(values, [3; 3]);
        assert_eq!(symmetric.read(&stream)?, [1.0; 4096], "nothing moved");
        drop((graph, captured, symmetric));
        host.wait_for_destructors();
        let _deferred = on.close()?;
        device.collect();
        assert_eq!(host.mapped_bytes(), 0, "nothing is lost");
        Ok(error)
    });
    let errors: Vec<Error> = results.into_iter().map(Result::unwrap).collect();
    for error in &errors {
        assert_eq!(error.kind(), errors[0].kind());
        let ErrorKind::Mismatch {
            rank, field: found, ..
        } = error.kind()
        else {
            panic!("{error}");
        };
        assert_eq!((*rank, *found), (ODD, field));
    }
}

#[rstest]
fn a_blocking_call_that_fails_spoils_no_later_one(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    crate::all(mode, 2, |collectives, _| {
        let _plan = collectives.reserve(&[Request::new(4096)])?;
        let op = match collectives.rank() {
            Rank(0) => ReduceOp::Sum,
            _ => ReduceOp::Max,
        };
        let mut values = [1_i32; 9];
        let error = collectives.all_reduce_host(&mut values, op).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Mismatch { .. }),
            "{error}"
        );
        assert_eq!(values, [1; 9]);
        collectives.all_reduce_host(&mut values, ReduceOp::Sum)?;
        assert_eq!(values, [2; 9]);
        Ok(())
    });
}

#[rstest]
fn a_configuration_that_differs_is_found_at_the_first_miss(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let errors = crate::world(mode, 3).run(|comm| {
        let mut config = ScratchConfig::with_policy("geometric");
        config.growth = (comm.info().rank == ODD).then_some(1.5);
        config.agree_deadline = Duration::from_secs(20);
        let mut on = Collectives::new(comm, config.build().unwrap());
        let device = Arc::clone(on.device());
        let stream = device.create_stream().unwrap();
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 5000], &stream).unwrap();
        let error = on.all_reduce(&mut tensor, ReduceOp::Sum, &stream);
        assert_eq!(tensor.read(&stream).unwrap(), [1; 5000]);
        assert_eq!(on.stats().registrations, 0);
        on.set_staging(Staging::Never);
        on.all_reduce(&mut tensor, ReduceOp::Sum, &stream).unwrap();
        assert_eq!(tensor.read(&stream).unwrap(), [3; 5000]);
        let _deferred = on.close().unwrap();
        error.unwrap_err().kind().clone()
    });
    for kind in &errors {
        assert_eq!(kind, &errors[0]);
        assert!(
            matches!(kind, ErrorKind::Mismatch { rank, field: Field::Configuration, .. } if *rank == ODD),
            "{kind}"
        );
    }
}
