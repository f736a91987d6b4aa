//! Graphs that are nodes of other graphs.
#![forbid(unsafe_code)]

use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use super::owners::works_after_churn;
use crate::capability::Capability::{ChildGraphs, Graphs, Symmetric};
use crate::case::{Case, Outcome};
use crate::planted::Planted;
use crate::rig::{Replay, Rig};
use crate::values;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "I21",
        "clones of a graph keep the slots of its child graphs",
        clones_own,
    )
    .needs(&[Symmetric, Graphs, ChildGraphs])
    .catches(Planted::ChildOwnsNothing),
    Case::new(
        "B8",
        "a child graph reads what its parent wrote before it",
        at_its_place,
    )
    .needs(&[Symmetric, Graphs, ChildGraphs])
    .catches(Planted::ChildLeftOut),
];

fn clones_own(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let (child, tensor) = rig.captured(&mut handle, 1 << 10)?;
    let (parent, ()) = rig.capture(|capture| capture.embed(&child))?;
    let (outer, ()) = rig.capture(|capture| capture.embed(&parent))?;
    ensure_eq!(outer.node_count(), 1, "nodes of a graph of one child");
    let clone = outer.duplicate()?;
    drop((child, parent, outer));
    let held = rig.settled_trim(&mut handle)?.held_bytes;
    ensure!(
        held > 0,
        "nothing is held while a clone of the parent lives"
    );
    let mut graph = Replay::new(&clone, tensor)?;
    drop(clone);
    works_after_churn(rig, &mut handle, &mut graph)?;
    drop(graph);
    let held = rig.settled_trim(&mut handle)?.held_bytes;
    ensure_eq!(held, 0, "bytes held after the last graph is gone");
    rig.finish(handle)
}

fn at_its_place(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let (child, mut tensor) = rig.captured(&mut handle, 1 << 10)?;
    let (parent, ()) = rig.capture(|capture| {
        handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
        capture.embed(&child)?;
        capture.embed(&child)?;
        handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
        Ok(())
    })?;
    let mut executable = parent.instantiate()?;
    drop((child, parent));
    let ranks = f32::from(u8::try_from(rig.ranks()).unwrap_or(1));
    for round in 0..3 {
        tensor.write(&rig.input(1 << 10, round), rig.stream())?;
        executable.launch(&*rig.device(), rig.stream())?;
        // The first makes the sum; each of the other three multiplies it by the number of ranks.
        let sums = values::sum::<f32>(rig.ranks(), 1 << 10, round);
        let expected: Vec<f32> = sums.into_iter().map(|sum| sum * ranks.powi(3)).collect();
        rig.expect_all("parent and children", &tensor, &expected, rig.stream())?;
        rig.eager(&mut handle, 1 << 12, rig.stream())?;
    }
    let conflicts = rig.witness().conflicts();
    ensure!(conflicts.is_empty(), "{conflicts:?}");
    drop((executable, tensor));
    rig.finish(handle)
}
