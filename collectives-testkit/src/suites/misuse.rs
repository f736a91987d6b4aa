//! Mistakes of the caller: found before anything moves, named, and without consequence.
#![forbid(unsafe_code)]

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::error::{Error, ErrorKind, Misuse};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};

use crate::capability::Capability::Symmetric;
use crate::case::{Case, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub const CASES: &[Case] = &[
    Case::new(
        "I16",
        "requests for nothing or too much are refused without a trace",
        sizes,
    )
    .needs(&[Symmetric])
    .catches(Planted::ZeroBytesServed),
    Case::new(
        "I47",
        "configurations that make no sense are refused",
        configurations,
    )
    .catches(Planted::ConfigLenient),
    Case::new(
        "E12",
        "operands of the wrong shape are refused before anything moves",
        shapes,
    )
    .catches(Planted::OwnMessagesAccepted),
];

fn sizes(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let mut scratch = rig.pool("geometric", rig.options())?;
    rig.lease(&mut *comm, &mut *scratch, 100)?.complete()?;
    let before = scratch.stats();
    let error = refused("zero bytes", rig.lease(&mut *comm, &mut *scratch, 0))?;
    ensure_eq!(error.misuse(), Some(&Misuse::ZeroBytes), "zero bytes");
    ensure_eq!(scratch.stats(), before, "the state after zero bytes");
    let calls = rig.witness().collective_calls();
    // No granule divides them, so that they overflow when they are rounded up.
    for bytes in [usize::MAX, usize::MAX - 1] {
        let error = refused(
            "too many bytes",
            rig.lease(&mut *comm, &mut *scratch, bytes),
        )?;
        let kind = matches!(error.kind(), ErrorKind::Refused { .. });
        ensure!(kind, "{bytes} bytes must be refused, and are: {error}");
    }
    ensure_eq!(
        rig.witness().collective_calls(),
        calls,
        "collective calls so far"
    );
    ensure_eq!(scratch.stats().slots, before.slots, "slots");
    let plan = scratch.plan(&mut *comm, &[Request::new(0)]);
    let error = refused("a plan for zero bytes", plan)?;
    ensure_eq!(
        error.misuse(),
        Some(&Misuse::ZeroBytes),
        "a plan for zero bytes"
    );
    rig.lease(&mut *comm, &mut *scratch, 100)?.complete()?;
    rig.close(comm, scratch)?;
    let mut handle = rig.collectives("geometric")?;
    let mut empty = rig.tensor::<f32>(0, 0)?;
    handle.all_reduce(&mut empty, ReduceOp::Sum, rig.stream())?;
    ensure_eq!(
        handle.stats().requests,
        0,
        "requests of an operation on nothing"
    );
    let _deferred = handle.close()?;
    Ok(())
}

fn configurations(rig: &mut Rig<'_>) -> Outcome {
    for (text, named) in [
        ("polcy = \"exact\"", "policy"),
        ("growth = 1.0", "growth"),
        ("growth = 4.5", "growth"),
        ("growth = nan", "growth"),
        ("cap = \"0B\"", "cap"),
        ("limit = \"twelve\"", "limit"),
        ("domain = \"galaxy\"", "domain"),
        ("classes_per_octave = 17", "classes_per_octave"),
        ("agree_deadline = \"300\"", "agree_deadline"),
    ] {
        let read = rig.config(&format!("[scratch]\n{text}\n"));
        let error = refused(text, read)?;
        ensure!(
            matches!(error.kind(), ErrorKind::Config(_)),
            "{text}: {error}"
        );
        ensure!(
            error.to_string().contains(named),
            "`{named}` is missing in: {error}"
        );
    }
    let config = rig.config("[scratch]\npolicy = \"no-such-policy\"\n")?;
    let error = refused("a policy that is none", config.build().map(drop))?;
    ensure!(
        error.to_string().contains("geometric"),
        "nothing is suggested: {error}"
    );
    rig.config("[scratch]\npolicy = \"geometric\"\ngrowth = 1.5\ncap = \"1MiB\"\n")?
        .build()?;
    Ok(())
}

fn shapes(rig: &mut Rig<'_>) -> Outcome {
    let comm = rig.communicator()?;
    let mut handle = Collectives::without_scratch(comm);
    let (device, ranks) = (rig.device(), rig.ranks());
    let zeros = |count| Buffer::<u32>::zeroed(&device, count, rig.stream());
    let enqueued = rig.witness().calls("enqueue");
    let misuse = |what: &str, result: Result<_, Error>| -> Outcome<Misuse> {
        let error = refused(what, result)?;
        ensure!(!error.poisons(), "{what} poisons");
        match error.misuse() {
            Some(misuse) => Ok(misuse.clone()),
            None => Err(crate::case::Failure(format!("{what}: no misuse: {error}"))),
        }
    };
    let (send, mut recv) = (zeros(8)?, zeros(7)?);
    let stream = rig.stream();
    let found = misuse(
        "lengths that differ",
        handle.all_reduce_into(&send, &mut recv, ReduceOp::Sum, stream),
    )?;
    ensure!(
        matches!(found, Misuse::WrongCount { .. }),
        "lengths: {found:?}"
    );
    let found = misuse(
        "a root that is none",
        handle.broadcast(&mut recv, Rank::new(ranks), stream),
    )?;
    ensure!(
        matches!(found, Misuse::RankOutOfRange { .. }),
        "root: {found:?}"
    );
    let whole = zeros(ranks * 3 + 1)?;
    let found = misuse(
        "parts that do not divide",
        handle.reduce_scatter(&whole, &mut recv, ReduceOp::Sum, stream),
    )?;
    ensure!(
        matches!(found, Misuse::NotDivisible { .. }),
        "parts: {found:?}"
    );
    let short = vec![1; ranks + 1];
    let found = misuse(
        "a counts vector of the wrong length",
        handle.all_gather_v(&send, &mut recv, &short, stream),
    )?;
    ensure!(
        matches!(found, Misuse::WrongCountsLength { .. }),
        "counts: {found:?}"
    );
    let (left, mut right) = (send.slice(0..5)?, send.slice(1..6)?);
    let found = misuse(
        "operands that overlap",
        handle.all_reduce_into(&left, &mut right, ReduceOp::Sum, stream),
    )?;
    ensure_eq!(found, Misuse::Overlap, "overlap");
    let me = Rank::new(rig.rank());
    let found = misuse("a message to oneself", handle.send(&send, me, stream))?;
    ensure!(
        matches!(found, Misuse::SelfMessage { .. }),
        "message: {found:?}"
    );
    let mut floats = Buffer::<f32>::zeroed(&device, 8, stream)?;
    let found = misuse(
        "types that differ",
        handle.all_reduce_into(&send, &mut floats, ReduceOp::Sum, stream),
    )?;
    ensure!(
        matches!(found, Misuse::DTypeDiffers { .. }),
        "types: {found:?}"
    );
    let passed = rig.witness().calls("enqueue") - enqueued;
    ensure!(passed <= 1, "{passed} calls reached the backend");
    let mut tensor = rig.tensor::<f32>(10, 3)?;
    handle.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
    rig.expect_sum("the call after", &tensor, 3, stream)?;
    let _deferred = handle.close()?;
    Ok(())
}
