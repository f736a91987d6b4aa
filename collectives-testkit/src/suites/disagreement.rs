//! Ranks that differ, in addresses, sizes, outcomes or calls: one answer for all of them.
#![forbid(unsafe_code)]

use std::thread;
use std::time::Duration;

use collectives_alloc::checked::Checked;
use collectives_core::agreement::Record;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Field};
use collectives_core::layered::{Layered, symmetric_of};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;

use crate::capability::Capability::{ComparesCalls, Graphs, Symmetric};
use crate::case::{Case, Failure, Outcome, refused};
use crate::decorators::{Fail, FailAt, Perturbed, Point, Skewed};
use crate::planted::Planted;
use crate::rig::{Handle, Rig};
use crate::values::Dice;
use crate::{ensure, ensure_eq};

/// The cases.
pub const CASES: &[Case] = &[
    Case::new(
        "B5",
        "ranks with other histories capture the same windows",
        other_history,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::WindowsNumberedLocally),
    Case::new(
        "B6",
        "a rank that captures while others do not is found",
        mixed_capture,
    )
    .needs(&[Graphs])
    .catches(Planted::CaptureHidden),
    Case::new(
        "C1",
        "the nth lease is the same slot whatever the addresses",
        nth_lease,
    )
    .needs(&[Symmetric])
    .catches(Planted::TiesByAddress),
    Case::new(
        "C2",
        "addresses never decide between hit and miss",
        no_extra_round,
    )
    .needs(&[Symmetric])
    .catches(Planted::HitAgrees),
    Case::new(
        "C6",
        "a rank out of memory makes all ranks say so and name it",
        out_of_memory,
    )
    .needs(&[Symmetric])
    .catches(Planted::AgreementEchoes),
    Case::new(
        "C7",
        "a request that differs is found before anything is registered",
        request_differs,
    )
    .needs(&[Symmetric])
    .catches(Planted::AgreementEchoes),
    Case::new(
        "C8",
        "counts that differ are the same typed error everywhere",
        counts_differ,
    )
    .needs(&[ComparesCalls])
    .catches(Planted::MismatchSwallowed),
    Case::new(
        "C11",
        "any step of a growth may fail on any rank",
        any_step_fails,
    )
    .needs(&[Symmetric])
    .catches(Planted::AllocationLeaks),
    Case::new("C13", "the check mode finds what it is for", check_mode)
        .catches(Planted::CheckModeOff),
    Case::new(
        "I33",
        "decisions depend only on what all ranks see",
        same_decisions,
    )
    .needs(&[Symmetric])
    .catches(Planted::LocalSizes),
    Case::new(
        "I34",
        "uneven counts give the same decisions everywhere",
        uneven_decisions,
    )
    .needs(&[Symmetric])
    .catches(Planted::PartSizedRequests),
    Case::new(
        "I35",
        "after an allocation that failed the next request works",
        next_request_works,
    )
    .needs(&[Symmetric])
    .catches(Planted::OnMissFlipped),
    Case::new(
        "I36",
        "configurations that differ are found before a registration",
        configuration,
    )
    .needs(&[Symmetric])
    .catches(Planted::AgreementEchoes),
    Case::new(
        "I38",
        "ranks register and deregister in the same sequence",
        same_sequence,
    )
    .needs(&[Symmetric])
    .catches(Planted::WindowsNumberedLocally),
    Case::new(
        "I39",
        "a partner that never comes is reported and nobody sees success",
        absent,
    )
    .needs(&[Symmetric])
    .catches(Planted::TimeoutIsSuccess),
];

fn other_history(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let seed = u64::try_from(rig.rank()).unwrap_or(0) + 1;
    let perturbed = Layered::new(Perturbed::new(seed), comm);
    let scratch = rig.pool("exact", rig.options())?;
    let mut handle = rig.handle(Box::new(perturbed), scratch);
    let mut graphs = Vec::new();
    let mut windows = Vec::new();
    for granules in 1..4 {
        rig.witness().forget();
        graphs.push(rig.replay_of(&mut handle, granules * rig.granule())?);
        let seen = rig.witness().seen();
        let named = |op: &crate::witness::Seen| op.send.window.map(|w| (w.window, w.offset));
        windows.extend(seen.iter().map(named));
    }
    rig.expect_alike("the windows of captures", &format!("{windows:?}"))?;
    for (round, graph) in graphs.iter_mut().enumerate() {
        rig.replay(graph, round, rig.stream())?;
    }
    drop(graphs);
    let _deferred = handle.close()?;
    Ok(())
}

fn mixed_capture(rig: &mut Rig<'_>) -> Outcome {
    let comm = Checked::new(rig.deadline()).around(rig.communicator()?);
    let mut handle = Collectives::without_scratch(comm);
    let mut tensor = rig.tensor::<u32>(100, 1)?;
    let enqueued = rig.witness().calls("enqueue");
    let reduced = if rig.rank() == 1 {
        let (graph, reduced) = rig.capture(|capture| {
            Ok(handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))
        })?;
        ensure_eq!(graph.node_count(), 0, "nodes of a graph without operations");
        reduced
    } else {
        handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())
    };
    let error = refused("a call that one rank captures", reduced)?;
    ensure_eq!(
        field_of(&error),
        Some(Field::Capture),
        "the field named by: {error}"
    );
    rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
    ensure_eq!(
        rig.witness().calls("enqueue"),
        enqueued,
        "operations enqueued so far"
    );
    handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
    rig.expect_sum("the call after", &tensor, 1, rig.stream())?;
    let _deferred = handle.close()?;
    Ok(())
}

fn nth_lease(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let mut scratch = rig.pool("geometric", rig.options())?;
    let mut dice = Dice::new(23);
    let mut order = Vec::new();
    let mut live = Vec::new();
    // Several equal slots, which come back in one order and go out again.
    for _ in 0..5 {
        live.push(rig.lease(&mut *comm, &mut *scratch, 1000)?);
    }
    for _ in 0..60 {
        if live.len() > 4 || !live.is_empty() && dice.roll(2) == 0 {
            let lease: collectives_core::scratch::Lease = live.remove(dice.roll(live.len()));
            lease.complete()?;
        } else {
            let lease = rig.lease(&mut *comm, &mut *scratch, 1000)?;
            order.push((
                lease.slot(),
                lease.operand().window.map(|slice| slice.window),
            ));
            live.push(lease);
        }
    }
    for lease in live {
        lease.complete()?;
    }
    rig.expect_alike("slots and windows of leases", &format!("{order:?}"))?;
    rig.close(comm, scratch)
}

fn no_extra_round(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let mut scratch = rig.pool("geometric", rig.options())?;
    let mut dice = Dice::new(3);
    for _ in 0..20 {
        let bytes = 1 + dice.roll(8 * rig.granule());
        let registrations = scratch.stats().registrations;
        let calls = rig.witness().collective_calls();
        rig.lease(&mut *comm, &mut *scratch, bytes)?.complete()?;
        let grew = scratch.stats().registrations != registrations;
        let called = rig.witness().collective_calls() != calls;
        ensure_eq!(
            called,
            grew,
            "whether a request that grew or not asked other ranks"
        );
    }
    let calls = rig.witness().collective_calls();
    rig.expect_alike("collective calls", &calls.to_string())?;
    rig.close(comm, scratch)
}

/// A handle whose allocation fails on one rank, at the k-th call.
fn failing(rig: &mut Rig<'_>, on: usize, k: u64, how: Fail, point: Point) -> Outcome<Handle> {
    let comm = rig.communicator()?;
    let k = if rig.rank() == on { k } else { u64::MAX };
    let comm = Layered::new(FailAt::new(point, k, how), comm);
    let scratch = rig.pool("exact", rig.options())?;
    Ok(rig.handle(Box::new(comm), scratch))
}

fn out_of_memory(rig: &mut Rig<'_>) -> Outcome {
    for on in 0..rig.ranks() {
        let mut handle = failing(rig, on, 2, Fail::OutOfMemory, Point::Allocate)?;
        rig.eager(&mut handle, 100, rig.stream())?;
        let count = rig.granule();
        let mut tensor = rig.tensor::<u32>(count, 1)?;
        let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
        let error = refused("a growth without memory", reduced)?;
        let named = match error.kind() {
            ErrorKind::OutOfMemory { rank, .. } => Some(rank.index()),
            _ => None,
        };
        ensure_eq!(named, Some(on), "the rank named by: {error}");
        rig.expect_all("the tensor", &tensor, &rig.input(count, 1), rig.stream())?;
        rig.eager(&mut handle, 200, rig.stream())?;
        let _deferred = handle.close()?;
    }
    Ok(())
}

fn next_request_works(rig: &mut Rig<'_>) -> Outcome {
    for on in 0..rig.ranks() {
        let comm = rig.communicator()?;
        let k = if rig.rank() == on { 1 } else { u64::MAX };
        let comm = Layered::new(FailAt::new(Point::Allocate, k, Fail::OutOfMemory), comm);
        let mut options = rig.options();
        options.on_miss = collectives_alloc::options::OnMiss::Fallback;
        let scratch = rig.pool("geometric", options)?;
        let mut handle = rig.handle(Box::new(comm), scratch);
        let mut tensor = rig.tensor::<u32>(5000, 1)?;
        let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        rig.expect_alike("the path", &format!("{:?}", (report.path, report.reason)))?;
        let reason = collectives_core::path::Reason::OutOfMemory;
        ensure_eq!(report.reason, reason, "the reason");
        rig.expect_sum("the fallback", &tensor, 1, rig.stream())?;
        let mut tensor = rig.tensor::<u32>(4000, 2)?;
        let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        let staged = collectives_core::path::Path::Staged;
        ensure_eq!(report.path, staged, "the path of the next request");
        rig.expect_sum("the next request", &tensor, 2, rig.stream())?;
        let _deferred = handle.close()?;
    }
    Ok(())
}

fn field_of(error: &Error) -> Option<Field> {
    match error.kind() {
        ErrorKind::Mismatch { field, .. } => Some(*field),
        _ => None,
    }
}

fn request_differs(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let mut scratch = rig.pool("exact", rig.options())?;
    rig.lease(&mut *comm, &mut *scratch, 100)?.complete()?;
    let before = rig.witness().calls("register");
    let odd = rig.rank() == rig.ranks() - 1;
    let leased = rig.lease(&mut *comm, &mut *scratch, if odd { 5000 } else { 6000 });
    let error = refused("requests that differ", leased)?;
    ensure_eq!(
        field_of(&error),
        Some(Field::Bytes),
        "the field named by: {error}"
    );
    rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
    ensure_eq!(
        rig.witness().calls("register"),
        before,
        "registrations so far"
    );
    rig.lease(&mut *comm, &mut *scratch, 7000)?.complete()?;
    rig.close(comm, scratch)
}

fn counts_differ(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let mut handle = Collectives::without_scratch(comm);
    let mut dice = Dice::new(31);
    for round in 0..40 {
        let (odd, count) = (dice.roll(rig.ranks()), 1 + dice.roll(3000));
        let more = 1 + dice.roll(5);
        let mine = if odd == rig.rank() {
            count + more
        } else {
            count
        };
        let mut tensor = rig.tensor::<u32>(mine, round)?;
        let stream = rig.device().create_stream()?;
        let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream);
        let reduced = reduced.and_then(|_| rig.device().synchronize(&stream));
        let error = refused("counts that differ", reduced)?;
        let named = match error.kind() {
            ErrorKind::Mismatch {
                rank,
                field: Field::Count,
                ..
            } => Some(rank.index()),
            _ => None,
        };
        ensure_eq!(named, Some(odd), "the odd rank, by: {error}");
        rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
        let mut tensor = rig.tensor::<u32>(10, round)?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        rig.expect_sum("the call after", &tensor, round, rig.stream())?;
    }
    let _deferred = handle.close()?;
    Ok(())
}

fn any_step_fails(rig: &mut Rig<'_>) -> Outcome {
    // An allocation of the first and second slot; a registration that the backend lost after.
    for on in 0..rig.ranks() {
        for k in 1..=2 {
            let mut handle = failing(rig, on, k, Fail::System, Point::Allocate)?;
            let mut outcomes = Vec::new();
            for bytes in [100, 20_000, 20_000] {
                let mut tensor = rig.tensor::<u8>(bytes, 1)?;
                let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
                outcomes.push(reduced.map_err(|error| error.kind().clone()).err());
            }
            rig.expect_alike("the outcomes", &format!("{outcomes:?}"))?;
            let failed = outcomes.iter().flatten().count();
            ensure_eq!(failed, 1, "failed calls, of one that was planned");
            let slots = handle.stats().slots.len();
            rig.expect_alike("slots", &slots.to_string())?;
            let comm_windows = rig.witness().windows();
            rig.expect_alike("windows", &format!("{comm_windows:?}"))?;
            let _deferred = handle.close()?;
        }
    }
    Ok(())
}

fn check_mode(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let checked: Box<dyn Communicator> = if rig.has(Planted::CheckModeOff) {
        comm
    } else {
        Box::new(Checked::new(rig.deadline()).around(comm))
    };
    ensure!(
        checked.capabilities().compares_calls,
        "the check mode compares nothing"
    );
    let mut handle = Collectives::without_scratch(checked);
    let mut tensor = rig.tensor::<u32>(100, 1)?;
    let before = rig.witness().calls("agree");
    handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
    rig.expect_sum("a call that is alike", &tensor, 1, rig.stream())?;
    let enqueued = rig.witness().calls("enqueue");
    ensure_eq!(rig.witness().calls("agree"), before + 1, "rounds so far");
    let op = if rig.rank() == 1 {
        ReduceOp::Max
    } else {
        ReduceOp::Sum
    };
    let error = refused(
        "a reduction that differs",
        handle.all_reduce(&mut tensor, op, rig.stream()),
    )?;
    ensure_eq!(
        field_of(&error),
        Some(Field::Reduction),
        "the field named by: {error}"
    );
    ensure_eq!(
        rig.witness().calls("enqueue"),
        enqueued,
        "operations enqueued so far"
    );
    rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
    handle.all_reduce(&mut tensor, ReduceOp::Max, rig.stream())?;
    let _deferred = handle.close()?;
    Ok(())
}

fn same_decisions(rig: &mut Rig<'_>) -> Outcome {
    for policy in ["exact", "replace", "geometric", "geometric-class"] {
        let mut comm = rig.communicator()?;
        let mut scratch = rig.pool(policy, rig.options())?;
        let mut dice = Dice::new(17);
        for _ in 0..25 {
            let bytes = 1 + dice.roll(6 * rig.granule());
            rig.lease(&mut *comm, &mut *scratch, bytes)?.complete()?;
        }
        let stats = scratch.stats();
        let state = format!("{:?} {}", stats.slots, stats.digest);
        rig.expect_alike("slots and digest", &state)?;
        rig.close(comm, scratch)?;
    }
    Ok(())
}

fn uneven_decisions(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    for round in 1..5 {
        let counts: Vec<usize> = (0..rig.ranks())
            .map(|rank| round * 1000 * (rank + 1))
            .collect();
        let mine = rig.tensor::<i32>(counts[rig.rank()], round)?;
        let total: usize = counts.iter().sum();
        let device = rig.device();
        let mut gathered =
            collectives_core::buffer::Buffer::<i32>::zeroed(&device, total, rig.stream())?;
        handle.all_gather_v(&mine, &mut gathered, &counts, rig.stream())?;
        let expected: Vec<i32> = (0..rig.ranks())
            .flat_map(|rank| crate::values::input(rank, rig.ranks(), counts[rank], round))
            .collect();
        rig.expect_all("uneven parts", &gathered, &expected, rig.stream())?;
        let whole = rig.tensor::<i32>(total, round)?;
        let mut part = collectives_core::buffer::Buffer::<i32>::zeroed(
            &device,
            counts[rig.rank()],
            rig.stream(),
        )?;
        handle.reduce_scatter_v(&whole, &mut part, &counts, ReduceOp::Sum, rig.stream())?;
        let start: usize = counts[..rig.rank()].iter().sum();
        let sums = crate::values::sum::<i32>(rig.ranks(), total, round);
        let mine = &sums[start..start + counts[rig.rank()]];
        rig.expect_all("an uneven scatter", &part, mine, rig.stream())?;
    }
    rig.expect_alike("the digest", &handle.stats().digest.to_string())?;
    let _deferred = handle.close()?;
    Ok(())
}

fn configuration(rig: &mut Rig<'_>) -> Outcome {
    let odd = rig.rank() == 1;
    let mut comm = rig.communicator()?;
    let mut options = rig.options();
    options.cap = odd.then_some(1 << 30);
    let mut scratch = rig.pool("geometric", options)?;
    let error = refused(
        "configurations that differ",
        rig.lease(&mut *comm, &mut *scratch, 100),
    )?;
    ensure_eq!(
        field_of(&error),
        Some(Field::Configuration),
        "the field named by: {error}"
    );
    rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
    ensure_eq!(rig.witness().calls("register"), 0, "registrations");
    let left = symmetric_of(&mut *comm)?.window_count();
    ensure_eq!(left, 0, "windows");
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn same_sequence(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let seed = u64::try_from(rig.rank()).unwrap_or(0) + 40;
    let comm = Layered::new(Skewed::new(Duration::from_micros(300), seed), comm);
    let scratch = rig.pool("replace", rig.options())?;
    let mut handle = rig.handle(Box::new(comm), scratch);
    let mut buffers = Vec::new();
    let mut numbers = Vec::new();
    for round in 1..6 {
        rig.eager(&mut handle, round * rig.granule(), rig.stream())?;
        let buffer = handle.symmetric_buffer::<u8>(round * 10)?;
        numbers.push(buffer.window().map(|slice| slice.window));
        buffers.push(buffer);
        if round % 2 == 0 {
            buffers.remove(0);
            let _trimmed = handle.trim()?;
        }
    }
    drop(buffers);
    let _deferred = handle.close()?;
    let events = rig.witness().windows();
    ensure!(events.len() > 10, "{} window events only", events.len());
    rig.expect_alike("the sequence", &format!("{events:?}"))?;
    rig.expect_alike("the windows of buffers", &format!("{numbers:?}"))
}

fn absent(rig: &mut Rig<'_>) -> Outcome {
    let deadline = Duration::from_millis(150);
    let mut comm = rig.communicator()?;
    let mut options = rig.options();
    options.agree_deadline = deadline;
    let mut scratch = rig.pool("geometric", options)?;
    rig.meet()?;
    if rig.rank() == 1 {
        thread::sleep(deadline * 4);
    }
    let error = refused(
        "a growth without a rank",
        rig.lease(&mut *comm, &mut *scratch, 100),
    )?;
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
