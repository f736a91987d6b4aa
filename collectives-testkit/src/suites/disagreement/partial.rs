//! A step that fails or never comes on one rank fails on all of them, and the next works.
#![forbid(unsafe_code)]

use std::time::Duration;

use collectives_alloc::options::OnMiss;
use collectives_core::agreement::Record;
use collectives_core::error::{ErrorKind, Field};
use collectives_core::layered::{Layered, symmetric_of};
use collectives_core::path::{Path, Reason};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;

use crate::capability::Capability::Symmetric;
use crate::case::{Case, Failure, Outcome, refused};
use crate::decorators::{Fail, FailAt, Point};
use crate::planted::Planted;
use crate::rig::{Handle, Rig};
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "C6",
        "a rank out of memory makes all ranks say so and name it",
        out_of_memory,
    )
    .needs(&[Symmetric])
    .catches(Planted::AgreementEchoes),
    Case::new(
        "I35",
        "after an allocation that failed the next request works",
        next_request_works,
    )
    .needs(&[Symmetric])
    .catches(Planted::FailureSticks),
    Case::new(
        "I35",
        "a rank out of memory makes all give up what is idle and try once more",
        second_try,
    )
    .needs(&[Symmetric])
    .catches(Planted::RetireForgotten),
    Case::new(
        "C11",
        "any step of a growth may fail on any rank",
        any_step_fails,
    )
    .needs(&[Symmetric])
    .catches(Planted::AllocationLeaks),
    Case::new(
        "I35",
        "a buffer that one rank asks for otherwise is the same error on all",
        odd_buffer,
    )
    .needs(&[Symmetric])
    .catches(Planted::AgreementEchoes),
    Case::new(
        "I39",
        "a partner that never comes is reported and nobody sees success",
        absent,
    )
    .needs(&[Symmetric])
    .catches(Planted::TimeoutIsSuccess),
];

/// A handle whose backend fails on one rank.
fn failing(rig: &mut Rig<'_>, on: usize, fails: FailAt) -> Outcome<Handle> {
    let comm = rig.communicator()?;
    let never = FailAt::new(Point::Allocate, u64::MAX, Fail::System);
    let fails = if rig.rank() == on { fails } else { never };
    let scratch = rig.pool("exact", rig.options())?;
    Ok(rig.handle(Box::new(Layered::new(fails, comm)), scratch))
}

/// Memory that runs out at the k-th allocation.
const fn memory_at(k: u64) -> FailAt {
    FailAt::new(Point::Allocate, k, Fail::OutOfMemory)
}

fn out_of_memory(rig: &mut Rig<'_>) -> Outcome {
    for on in 0..rig.ranks() {
        let mut handle = failing(rig, on, memory_at(2).times(2))?;
        rig.eager(&mut handle, 100, rig.stream())?;
        let count = rig.granule();
        let mut tensor = rig.tensor::<f32>(count, 1)?;
        let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
        let error = refused("a growth without memory", reduced)?;
        let named = match error.kind() {
            ErrorKind::OutOfMemory { rank, .. } => Some(rank.index()),
            _ => None,
        };
        ensure_eq!(named, Some(on), "the rank named by: {error}");
        rig.expect_all("the tensor", &tensor, &rig.input(count, 1), rig.stream())?;
        rig.eager(&mut handle, 200, rig.stream())?;
        rig.finish(handle)?;
    }
    Ok(())
}

fn next_request_works(rig: &mut Rig<'_>) -> Outcome {
    for on in 0..rig.ranks() {
        let comm = rig.communicator()?;
        let k = if rig.rank() == on { 1 } else { u64::MAX };
        let comm = Layered::new(FailAt::new(Point::Allocate, k, Fail::OutOfMemory), comm);
        let mut options = rig.options();
        options.on_miss = OnMiss::Fallback;
        let scratch = rig.pool("geometric", options)?;
        let mut handle = rig.handle(Box::new(comm), scratch);
        let mut tensor = rig.tensor::<f32>(5000, 1)?;
        let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        rig.expect_alike("the path", &format!("{:?}", (report.path, report.reason)))?;
        let reason = Reason::OutOfMemory;
        ensure_eq!(report.reason, reason, "the reason");
        rig.expect_sum("the fallback", &tensor, 1, rig.stream())?;
        let mut tensor = rig.tensor::<f32>(4000, 2)?;
        let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        let staged = Path::Staged;
        ensure_eq!(report.path, staged, "the path of the next request");
        rig.expect_sum("the next request", &tensor, 2, rig.stream())?;
        rig.finish(handle)?;
    }
    Ok(())
}

fn second_try(rig: &mut Rig<'_>) -> Outcome {
    for on in 0..rig.ranks() {
        let mut handle = failing(rig, on, memory_at(3))?;
        for granules in [1, 2, 4] {
            rig.eager(&mut handle, granules * rig.granule(), rig.stream())?;
        }
        let slots = handle.stats().slots;
        let capacities: Vec<_> = slots.iter().map(|slot| slot.capacity).collect();
        ensure_eq!(
            capacities,
            [4 * rig.granule()],
            "slots after the second try"
        );
        let windows = symmetric_of(handle.communicator_mut())?.window_count();
        ensure_eq!(windows, 1, "windows after the second try");
        rig.finish(handle)?;
    }
    Ok(())
}

fn any_step_fails(rig: &mut Rig<'_>) -> Outcome {
    for on in 0..rig.ranks() {
        for k in 1..=2 {
            let failed = one_step_fails(rig, on, FailAt::new(Point::Allocate, k, Fail::System))?;
            let named = match failed {
                ErrorKind::PeerFailed { rank, .. } => Some(rank.index()),
                _ => None,
            };
            ensure_eq!(named, Some(on), "the rank whose allocation failed");
            one_step_fails(rig, on, FailAt::new(Point::Register, k, Fail::System))?;
        }
    }
    Ok(())
}

/// Three calls of which the first or second grows in vain, once, everywhere; why.
fn one_step_fails(rig: &mut Rig<'_>, on: usize, fails: FailAt) -> Outcome<ErrorKind> {
    let mut handle = failing(rig, on, fails)?;
    let mut outcomes = Vec::new();
    // No slot of the first size holds the second, however coarse the granule.
    let larger = rig.granule();
    for count in [25, larger, larger] {
        let mut tensor = rig.tensor::<f32>(count, 1)?;
        let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
        outcomes.push(reduced.map_err(|error| error.kind().clone()).err());
    }
    rig.expect_alike("the outcomes", &format!("{outcomes:?}"))?;
    let mut failed: Vec<_> = outcomes.into_iter().flatten().collect();
    ensure_eq!(failed.len(), 1, "failed calls, of one that was planned");
    let slots = handle.stats().slots.len();
    rig.expect_alike("slots", &slots.to_string())?;
    let windows = rig.witness().windows();
    rig.expect_alike("windows", &format!("{windows:?}"))?;
    rig.finish(handle)?;
    Ok(failed.remove(0))
}

fn odd_buffer(rig: &mut Rig<'_>) -> Outcome {
    for count in [0, 65, usize::MAX] {
        let comm = rig.communicator()?;
        let scratch = rig.pool("geometric", rig.options())?;
        let mut handle = rig.handle(comm, scratch);
        let asked = if rig.rank() == 1 { count } else { 64 };
        let error = refused("a buffer", handle.symmetric_buffer::<f32>(asked))?;
        let named = match error.kind() {
            ErrorKind::Mismatch { rank, field, .. } => Some((*rank, *field)),
            _ => None,
        };
        let expected = Some((Rank(1), Field::Count));
        ensure_eq!(named, expected, "the rank and field named by: {error}");
        ensure!(!error.poisons(), "it poisons: {error}");
        drop(handle.symmetric_buffer::<f32>(64)?);
        rig.finish(handle)?;
    }
    Ok(())
}

fn absent(rig: &mut Rig<'_>) -> Outcome {
    let deadline = Duration::from_millis(150);
    let mut comm = rig.communicator()?;
    let mut options = rig.options();
    options.agree_deadline = deadline;
    let mut scratch = rig.pool("geometric", options)?;
    rig.meet()?;
    // It comes when the others have given up, however slow they are.
    if rig.rank() == 1 {
        rig.meet()?;
    }
    let leased = rig.lease(&mut *comm, &mut *scratch, 100);
    if rig.rank() != 1 {
        rig.meet()?;
    }
    let error = refused("a growth without a rank", leased)?;
    let named = match error.kind() {
        ErrorKind::Timeout { absent, .. } => absent.clone(),
        _ => Vec::new(),
    };
    ensure_eq!(named, [Rank(1)], "the absent ranks, by: {error}");
    rig.meet()?;
    ensure_eq!(rig.witness().calls("register"), 0, "registrations");
    let record = Record::new().fact(u64::try_from(rig.rank()).unwrap_or(0));
    let records = comm.agree(&record, rig.deadline())?;
    let facts: Vec<_> = records.iter().map(Record::facts).collect();
    ensure_eq!(facts.len(), rig.ranks(), "records of a later round");
    let Some(last) = facts.last() else {
        return Err(Failure("no record".to_owned()));
    };
    ensure_eq!(*last, [rig.ranks() as u64 - 1], "the last rank's record");
    let _deferred = comm.shutdown()?;
    Ok(())
}
