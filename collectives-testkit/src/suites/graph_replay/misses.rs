//! A request without a slot while a stream captures.
#![forbid(unsafe_code)]

use collectives_core::error::{ErrorKind, MissedWhen};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use crate::capability::Capability::{Graphs, Symmetric};
use crate::case::{Case, Failure, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "B1",
        "a miss in a capture says what to reserve and the capture goes on",
        miss,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::GrowsInCapture),
    Case::new(
        "B3",
        "a miss in a capture names operation bytes domain and remedy",
        miss_text,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::MissTextLost),
    Case::new(
        "I24",
        "a miss in a capture is the same on every rank",
        same_miss,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::MissDiffersByRank),
];

fn miss(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let bytes = 3 * rig.granule();
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let mut small = rig.tensor::<f32>(1 << 10, 2)?;
    let mut large = rig.tensor::<f32>(bytes / 4, 0)?;
    let before = rig.witness().collective_calls();
    let (graph, reduced) = rig.capture(|capture| {
        handle.all_reduce(&mut small, ReduceOp::Sum, capture.stream())?;
        Ok(handle.all_reduce(&mut large, ReduceOp::Sum, capture.stream()))
    })?;
    let error = refused("a miss in a capture", reduced)?;
    let ErrorKind::NeedsReserve {
        bytes: asked, when, ..
    } = error.kind()
    else {
        return Err(Failure(format!("not NeedsReserve but: {error}")));
    };
    ensure_eq!(
        (*asked, *when),
        (bytes, MissedWhen::Capturing),
        "what was missed"
    );
    ensure_eq!(
        rig.witness().collective_calls(),
        before,
        "collective calls so far"
    );
    let mut graph = graph.instantiate()?;
    graph.launch(&*rig.device(), rig.stream())?;
    rig.expect_sum("the capture that went on", &small, 2, rig.stream())?;
    drop(graph);
    // What the error asks for helps.
    let mut graph = rig.replay_of(&mut handle, bytes)?;
    rig.replay(&mut graph, 5, rig.stream())?;
    drop(graph);
    rig.finish(handle)
}

fn miss_text(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let error = rig.missed(&mut handle, 1000)?;
    let text = format!("{error} {:?}", error.operation());
    for word in ["4000", "shared", "reserve", "captur"] {
        ensure!(text.contains(word), "`{word}` is missing in: {text}");
    }
    ensure!(!error.poisons(), "a miss poisons");
    rig.finish(handle)
}

fn same_miss(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let error = rig.missed(&mut handle, 1000)?;
    rig.expect_alike("the miss", &format!("{:?}", error.kind()))?;
    rig.finish(handle)
}
