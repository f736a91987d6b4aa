//! Ranks that ask for different things: one typed error, before anything is registered.
#![forbid(unsafe_code)]

use collectives_alloc::checked::Checked;
use collectives_core::collective::Collective;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Field, Misuse};
use collectives_core::layered::{Layer, Layered, symmetric_of};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;

use super::field_of;
use crate::capability::Capability::{ComparesCalls, Graphs, Symmetric};
use crate::case::{Case, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::values::Dice;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "B6",
        "a rank that captures while others do not is found",
        mixed_capture,
    )
    .needs(&[Graphs])
    .catches(Planted::CaptureHidden),
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
    Case::new("C13", "the check mode finds what it is for", check_mode)
        .catches(Planted::CheckModeOff),
    Case::new(
        "C13",
        "a call that one rank refuses is the same error everywhere, at once",
        refused_alone,
    )
    .catches(Planted::RefusalsUntold),
    Case::new(
        "I36",
        "configurations that differ are found before a registration",
        configuration,
    )
    .needs(&[Symmetric])
    .catches(Planted::AgreementEchoes),
];

fn mixed_capture(rig: &mut Rig<'_>) -> Outcome {
    let comm = Checked::new(rig.deadline()).around(rig.communicator()?);
    let mut handle = Collectives::without_scratch(comm);
    let mut tensor = rig.tensor::<f32>(100, 1)?;
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
    rig.finish(handle)
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
        // Nothing is a count too: who has no element must not pass by those who have some.
        let count = if round % 8 == 0 { 0 } else { count };
        let more = 1 + dice.roll(5);
        let mine = if odd == rig.rank() {
            count + more
        } else {
            count
        };
        let mut tensor = rig.tensor::<f32>(mine, round)?;
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
        // Of two ranks either may be the odd one; the lower one counts as the majority.
        let odd = if rig.ranks() == 2 { 1 } else { odd };
        ensure_eq!(named, Some(odd), "the odd rank, by: {error}");
        rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
        let mut tensor = rig.tensor::<f32>(10, round)?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        rig.expect_sum("the call after", &tensor, round, rig.stream())?;
    }
    rig.finish(handle)
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
    let mut tensor = rig.tensor::<f32>(100, 1)?;
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
    rig.finish(handle)
}

/// Keeps refusals from what is inside.
#[derive(Debug)]
struct Untold;

impl Layer for Untold {
    fn refused(
        &mut self,
        _inner: &mut dyn Communicator,
        _calls: &[Collective<'_>],
        error: Error,
    ) -> Error {
        error
    }

    fn for_child(&self) -> Self {
        Self
    }
}

fn refused_alone(rig: &mut Rig<'_>) -> Outcome {
    let mut comm: Box<dyn Communicator> =
        Box::new(Checked::new(rig.deadline()).around(rig.communicator()?));
    if rig.has(Planted::RefusalsUntold) {
        comm = Box::new(Layered::new(Untold, comm));
    }
    let mut handle = Collectives::without_scratch(comm);
    let mut tensor = rig.tensor::<f32>(100, 1)?;
    let rounds = rig.witness().calls("agree");
    let enqueued = rig.witness().calls("enqueue");
    let (nobody, odd) = (Rank::new(rig.ranks()), rig.rank() == rig.ranks() - 1);
    let root = if odd { nobody } else { Rank(0) };
    let one = handle.broadcast(&mut tensor, root, rig.stream());
    let error = refused("a root that is none, on one rank", one)?;
    ensure_eq!(
        field_of(&error),
        Some(Field::Operation),
        "the field named by: {error}"
    );
    rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
    let all = handle.broadcast(&mut tensor, nobody, rig.stream());
    let error = refused("a root that is none, on all ranks", all)?;
    ensure!(
        matches!(error.misuse(), Some(Misuse::RankOutOfRange { .. })),
        "the mistake that all ranks made is: {error}"
    );
    ensure_eq!(
        rig.witness().calls("agree"),
        rounds + 2,
        "rounds so far, one for each call"
    );
    ensure_eq!(
        rig.witness().calls("enqueue"),
        enqueued,
        "operations enqueued so far"
    );
    handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
    rig.expect_sum("the call after", &tensor, 1, rig.stream())?;
    rig.finish(handle)
}

fn configuration(rig: &mut Rig<'_>) -> Outcome {
    let odd = rig.rank() == 1;
    let mut comm = rig.communicator()?;
    let mut options = rig.options();
    options.cap = odd.then_some(1 << 30);
    let mut scratch = rig.pool("geometric", options)?;
    // The second is refused by one rank's rules alone.
    for bytes in [100, (1 << 30) + 1] {
        let error = refused(
            "configurations that differ",
            rig.lease(&mut *comm, &mut *scratch, bytes),
        )?;
        ensure_eq!(
            field_of(&error),
            Some(Field::Configuration),
            "the field named by: {error}"
        );
        let text = error.to_string();
        let named = text.contains("cap = 1GiB") && text.contains("cap = none");
        ensure!(named, "the key and both values are not named: {text}");
        rig.expect_alike("the error", &format!("{:?}", error.kind()))?;
    }
    ensure_eq!(rig.witness().calls("register"), 0, "registrations");
    let left = symmetric_of(&mut *comm)?.window_count();
    ensure_eq!(left, 0, "windows");
    let _deferred = comm.shutdown()?;
    Ok(())
}
