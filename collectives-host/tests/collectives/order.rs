//! Ranks whose calls are out of order find out, at once or at the next call in which they meet.
//!
//! Everything here holds for ranks that are threads and for ranks that are processes; to the second kind it
//! does not matter that these share a process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use collectives_core::addr::Operand;
use collectives_core::agreement::Record;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::{Error, ErrorKind, Field, Result};
use collectives_core::in_process::InProcess;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::stream::Stream;
use collectives_host::communicator::HostCommunicator;
use collectives_host::device::HostDevice;
use collectives_host::model::{DeviceModel, StreamMode};
use collectives_host::process::ProcessCommunicator;
use rstest::rstest;

use crate::common::{call, enqueue, operand};

/// So long that a test which waits for it has failed.
const LONG: Duration = Duration::from_secs(120);
/// So short that a test can wait for it.
const SHORT: Duration = Duration::from_millis(150);
const SUM: Op<'static> = Op::AllReduce(ReduceOp::Sum);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Threads,
    Processes,
}
use Kind::{Processes, Threads};

enum Comm {
    Threads(HostCommunicator),
    Processes(ProcessCommunicator),
}

/// One rank.
struct Place {
    comm: Comm,
    stream: Stream,
}

impl Place {
    fn join(kind: Kind, end: InProcess, model: &DeviceModel) -> Result<Self> {
        let device = HostDevice::new(model.clone().with_rank(end.rank()))?;
        let end: Arc<dyn Bootstrap> = Arc::new(end);
        let comm = match kind {
            Threads => Comm::Threads(HostCommunicator::connect_within(end, device, LONG)?),
            Processes => Comm::Processes(ProcessCommunicator::connect_within(end, device, LONG)?),
        };
        let stream = match &comm {
            Comm::Threads(comm) => comm.device().create_stream()?,
            Comm::Processes(comm) => comm.device().create_stream()?,
        };
        Ok(Self { comm, stream })
    }

    fn comm(&mut self) -> &mut dyn Communicator {
        match &mut self.comm {
            Comm::Threads(comm) => comm,
            Comm::Processes(comm) => comm,
        }
    }

    fn deadline(&self, deadline: Duration) {
        match &self.comm {
            Comm::Threads(comm) => comm.set_deadline(deadline),
            Comm::Processes(comm) => comm.set_deadline(deadline),
        }
    }

    fn run(&mut self, call: Collective<'_>) -> Result<()> {
        let stream = self.stream.clone();
        // SAFETY: Tests keep operands alive until the stream has been synchronised.
        unsafe { enqueue(self.comm(), &[call], &stream) }?;
        self.comm().device().synchronize(&stream)
    }

    fn sum(&mut self, count: usize) -> Result<()> {
        let mut values = vec![1_u8; count];
        let side = operand(&mut values);
        self.run(call(SUM, DType::U8, side, side, Counts::Even(count)))?;
        let ranks = self.comm().info().world_size;
        assert!(values.iter().all(|&value| usize::from(value) == ranks));
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        self.run(Collective::BARRIER)
    }

    fn agree(&mut self, what: &'static str) -> Result<()> {
        let record = Record::new().named(Field::Operation, what);
        self.comm().agree(&record, LONG).map(drop)
    }

    fn register(&mut self) -> Result<()> {
        let symmetric = self.comm().symmetric().unwrap();
        let memory = symmetric.allocate(1, None)?;
        symmetric.register(&memory).map(drop)
    }

    fn send(&mut self, to: u32, count: usize) -> Result<()> {
        let mut values = vec![1_u8; count];
        let (op, side) = (Op::Send { to: Rank(to) }, operand(&mut values));
        let count = Counts::Even(count);
        self.run(call(op, DType::U8, side, Operand::EMPTY, count))
    }

    fn recv(&mut self, from: u32, count: usize) -> Result<()> {
        let mut values = vec![0_u8; count];
        let (op, side) = (Op::Recv { from: Rank(from) }, operand(&mut values));
        let count = Counts::Even(count);
        self.run(call(op, DType::U8, Operand::EMPTY, side, count))
    }
}

fn on_models<R: Send>(
    kind: Kind,
    ranks: usize,
    model: &DeviceModel,
    body: impl Fn(usize, Place) -> R + Sync,
) -> Vec<R> {
    let ends = InProcess::world(ranks);
    thread::scope(|scope| {
        let body = &body;
        let rank =
            |(rank, end)| scope.spawn(move || body(rank, Place::join(kind, end, model).unwrap()));
        let ranks: Vec<_> = ends.into_iter().enumerate().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// What every rank gets.
fn on_every_rank<R: Send>(
    kind: Kind,
    ranks: usize,
    body: impl Fn(usize, &mut Place) -> R + Sync,
) -> Vec<R> {
    let model = DeviceModel::new().with_shared_memory(true);
    on_models(kind, ranks, &model, |rank, mut place| {
        let result = body(rank, &mut place);
        let _ = place.comm().shutdown();
        result
    })
}

/// Fails unless all ranks have the same error, which says that this rank has come to something else.
fn expect_disorder(errors: &[Error], odd: u32, theirs: &str, ours: &str) {
    for error in errors {
        assert_eq!(error.kind(), errors[0].kind());
        assert!(error.poisons(), "{error}");
        let ErrorKind::Mismatch {
            rank,
            field: Field::Order,
            theirs: found,
            ours: others,
        } = error.kind()
        else {
            panic!("{error}");
        };
        assert_eq!(*rank, Rank(odd), "{error}");
        assert!(found.contains(theirs) && others.contains(ours), "{error}");
    }
}

/// The error of whatever this rank calls next.
fn later(place: &mut Place) -> Error {
    let error = place.agree("later").unwrap_err();
    assert_eq!(place.sum(8).unwrap_err().kind(), error.kind());
    let health = place.comm().abort_handle().health();
    assert_eq!(health.unwrap_err().kind(), error.kind());
    error
}

fn is_timeout_of(error: &Error, rank: u32) -> bool {
    matches!(error.kind(), ErrorKind::Timeout { absent, .. } if *absent == [Rank(rank)])
}

/// Rank 0 makes `first` alone, of which rank 1 is absent, then both go on, rank 1 after rank 0 was told.
fn rank_1_misses<R: Send>(
    kind: Kind,
    first: impl Fn(&mut Place) -> Result<()> + Sync,
    next: impl Fn(usize, &mut Place) -> R + Sync,
) -> Vec<R> {
    let told = Barrier::new(2);
    on_every_rank(kind, 2, |rank, place| {
        if rank == 0 {
            place.deadline(SHORT);
            assert!(is_timeout_of(&first(place).unwrap_err(), 1));
            place.deadline(LONG);
        }
        told.wait();
        next(rank, place)
    })
}

#[rstest]
fn an_operation_that_was_left_out_is_found_at_the_next_round(
    #[values(Threads, Processes)] kind: Kind,
) {
    let errors = rank_1_misses(
        kind,
        |place| place.sum(8),
        |_, place| {
            let error = place.agree("reserve").unwrap_err();
            assert_eq!(later(place).kind(), error.kind());
            error
        },
    );
    expect_disorder(
        &errors,
        1,
        "reserve after 0 operations",
        "reserve after 1 operation",
    );
}

#[rstest]
fn another_operation_in_place_of_the_one_that_was_left_out_is_found_at_once(
    #[values(Threads, Processes)] kind: Kind,
    #[values(8, 30_000)] count: usize,
) {
    let errors = rank_1_misses(
        kind,
        |place| place.sum(count),
        |rank, place| {
            // The same one, of which rank 0 makes the next already.
            place.sum(count - rank).unwrap_err()
        },
    );
    let (theirs, ours) = (count - 1, count);
    expect_disorder(
        &errors,
        1,
        &format!("of {theirs}"),
        &format!("all_reduce sum u8 of {ours}"),
    );
    let errors = rank_1_misses(
        kind,
        |place| place.sum(count),
        |_, place| place.barrier().unwrap_err(),
    );
    expect_disorder(&errors, 1, "barrier", "all_reduce sum u8");
}

#[rstest]
fn a_group_in_place_of_another_that_was_left_out_is_found_at_once(
    #[values(Threads, Processes)] kind: Kind,
) {
    fn group(place: &mut Place, count: usize) -> Result<()> {
        let mut values = vec![1_u8; count];
        let side = operand(&mut values);
        let sum = call(SUM, DType::U8, side, side, Counts::Even(count));
        let stream = place.stream.clone();
        // SAFETY: The operands live until the stream has been synchronised.
        unsafe { enqueue(place.comm(), &[Collective::BARRIER, sum], &stream) }?;
        place.comm().device().synchronize(&stream)
    }
    let errors = rank_1_misses(
        kind,
        |place| group(place, 9),
        |rank, place| group(place, 9 - rank).unwrap_err(),
    );
    expect_disorder(&errors, 1, "a group of 2", "a group of 2");
}

#[rstest]
fn a_round_that_was_left_out_is_found_when_ranks_meet_again(
    #[values(Threads, Processes)] kind: Kind,
) {
    let told = Barrier::new(2);
    let errors = on_every_rank(kind, 2, |rank, place| {
        if rank == 0 {
            let record = Record::new().named(Field::Operation, "reserve");
            let error = place.comm().agree(&record, SHORT).unwrap_err();
            assert!(is_timeout_of(&error, 1));
        }
        told.wait();
        // The operation is the same for both. Then rank 1 is told of the round that it left out.
        place.sum(8).unwrap();
        if rank == 1 {
            assert!(is_timeout_of(&place.agree("reserve").unwrap_err(), 1));
        }
        place.agree("reserve").unwrap_err()
    });
    expect_disorder(
        &errors,
        1,
        "reserve after 1 operation",
        "reserve after 0 operations",
    );
}

#[rstest]
fn a_rank_that_makes_the_same_calls_late_gets_their_outcomes_and_goes_on(
    #[values(Threads, Processes)] kind: Kind,
    #[values(1, 2, 5)] calls: usize,
) {
    let told = Barrier::new(2);
    let outcomes = on_every_rank(kind, 2, |rank, place| {
        place.deadline(SHORT);
        if rank == 1 {
            told.wait();
        }
        let outcomes: Vec<_> = (0..calls)
            .map(|call| place.sum(100 * call + 8).unwrap_err())
            .collect();
        if rank == 0 {
            told.wait();
        }
        place.deadline(LONG);
        for round in 0..3 {
            place.sum(8 + round).unwrap();
            place.agree("reserve").unwrap();
        }
        outcomes
    });
    for error in outcomes.iter().flatten() {
        assert!(is_timeout_of(error, 1) && !error.poisons(), "{error}");
        assert_eq!(error.kind(), outcomes[0][0].kind());
    }
}

#[test]
fn a_process_that_is_too_far_behind_is_told_so() {
    let told = Barrier::new(2);
    let errors = on_every_rank(Processes, 2, |rank, place| {
        if rank == 0 {
            place.deadline(Duration::from_millis(1));
            for _ in 0..40 {
                assert!(is_timeout_of(&place.sum(8).unwrap_err(), 1));
            }
        }
        told.wait();
        place.deadline(LONG);
        place.sum(8).unwrap_err()
    });
    expect_disorder(&errors, 1, "all_reduce sum u8 of 8 as call 1", "call 40");
}

/// A call that rank 1 makes where the others make another.
type Step = fn(&mut Place) -> Result<()>;

fn sum(place: &mut Place) -> Result<()> {
    place.sum(30)
}

fn barrier(place: &mut Place) -> Result<()> {
    place.barrier()
}

fn reserve(place: &mut Place) -> Result<()> {
    place.agree("reserve")
}

fn register(place: &mut Place) -> Result<()> {
    place.register()
}

fn split(place: &mut Place) -> Result<()> {
    place.comm().split(Some(0), 0).map(drop)
}

const BARRIER: (&str, Step) = ("barrier", barrier);
const SUM_OF_30: (&str, Step) = ("all_reduce sum u8 of 30", sum);
const RESERVE: (&str, Step) = ("reserve", reserve);
const REGISTER: (&str, Step) = ("register", register);
const SPLIT: (&str, Step) = ("split", split);

#[rstest]
fn ranks_that_wait_for_each_other_in_an_operation_and_in_a_round_end_at_once(
    #[values(Threads, Processes)] kind: Kind,
    #[values(2, 3)] ranks: usize,
    #[values(BARRIER, SUM_OF_30)] operation: (&str, Step),
    #[values(RESERVE, REGISTER, SPLIT)] round: (&str, Step),
) {
    for (odd, usual) in [(operation, round), (round, operation)] {
        let errors = on_every_rank(kind, ranks, |rank, place| {
            sum(place).unwrap();
            let (_, step) = if rank == 1 { odd } else { usual };
            let error = step(place).unwrap_err();
            assert_eq!(later(place).kind(), error.kind());
            error
        });
        expect_disorder(&errors, 1, odd.0, usual.0);
    }
}

#[rstest]
fn a_message_and_a_round_that_wait_for_each_other_end_at_once(
    #[values(Threads, Processes)] kind: Kind,
) {
    let errors = on_every_rank(kind, 2, |rank, place| match rank {
        0 => place.recv(1, 5).unwrap_err(),
        _ => place.agree("reserve").unwrap_err(),
    });
    expect_disorder(&errors, 1, "reserve", "recv u8 of 5");
}

#[rstest]
fn a_message_in_place_of_one_that_was_left_out_is_found_at_once(
    #[values(Threads, Processes)] kind: Kind,
) {
    let told = Barrier::new(2);
    let errors = on_every_rank(kind, 2, |rank, place| {
        if rank == 0 {
            place.deadline(SHORT);
            assert!(is_timeout_of(&place.send(1, 5).unwrap_err(), 1));
            place.deadline(LONG);
        }
        told.wait();
        match rank {
            0 => place.send(1, 6).unwrap_err(),
            _ => place.recv(0, 6).unwrap_err(),
        }
    });
    expect_disorder(&errors, 1, "recv u8 of 6", "send u8 of 5");
}

#[rstest]
fn operations_beside_their_callers_may_wait_while_a_round_goes_on(
    #[values(Threads, Processes)] kind: Kind,
) {
    let model = DeviceModel::new()
        .with_shared_memory(true)
        .with_stream_mode(StreamMode::Asynchronous);
    let model = &model;
    on_models(kind, 2, model, |rank, mut place| {
        for round in 0..6 {
            // So long that whoever waits looks for what may be wrong.
            if round % 2 == rank {
                thread::sleep(Duration::from_millis(40));
            }
            let stream = place.stream.clone();
            // SAFETY: A barrier has no operands.
            unsafe { enqueue(place.comm(), &[Collective::BARRIER], &stream) }.unwrap();
            if round % 3 == rank {
                thread::sleep(Duration::from_millis(40));
            }
            place.agree("reserve").unwrap();
        }
        let stream = place.stream.clone();
        place.comm().device().synchronize(&stream).unwrap();
        let _ = place.comm().shutdown().unwrap();
    });
}

#[rstest]
fn a_rank_that_closes_early_fails_those_who_wait_for_it(
    #[values(Threads, Processes)] kind: Kind,
    #[values(SUM_OF_30, RESERVE, REGISTER, SPLIT)] (_, step): (&str, Step),
    #[values(0, 30)] apart: u64,
) {
    for late in 0..2 {
        let errors = on_every_rank(kind, 3, |rank, place| {
            sum(place).unwrap();
            // Whichever comes first, it ends alike.
            if usize::from(rank == 1) == late {
                thread::sleep(Duration::from_millis(apart));
            }
            match rank {
                1 => place.comm().shutdown().map(drop),
                _ => step(place),
            }
        });
        for (rank, outcome) in errors.iter().enumerate() {
            if rank == 1 {
                assert!(outcome.is_ok());
                continue;
            }
            let error = outcome.as_ref().unwrap_err();
            let ErrorKind::PeerFailed {
                rank: Rank(1),
                cause,
            } = error.kind()
            else {
                panic!("{error}");
            };
            assert!(cause.contains("shut the communicator down"), "{error}");
        }
    }
}

#[rstest]
fn ranks_that_close_one_after_the_other_fail_nobody(#[values(Threads, Processes)] kind: Kind) {
    for apart in [0, 15] {
        on_every_rank(kind, 3, |rank, place| {
            sum(place).unwrap();
            reserve(place).unwrap();
            thread::sleep(Duration::from_millis(apart * rank as u64));
            let _ = place.comm().shutdown().unwrap();
        });
    }
}

#[rstest]
fn a_rank_that_panics_is_said_to_have_panicked(#[values(Threads, Processes)] kind: Kind) {
    let model = DeviceModel::new().with_shared_memory(true);
    let causes = on_models(kind, 2, &model, |rank, mut place| {
        sum(&mut place).unwrap();
        if rank == 1 {
            let ended = catch_unwind(AssertUnwindSafe(move || {
                let _place = place;
                panic!("on purpose");
            }));
            assert!(ended.is_err());
            return String::new();
        }
        sum(&mut place).unwrap_err().to_string()
    });
    assert!(
        causes[0].contains("rank 1 failed: it panicked"),
        "{causes:?}"
    );
}
