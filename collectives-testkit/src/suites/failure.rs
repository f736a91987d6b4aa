//! Failure and limits: a rank that is late, absent, aborted or panics, and what goes on.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use collectives_core::agreement::Record;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::ErrorKind;
use collectives_core::layered::{Layered, symmetric_of};
use collectives_core::path::Reason;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;

use crate::capability::Capability::{Abort, CountsMemory, Graphs, Symmetric};
use crate::case::{Case, Outcome, refused};
use crate::decorators::{Fail, FailAt, NullWindows, Point};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub const CASES: &[Case] = &[
    Case::new(
        "D6",
        "a timeout names the absent ranks and the next call works",
        timeout,
    )
    .catches(Planted::TimeoutNamesNobody),
    Case::new(
        "F2",
        "a null window is a typed reason and calls fall back",
        null_window,
    )
    .needs(&[Symmetric])
    .catches(Planted::FallbackUndeclared),
    Case::new(
        "F5",
        "starting without a rank ends at its deadline with a typed error",
        missing_rank,
    )
    .catches(Planted::JoinErrorUntyped),
    Case::new(
        "I43",
        "an aborted communicator refuses work and others go on",
        others_go_on,
    )
    .needs(&[Abort])
    .catches(Planted::AbortIgnored),
    Case::new(
        "I45",
        "a panic inside a call leaves no rank hanging",
        panic_inside,
    )
    .needs(&[Symmetric, Abort])
    .catches(Planted::AbortIgnored),
    Case::new(
        "I46",
        "everything may be dropped in any order",
        any_drop_order,
    )
    .needs(&[Symmetric, Graphs, CountsMemory])
    .catches(Planted::RetainForever),
    Case::new(
        "I46",
        "a communicator dropped without a shutdown fails those who wait for it",
        dropped,
    )
    .needs(&[Abort])
    .catches(Planted::DroppedUnheard),
    Case::new(
        "D6",
        "a blocked call is aborted from another thread",
        blocked,
    )
    .needs(&[Abort])
    .catches(Planted::AbortIgnored),
    Case::new(
        "D4",
        "windows come and go on one communicator while another reduces",
        beside,
    )
    .needs(&[Symmetric])
    .catches(Planted::RetireForgotten),
    Case::new(
        "B13",
        "nothing works through a communicator that is closed",
        closed,
    )
    .catches(Planted::ShutdownForgotten),
];

fn timeout(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let deadline = Duration::from_millis(150);
    rig.meet()?;
    // It comes when the others have given up, however slow they are.
    if rig.rank() == 0 {
        rig.meet()?;
    }
    let agreed = comm.agree(&Record::new(), deadline);
    if rig.rank() != 0 {
        rig.meet()?;
    }
    let error = refused("an agreement without a rank", agreed)?;
    let expected = ErrorKind::Timeout {
        absent: vec![Rank(0)],
        waited: deadline,
    };
    ensure_eq!(*error.kind(), expected, "the error");
    ensure!(!error.poisons(), "a timeout poisons");
    rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
    let mut handle = Collectives::without_scratch(comm);
    let mut tensor = rig.tensor::<f32>(10, 1)?;
    handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
    rig.expect_sum("the next call", &tensor, 1, rig.stream())?;
    let _deferred = handle.close()?;
    Ok(())
}

fn null_window(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let comm = Layered::new(NullWindows, comm);
    let scratch = rig.pool("geometric", rig.options())?;
    let mut handle = rig.handle(Box::new(comm), scratch);
    for round in 0..4 {
        let mut tensor = rig.tensor::<f32>(1000 * (1 + round), round)?;
        let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        ensure_eq!(report.reason, Reason::NoSymmetricMemory, "the reason");
        rig.expect_sum("the fallback", &tensor, round, rig.stream())?;
    }
    let allocations = rig.witness().calls("allocate_symmetric");
    ensure_eq!(allocations, 1, "attempts to get a window");
    let error = refused("a symmetric buffer", handle.symmetric_buffer::<u8>(10))?;
    let typed = matches!(error.kind(), ErrorKind::Unsupported(_));
    ensure!(typed, "not unsupported: {error}");
    let _deferred = handle.close()?;
    Ok(())
}

fn missing_rank(rig: &mut Rig<'_>) -> Outcome {
    let deadline = Duration::from_millis(300);
    let members: Vec<Rank> = (0..rig.ranks()).map(Rank::new).collect();
    rig.meet()?;
    if rig.rank() != 1 {
        let joined = rig.join("missing-rank", &members, deadline);
        let error = refused("starting without a rank", joined)?;
        let named = match error.kind() {
            ErrorKind::Timeout { absent, waited } => Some((absent.clone(), *waited)),
            _ => None,
        };
        let expected = Some((vec![Rank(1)], deadline));
        ensure_eq!(named, expected, "who was absent for how long, by: {error}");
    }
    rig.meet()
}

fn others_go_on(rig: &mut Rig<'_>) -> Outcome {
    let first = rig.communicator()?;
    let second = rig.communicator()?;
    let mut first = Collectives::without_scratch(first);
    let mut second = Collectives::without_scratch(second);
    let mut tensor = rig.tensor::<f32>(10, 1)?;
    first.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
    rig.device().synchronize(rig.stream())?;
    rig.meet()?;
    if rig.rank() == 1 {
        first.abort_handle().abort("only this one");
    }
    rig.meet()?;
    // Who asks hears of it; who does not may enqueue once more before it is told.
    refused("its health", first.health())?;
    let fresh = rig.device().create_stream()?;
    let error = refused(
        "work on an aborted communicator",
        first.all_reduce(&mut tensor, ReduceOp::Sum, &fresh),
    )?;
    ensure!(error.poisons(), "the error does not poison: {error}");
    let again = refused(
        "more work on it",
        first.all_reduce(&mut tensor, ReduceOp::Sum, &fresh),
    )?;
    ensure_eq!(again.kind(), error.kind(), "the second error");
    second.health()?;
    let mut tensor = rig.tensor::<f32>(10, 2)?;
    second.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
    rig.expect_sum("the other communicator", &tensor, 2, rig.stream())?;
    let _deferred = second.close()?;
    let _failed = first.close();
    Ok(())
}

fn dropped(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let gone = Rank::new(rig.ranks() - 1);
    rig.meet()?;
    if comm.info().rank != gone {
        let agreed = comm.agree(&Record::new(), rig.deadline());
        let error = refused("an agreement with a rank that is gone", agreed)?;
        let named = match error.kind() {
            ErrorKind::PeerFailed { rank, .. } => Some(*rank),
            _ => None,
        };
        ensure_eq!(named, Some(gone), "the rank that failed, by: {error}");
    }
    drop(comm);
    rig.meet()
}

fn panic_inside(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    // A barrier follows the first call where operations do not drain.
    let second = 2 + u64::from(!comm.capabilities().drains);
    let k = if rig.rank() == 1 { second } else { u64::MAX };
    let comm = Layered::new(FailAt::new(Point::Enqueue, k, Fail::Panic), comm);
    let scratch = rig.pool("geometric", rig.options())?;
    let mut handle = rig.handle(Box::new(comm), scratch);
    rig.eager(&mut handle, 1000, rig.stream())?;
    let stream = rig.device().create_stream()?;
    let mut tensor = rig.tensor::<f32>(250, 2)?;
    let reduced = catch_unwind(AssertUnwindSafe(|| {
        let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream);
        reduced.and_then(|_| rig.device().synchronize(&stream))
    }));
    match reduced {
        Err(_) => ensure_eq!(rig.rank(), 1, "a rank that panicked"),
        Ok(reduced) => {
            ensure!(rig.rank() != 1, "no panic where one was planned");
            let error = refused("a call beside a panic", reduced)?;
            let failed = matches!(
                error.kind(),
                ErrorKind::PeerFailed { rank: Rank(1), .. } | ErrorKind::Aborted { .. }
            );
            ensure!(failed, "not the peer's failure: {error}");
        }
    }
    let fresh = rig.device().create_stream()?;
    let mut tensor = rig.tensor::<f32>(250, 2)?;
    let later = handle.all_reduce(&mut tensor, ReduceOp::Sum, &fresh);
    let error = refused("a call after a panic", later)?;
    ensure!(error.poisons(), "not poisoned: {error}");
    let _failed = handle.close();
    Ok(())
}

fn any_drop_order(rig: &mut Rig<'_>) -> Outcome {
    for order in 0..6 {
        rig.settle();
        rig.meet()?;
        let before = rig.mapped_bytes();
        let mut comm = rig.communicator()?;
        let mut scratch = rig.pool("geometric", rig.options())?;
        let lease = rig.lease(&mut *comm, &mut *scratch, 1000)?;
        let stream = rig.device().create_stream()?;
        lease.complete()?;
        let mut handle = rig.handle(comm, scratch);
        let graph = rig.replay_of(&mut handle, 4000)?;
        match order {
            0 => {
                let _deferred = handle.close()?;
                drop((graph, stream));
            }
            1 => {
                drop(graph);
                let _deferred = handle.close()?;
                drop(stream);
            }
            2 => {
                drop((stream, graph.tensor));
                let _deferred = handle.close()?;
                drop(graph.executable);
            }
            3 => {
                drop(graph.executable);
                drop(stream);
                let _deferred = handle.close()?;
                drop(graph.tensor);
            }
            4 => {
                // Without a close: the others must have finished, and nothing may hang.
                rig.meet()?;
                drop(handle);
                drop(graph);
            }
            _ => {
                rig.meet()?;
                drop(graph);
                drop(handle);
            }
        }
        rig.settle();
        rig.meet()?;
        rig.settle();
        ensure_eq!(rig.mapped_bytes(), before, "mapped bytes, order {order}");
    }
    Ok(())
}

fn blocked(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let mut handle = Collectives::without_scratch(comm);
    rig.meet()?;
    if rig.rank() != 1 {
        let abort = handle.abort_handle();
        let stream = rig.device().create_stream()?;
        let mut tensor = rig.tensor::<f32>(5000, 1)?;
        let device = rig.device();
        let reduced = thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(50));
                abort.abort("from another thread");
            });
            let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream);
            reduced.and_then(|_| device.synchronize(&stream))
        });
        let error = refused("a call that was aborted", reduced)?;
        let ended = matches!(
            error.kind(),
            ErrorKind::Aborted { .. } | ErrorKind::PeerFailed { .. }
        );
        ensure!(ended, "not aborted: {error}");
    }
    rig.meet()?;
    refused("the health of an aborted communicator", handle.health())?;
    let _failed = handle.close();
    Ok(())
}

fn beside(rig: &mut Rig<'_>) -> Outcome {
    let mut registering = rig.communicator()?;
    let mut handle = Collectives::without_scratch(rig.communicator()?);
    let left = thread::scope(|scope| -> Outcome<usize> {
        let other = scope.spawn(move || -> collectives_core::error::Result<_> {
            for _ in 0..30 {
                let symmetric = symmetric_of(&mut *registering)?;
                let memory = symmetric.allocate(100, None)?;
                let window = symmetric.register(&memory)?;
                symmetric.retire(window)?;
            }
            let left = symmetric_of(&mut *registering)?.window_count();
            let _deferred = registering.shutdown()?;
            Ok(left)
        });
        for round in 0..100 {
            let mut tensor = rig.tensor::<f32>(2000, round)?;
            handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
            rig.expect_sum("beside a registration", &tensor, round, rig.stream())?;
        }
        let panicked = |_| crate::case::Failure("the registering thread panicked".to_owned());
        Ok(other.join().map_err(panicked)??)
    })?;
    ensure_eq!(left, 0, "windows left");
    let _deferred = handle.close()?;
    Ok(())
}

fn closed(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    rig.meet()?;
    let _deferred = comm.shutdown()?;
    rig.meet()?;
    let again = comm.shutdown()?;
    ensure_eq!(again, Default::default(), "what a second shutdown leaves");
    let error = refused("an agreement", comm.agree(&Record::new(), rig.deadline()))?;
    ensure_eq!(
        *error.kind(),
        ErrorKind::Closed,
        "an agreement after a shutdown"
    );
    let split = comm.split(Some(0), 0).map(drop);
    let error = refused("a split", split)?;
    ensure_eq!(*error.kind(), ErrorKind::Closed, "a split after a shutdown");
    let mut handle = Collectives::without_scratch(comm);
    let mut tensor = rig.tensor::<f32>(10, 1)?;
    let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
    let error = refused("an operation", reduced)?;
    ensure_eq!(
        *error.kind(),
        ErrorKind::Closed,
        "an operation after a shutdown"
    );
    Ok(())
}
