//! Ranks whose calls are out of order: all are told, at once or at the next call in which they meet.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use collectives_core::agreement::Record;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Field};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use super::field_of;
use crate::capability::Capability::{Abort, SeesPeers, Symmetric};
use crate::case::{Case, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "I39",
        "a rank that left a round out is found when ranks meet again",
        round_left_out,
    )
    .catches(Planted::MissedCallForgotten),
    Case::new(
        "I39",
        "a rank that left an operation out is found at its next call",
        operation_left_out,
    )
    .needs(&[SeesPeers])
    .catches(Planted::MissedCallForgotten),
    Case::new(
        "I39",
        "an operation and a reserve that wait for each other are told at once",
        crossed,
    )
    .needs(&[SeesPeers, Symmetric])
    .catches(Planted::CrossedCallsWait),
    Case::new(
        "I39",
        "one operation too many is told at once when the others close",
        one_too_many,
    )
    .needs(&[SeesPeers])
    .catches(Planted::CrossedCallsWait),
    Case::new(
        "I39",
        "a rank that closes early fails those who wait for it in a round",
        closes_early,
    )
    .needs(&[SeesPeers])
    .catches(Planted::ShutdownForgotten),
    Case::new("I45", "a rank that panics is said to have panicked", panics)
        .needs(&[Abort])
        .catches(Planted::PanicUnsaid),
];

/// A record of a call of this name.
fn named(call: &'static str) -> Record {
    Record::new().named(Field::Operation, call)
}

/// Fails unless the error says that this rank's calls are out of order, and nothing works after it.
fn expect_disorder(error: &Error, odd: usize) -> Outcome {
    let named = match error.kind() {
        ErrorKind::Mismatch {
            rank,
            field: Field::Order,
            ..
        } => Some(rank.index()),
        _ => None,
    };
    ensure_eq!(
        named,
        Some(odd),
        "the rank that is out of order, by: {error}"
    );
    ensure!(error.poisons(), "it does not poison: {error}");
    Ok(())
}

fn round_left_out(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let odd = rig.ranks() - 1;
    let left_out = rig.rank() == odd;
    if !left_out {
        let agreed = comm.agree(&named("reserve"), Duration::from_millis(100));
        let error = refused("a round without a rank", agreed)?;
        let timed_out = matches!(error.kind(), ErrorKind::Timeout { .. });
        ensure!(timed_out, "no timeout: {error}");
    }
    rig.meet()?;
    if left_out {
        // This rank's next call is taken for the one that it never made.
        let agreed = comm.agree(&named("trim"), rig.deadline());
        let error = refused("the round that timed out", agreed)?;
        let timed_out = matches!(error.kind(), ErrorKind::Timeout { .. });
        ensure!(timed_out, "no timeout: {error}");
    }
    let error = refused(
        "a round after it",
        comm.agree(&named("trim"), rig.deadline()),
    )?;
    expect_disorder(&error, odd)?;
    rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
    let again = refused("a later round", comm.agree(&named("trim"), rig.deadline()))?;
    ensure!(again.poisons(), "a later error does not poison: {again}");
    Ok(())
}

fn operation_left_out(rig: &mut Rig<'_>) -> Outcome {
    let members: Vec<Rank> = (0..rig.ranks()).map(Rank::new).collect();
    // The deadline of operations is that of their communicator.
    let deadline = (rig.deadline() / 10).max(Duration::from_secs(1));
    let joined = rig.join("left-out", &members, deadline)?;
    let device = Arc::clone(joined.comm.device());
    let mut handle = Collectives::without_scratch(joined.comm);
    let odd = rig.ranks() - 1;
    let left_out = rig.rank() == odd;
    if !left_out {
        let stream = device.create_stream()?;
        let mut tensor = Buffer::<f32>::zeroed(&device, 10, &stream)?;
        let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream);
        let reduced = reduced.and_then(|_| device.synchronize(&stream));
        let error = refused("an operation without a rank", reduced)?;
        let timed_out = matches!(error.kind(), ErrorKind::Timeout { .. });
        ensure!(timed_out, "no timeout: {error}");
    }
    rig.meet()?;
    let is_forgotten = rig.has(Planted::MissedCallForgotten);
    let mut barrier = || {
        let stream = device.create_stream()?;
        let entered = handle.barrier(&stream);
        match entered.and_then(|_| device.synchronize(&stream)) {
            Err(error) if is_forgotten && field_of(&error) == Some(Field::Order) => Ok(()),
            outcome => outcome,
        }
    };
    let mut error = refused("a barrier", barrier())?;
    if left_out && matches!(error.kind(), ErrorKind::Timeout { .. }) {
        // The next call was taken for the one that it never made.
        error = refused("a second barrier", barrier())?;
    }
    expect_disorder(&error, odd)?;
    rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
    drop(handle);
    rig.meet()
}

/// Whether an error tells that ranks make different calls.
fn tells_of_calls(error: &Error) -> bool {
    matches!(field_of(error), Some(Field::Operation | Field::Order))
}

fn crossed(rig: &mut Rig<'_>) -> Outcome {
    for odd in [0, rig.ranks() - 1] {
        let mut handle = rig.collectives("geometric")?;
        let waited = if rig.rank() == odd {
            let request = Request::new(rig.granule());
            handle.reserve(&[request]).map(drop)
        } else {
            let entered = handle.barrier(rig.stream());
            entered.and_then(|_| rig.device().synchronize(rig.stream()))
        };
        let error = refused("calls that wait for each other", waited)?;
        ensure!(tells_of_calls(&error), "not by the calls: {error}");
        rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
        ensure_eq!(rig.witness().calls("register"), 0, "registrations");
        drop(handle);
        rig.meet()?;
    }
    Ok(())
}

fn one_too_many(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let odd = rig.ranks() - 1;
    let ended = if rig.rank() == odd {
        let mut handle = Collectives::without_scratch(comm);
        let entered = handle.barrier(rig.stream());
        entered.and_then(|_| rig.device().synchronize(rig.stream()))
    } else {
        comm.agree(&named("close"), rig.deadline()).map(drop)
    };
    let error = refused("a call too many", ended)?;
    ensure!(tells_of_calls(&error), "not by the calls: {error}");
    let text = error.to_string();
    let named = text.contains("barrier") && text.contains("close");
    ensure!(named, "the calls are not named: {error}");
    rig.expect_alike("the error", &format!("{:?}", error.kind()))
}

fn closes_early(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let gone = rig.ranks() - 1;
    if rig.rank() == gone {
        // Where closing is a round of its own, this rank is told too.
        let _told = comm.shutdown();
    } else {
        let agreed = comm.agree(&named("reserve"), rig.deadline());
        let error = refused("a round with a rank that has closed", agreed)?;
        let told = match error.kind() {
            ErrorKind::PeerFailed { rank, .. } | ErrorKind::Mismatch { rank, .. } => {
                Some(rank.index())
            }
            _ => None,
        };
        ensure_eq!(told, Some(gone), "the rank that closed, by: {error}");
    }
    rig.meet()
}

fn panics(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let gone = rig.ranks() - 1;
    rig.meet()?;
    if rig.rank() == gone {
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _dropped = comm;
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        ensure!(panicked.is_err(), "no panic");
    } else {
        let agreed = comm.agree(&Record::new(), rig.deadline());
        let error = refused("a round with a rank that panicked", agreed)?;
        let told = match error.kind() {
            ErrorKind::PeerFailed { rank, cause } => Some((rank.index(), cause.as_str())),
            _ => None,
        };
        ensure_eq!(
            told,
            Some((gone, "it panicked")),
            "who failed and why, by: {error}"
        );
    }
    rig.meet()
}
