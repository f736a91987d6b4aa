//! Calls that need more scratch than a piece: any size goes through one lease of a fixed size.
#![forbid(unsafe_code)]

use collectives_core::buffer::Buffer;
use collectives_core::collective::Op;
use collectives_core::dtype::DType;
use collectives_core::path::OpReport;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use half::bf16;

use crate::capability::Capability::Symmetric;
use crate::case::{Case, Outcome};
use crate::planted::Planted;
use crate::rig::{Handle, Rig};
use crate::values::{self, Exact};
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "I55",
        "a call in pieces leaves what a whole call leaves whatever its size",
        any_size,
    )
    .needs(&[Symmetric])
    .catches(Planted::PieceMisplaced),
    Case::new(
        "I56",
        "scratch of one piece serves calls of any size",
        one_piece,
    )
    .needs(&[Symmetric])
    .catches(Planted::PieceIgnored),
    Case::new("I57", "every piece is counted once", counted)
        .needs(&[Symmetric])
        .catches(Planted::PiecesUncounted),
];

const SUM: ReduceOp = ReduceOp::Sum;

/// A handle whose calls go in pieces of this many bytes.
fn in_pieces(rig: &mut Rig<'_>, policy: &str, piece: usize) -> Outcome<Handle> {
    let mut options = rig.options();
    options.piece = Some(piece);
    Ok(rig.collectives_with(policy, options)?)
}

fn any_size(rig: &mut Rig<'_>) -> Outcome {
    // Room for three units of every rank's part, and of its other side.
    let piece = 3 * 4096 * (rig.ranks() + 1);
    let mut trial = Trial {
        split: in_pieces(rig, "geometric", piece)?,
        whole: rig.collectives("geometric")?,
        piece,
    };
    for in_place in [false, true] {
        sizes::<f32>(rig, &mut trial, in_place)?;
        sizes::<bf16>(rig, &mut trial, in_place)?;
        sizes::<i64>(rig, &mut trial, in_place)?;
        sizes::<u8>(rig, &mut trial, in_place)?;
    }
    rig.finish(trial.split)?;
    rig.finish(trial.whole)
}

/// A handle that splits, and one that does not, to be asked what a call needs.
struct Trial {
    split: Handle,
    whole: Handle,
    piece: usize,
}

impl Trial {
    /// Whether a call went in pieces exactly where it needs more than one.
    fn reported<T: Exact>(&self, op: Op<'_>, count: usize, report: OpReport) -> Outcome {
        let asked = |handle: &Handle| handle.request_for(op, T::DTYPE, count);
        let needs = asked(&self.whole)?.map_or(0, |request| request.bytes);
        let leased = asked(&self.split)?.map_or(0, |request| request.bytes);
        let what = format!("{op:?} of {count} {}", T::DTYPE);
        ensure_eq!(leased, needs.min(self.piece), "the lease for {what}");
        let pieces = match needs {
            0 => report.pieces == 0,
            needs if needs <= self.piece => report.pieces == 1,
            _ => report.pieces > 1,
        };
        ensure!(pieces, "{what} needs {needs} bytes: {report:?}");
        Ok(())
    }
}

fn sizes<T: Exact>(rig: &Rig<'_>, trial: &mut Trial, in_place: bool) -> Outcome {
    let fit = trial.piece / T::DTYPE.size();
    for (round, count) in [fit - 1, fit, fit + 1, 2 * fit, 3 * fit + 5]
        .into_iter()
        .enumerate()
    {
        reduce::<T>(rig, trial, in_place, count, round)?;
        scatter::<T>(rig, trial, in_place, count.div_ceil(rig.ranks()), round)?;
        gather::<T>(rig, trial, in_place, count.div_ceil(rig.ranks()), round)?;
    }
    Ok(())
}

fn reduce<T: Exact>(
    rig: &Rig<'_>,
    trial: &mut Trial,
    in_place: bool,
    count: usize,
    round: usize,
) -> Outcome {
    let stream = rig.stream();
    let mut tensor = rig.tensor::<T>(count, round)?;
    let what = format!("a sum of {count} {}, in place: {in_place}", T::DTYPE);
    let report = if in_place {
        trial.split.all_reduce(&mut tensor, SUM, stream)?
    } else {
        let mut result = Buffer::<T>::zeroed(&rig.device(), count, stream)?;
        let split = &mut trial.split;
        let report = split.all_reduce_into(&tensor, &mut result, SUM, stream)?;
        rig.expect_all("its input", &tensor, &rig.input(count, round), stream)?;
        tensor = result;
        report
    };
    rig.expect_sum(&what, &tensor, round, stream)?;
    trial.reported::<T>(Op::AllReduce(SUM), count, report)
}

fn scatter<T: Exact>(
    rig: &Rig<'_>,
    trial: &mut Trial,
    in_place: bool,
    part: usize,
    round: usize,
) -> Outcome {
    let (stream, total) = (rig.stream(), part * rig.ranks());
    let mine = rig.rank() * part..(rig.rank() + 1) * part;
    let whole = rig.tensor::<T>(total, round)?;
    let mut shard = match in_place {
        true => whole.slice(mine.clone())?,
        false => Buffer::zeroed(&rig.device(), part, stream)?,
    };
    let report = trial
        .split
        .reduce_scatter(&whole, &mut shard, SUM, stream)?;
    let mut expected = rig.input::<T>(total, round);
    let sum = values::sum::<T>(rig.ranks(), total, round);
    let what = format!("parts of {part} {}, in place: {in_place}", T::DTYPE);
    rig.expect_all(&what, &shard, &sum[mine.clone()], stream)?;
    if in_place {
        expected[mine.clone()].copy_from_slice(&sum[mine]);
    }
    rig.expect_all("what surrounds it", &whole, &expected, stream)?;
    trial.reported::<T>(Op::ReduceScatter(SUM), part, report)
}

fn gather<T: Exact>(
    rig: &Rig<'_>,
    trial: &mut Trial,
    in_place: bool,
    part: usize,
    round: usize,
) -> Outcome {
    let (stream, total) = (rig.stream(), part * rig.ranks());
    let mine = rig.rank() * part..(rig.rank() + 1) * part;
    let expected = values::input::<T>(0, rig.ranks(), total, round);
    let mut whole = Buffer::<T>::zeroed(&rig.device(), total, stream)?;
    let mut shard = match in_place {
        true => whole.slice(mine.clone())?,
        false => Buffer::zeroed(&rig.device(), part, stream)?,
    };
    shard.write(&expected[mine], stream)?;
    let report = trial.split.all_gather(&shard, &mut whole, stream)?;
    let what = format!("{total} {} of all ranks, in place: {in_place}", T::DTYPE);
    rig.expect_all(&what, &whole, &expected, stream)?;
    trial.reported::<T>(Op::AllGather, part, report)
}

fn one_piece(rig: &mut Rig<'_>) -> Outcome {
    let piece = rig.granule();
    for policy in ["exact", "replace", "geometric"] {
        let mut handle = in_pieces(rig, policy, piece)?;
        let count = 9 * piece / 4;
        let request = handle.request_for(Op::AllReduce(SUM), DType::F32, count)?;
        ensure_eq!(request, Some(Request::new(piece)), "the lease of a call");
        let planned = handle.plan(&Vec::from_iter(request))?;
        let _plan = handle.reserve(&Vec::from_iter(request))?;
        handle.seal();
        for pieces in [9, 1, 4, 2, 9] {
            rig.eager(&mut handle, pieces * piece + 20, rig.stream())?;
        }
        let stats = handle.stats();
        ensure_eq!(stats.registrations, 1, "registrations under `{policy}`");
        ensure_eq!(stats.largest_request, piece, "the largest request");
        let mapped = handle.communicator().info().mapped(piece);
        ensure_eq!(stats.mapped_bytes(), mapped, "mapped bytes");
        ensure_eq!(
            planned.mapped_bytes,
            mapped,
            "mapped bytes that were priced"
        );
        rig.finish(handle)?;
    }
    Ok(())
}

fn counted(rig: &mut Rig<'_>) -> Outcome {
    let piece = 16 << 10;
    let mut handle = in_pieces(rig, "geometric", piece)?;
    let mut expected = 0;
    let counts = [1, piece / 4, piece / 4 + 1, 2 * piece, 5 * piece / 2];
    for count in counts {
        let mut tensor = rig.tensor::<f32>(count, 0)?;
        let report = handle.all_reduce(&mut tensor, SUM, rig.stream())?;
        let pieces = (count * 4).div_ceil(piece);
        ensure_eq!(report.pieces as usize, pieces, "pieces of {count} elements");
        expected += if pieces > 1 { pieces as u64 } else { 0 };
    }
    let stats = handle.stats();
    ensure_eq!(stats.pieces, expected, "pieces");
    ensure_eq!(stats.requests, counts.len() as u64, "requests");
    ensure_eq!(stats.requests, stats.hits + stats.growths, "outcomes");
    rig.expect_alike("the digest of decisions", &stats.digest.to_string())?;
    rig.finish(handle)
}
