//! Graphs of calls that were captured in pieces.
#![forbid(unsafe_code)]

use collectives_core::buffer::Buffer;
use collectives_core::collective::Op;
use collectives_core::dtype::DType;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use crate::capability::Capability::{Graphs, Symmetric};
use crate::case::{Case, Outcome};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq, values};

/// The cases.
pub(super) const CASES: &[Case] = &[Case::new(
    "I58",
    "a graph replays every piece of its calls also after growth",
    every_piece,
)
.needs(&[Symmetric, Graphs])
.catches(Planted::PieceSkipped)];

const SUM: ReduceOp = ReduceOp::Sum;

fn every_piece(rig: &mut Rig<'_>) -> Outcome {
    let (rank, ranks) = (rig.rank(), rig.ranks());
    let piece = 2 * 4096 * (ranks + 1);
    // Three pieces and a half of a sum, and as much in the parts of all ranks.
    let part = (7 * piece / 8).div_ceil(ranks);
    let total = part * ranks;
    for policy in ["replace", "geometric"] {
        let mut options = rig.options();
        options.piece = Some(piece);
        let mut handle = rig.collectives_with(policy, options)?;
        let mut requests = Vec::new();
        for (op, count) in [
            (Op::AllReduce(SUM), total),
            (Op::ReduceScatter(SUM), part),
            (Op::AllGather, part),
        ] {
            requests.extend(handle.request_for(op, DType::F32, count)?);
        }
        ensure_eq!(requests, [Request::new(piece); 3], "leases");
        let _plan = handle.reserve(&requests)?;
        let mut sum = rig.tensor::<f32>(total, 0)?;
        let mut whole = rig.tensor::<f32>(total, 0)?;
        let mut shard = Buffer::<f32>::zeroed(&rig.device(), part, rig.stream())?;
        let mut gathered = Buffer::<f32>::zeroed(&rig.device(), total, rig.stream())?;
        let (graph, reports) = rig.capture(|capture| {
            let stream = capture.stream();
            Ok([
                handle.all_reduce(&mut sum, SUM, stream)?,
                handle.reduce_scatter(&whole, &mut shard, SUM, stream)?,
                handle.all_gather(&shard, &mut gathered, stream)?,
            ])
        })?;
        let split = reports.iter().all(|report| report.pieces > 1);
        ensure!(split, "captured whole: {reports:?}");
        let pieces: u64 = reports.iter().map(|report| u64::from(report.pieces)).sum();
        let mut graph = graph.instantiate()?;
        for round in 1..=3 {
            let stream = rig.stream();
            sum.write(&rig.input(total, round), stream)?;
            whole.write(&rig.input(total, round + 10), stream)?;
            graph.launch(&*rig.device(), stream)?;
            rig.expect_sum("a replayed sum", &sum, round, stream)?;
            let expected = values::sum::<f32>(ranks, total, round + 10);
            let mine = &expected[rank * part..(rank + 1) * part];
            rig.expect_all("a replayed part", &shard, mine, stream)?;
            rig.expect_all("all replayed parts", &gathered, &expected, stream)?;
            // What is not split grows; the graph keeps its slot.
            let _plan = handle.reserve(&[Request::new(2 * round * rig.granule())])?;
            rig.eager(&mut handle, piece / 2, stream)?;
        }
        ensure_eq!(
            handle.stats().pieces,
            pieces,
            "pieces, which replays add none to"
        );
        drop((graph, sum, whole, shard, gathered));
        rig.finish(handle)?;
    }
    Ok(())
}
