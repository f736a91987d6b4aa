//! Executables that are updated to another graph.
#![forbid(unsafe_code)]

use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use super::owners::works_after_churn;
use crate::capability::Capability::{ChildGraphs, GraphUpdate, Graphs, Symmetric};
use crate::case::{Case, Outcome, refused};
use crate::ensure;
use crate::planted::Planted;
use crate::rig::{Replay, Rig};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "A20",
        "an updated executable owns what it was updated to",
        updated,
    )
    .needs(&[Symmetric, Graphs, GraphUpdate])
    .catches(Planted::UpdateKeepsOldOwners),
    Case::new(
        "A20",
        "an update to another shape is refused and changes nothing",
        another_shape,
    )
    .needs(&[Symmetric, Graphs, GraphUpdate])
    .catches(Planted::UpdateNeverRefused),
    Case::new(
        "A20",
        "an update replaces child graphs and what they own",
        children_updated,
    )
    .needs(&[Symmetric, Graphs, GraphUpdate, ChildGraphs])
    .catches(Planted::UpdateKeepsOldOwners),
];

fn updated(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let first = rig.replay_of(&mut handle, 1 << 12)?;
    let granule = rig.granule();
    // A slot of its own for the second graph.
    let _plan = handle.reserve(&[Request::new(2 * granule)])?;
    let (second, tensor) = rig.captured(&mut handle, 2 * granule / 4)?;
    let mut executable = first.executable;
    executable.update(&second)?;
    drop(second);
    let mut graph = Replay { tensor, executable };
    rig.eager(&mut handle, 5 * granule, rig.stream())?;
    works_after_churn(rig, &mut handle, &mut graph)?;
    drop(graph);
    rig.finish(handle)
}

fn another_shape(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
    let mut other = rig.tensor::<f32>(8, 0)?;
    let (shape, _) = rig.capture(|capture| {
        handle.all_reduce(&mut other, ReduceOp::Sum, capture.stream())?;
        handle.all_reduce(&mut other, ReduceOp::Sum, capture.stream())
    })?;
    let update = graph.executable.update(&shape);
    refused("an update to another shape", update)?;
    drop(shape);
    works_after_churn(rig, &mut handle, &mut graph)?;
    drop(graph);
    rig.finish(handle)
}

fn children_updated(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let granule = rig.granule();
    let mut graphs = Vec::new();
    for granules in [1, 3] {
        let _plan = handle.reserve(&[Request::new(granules * granule)])?;
        let (child, tensor) = rig.captured(&mut handle, granules * granule / 4)?;
        let (parent, ()) = rig.capture(|capture| capture.embed(&child))?;
        graphs.push((parent, tensor));
    }
    let (empty, ()) = rig.capture(|_| Ok(()))?;
    let (other, ()) = rig.capture(|capture| capture.embed(&empty))?;
    let Some((second, tensor)) = graphs.pop() else {
        return Ok(());
    };
    let mut executable = graphs.remove(0).0.instantiate()?;
    executable.update(&second)?;
    drop(second);
    let update = executable.update(&other);
    refused("an update to another child", update)?;
    let mut graph = Replay { tensor, executable };
    rig.eager(&mut handle, 7 * granule, rig.stream())?;
    works_after_churn(rig, &mut handle, &mut graph)?;
    drop(graph);
    let held = rig.settled_trim(&mut handle)?.held_bytes;
    ensure!(held == 0, "{held} bytes held after the last graph is gone");
    drop((empty, other));
    rig.finish(handle)
}
