//! The symmetric kernels of each version, as data.
//!
//! | operation | element types | reductions | must lie in a window |
//! |---|---|---|---|
//! | all-reduce | f32, f16, bf16, f8 | sum; average as sum, then divide (not f8) | both sides |
//! | reduce-scatter | f32, f16, bf16, f8 | sum; average since 2.30.3 | what is read |
//! | all-gather | all | | what is written |
//!
//! Up to 2.28 both sides must lie in windows for all three. From 2.31 on they must where the larger
//! side has less than 256 KiB: the kernels for small operands want both (read from captured graphs of
//! 2.32.3, where one side is enough from 128 KiB on with 4 and 8 ranks and from 256 KiB with 2; of
//! 2.30.7 one side is enough at every size). Kernels serve less than 64 GiB.
//!
//! Below a few hundred kilobytes copying through scratch costs more than it gains; from where on it
//! pays was measured with ranks that share one H200, and for all-reduce with two that have one each,
//! without multicast.

use std::ops::RangeInclusive;

use collectives_core::collective::OpKind;
use collectives_core::dtype::DType;
use collectives_core::path::{PathRule, PathTable, Sides};
use nccl_sys::Version;

const FLOATS: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::F8E4M3,
    DType::F8E5M2,
];
const DIVISIBLE: &[DType] = &[DType::F32, DType::F16, DType::Bf16];
const SUM: &[u8] = &[0];
const AVERAGE: &[u8] = &[4];

/// The first version in which one side in a window is enough.
const ONE_SIDE: Version = Version::new(2, 29, 2);
/// The first version in which one side in a window is enough only for large operands.
const ONE_LARGE_SIDE: Version = Version::new(2, 31, 0);
/// What counts as large then.
const LARGE: usize = 256 << 10;
/// The first version that averages in a reduce-scatter kernel.
const SCATTER_AVERAGE: Version = Version::new(2, 30, 3);

/// What no kernel serves any more.
const TOO_LARGE: usize = 64 << 30;

/// World sizes, and from how many bytes staging pays there, eagerly and in a graph.
type Staging = [(RangeInclusive<usize>, usize, usize); 2];

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Where ranks share a GPU. An eager call is staged by the host, whose speed decides close calls: the
/// sizes are those that lose least on the fastest and the slowest that was seen.
const REDUCED: Staging = [
    (2..=2, MIB, 512 * KIB),
    (3..=usize::MAX, 512 * KIB, 256 * KIB),
];
const GATHERED: Staging = [
    (2..=2, MIB, 512 * KIB),
    (3..=usize::MAX, 512 * KIB, 512 * KIB),
];
const SCATTERED: Staging = [
    (2..=2, 2 * MIB, MIB),
    (3..=usize::MAX, 512 * KIB, 512 * KIB),
];
/// Where each rank has its own: between two GPUs the ordinary kernels were faster at every size, and
/// more have not been measured.
const APART: Staging = [
    (2..=2, TOO_LARGE, TOO_LARGE),
    (3..=usize::MAX, 512 * KIB, 256 * KIB),
];

/// The table of a version. `forced` says that the library is told to use these kernels, `shared` that
/// ranks share a GPU.
pub(crate) fn table(version: Version, forced: bool, shared: bool) -> PathTable {
    // Which sides must lie in windows, by size: the rows of one kernel.
    let rows = |side| match version {
        version if version < ONE_SIDE => vec![(1..=TOO_LARGE - 1, Sides::Both)],
        version if version < ONE_LARGE_SIDE => vec![(1..=TOO_LARGE - 1, side)],
        _ => vec![(1..=LARGE - 1, Sides::Both), (LARGE..=TOO_LARGE - 1, side)],
    };
    let staging = |op| match (shared, op) {
        (false, _) => APART,
        (true, OpKind::AllGather) => GATHERED,
        (true, OpKind::ReduceScatter) => SCATTERED,
        (true, _) => REDUCED,
    };
    let mut rules = Vec::new();
    let mut add = |op, dtypes, reductions, side, kernel| {
        for (world, eager, captured) in staging(op) {
            rules.extend(rows(side).into_iter().map(|(bytes, needs)| PathRule {
                op,
                dtypes,
                reductions,
                world: world.clone(),
                bytes,
                needs,
                stage_from: eager,
                stage_from_captured: captured,
                kernel,
                forced,
            }));
        }
    };
    let all_reduce = "ncclSymkDevKernel_AllReduce";
    add(OpKind::AllReduce, FLOATS, SUM, Sides::Both, all_reduce);
    add(
        OpKind::AllReduce,
        DIVISIBLE,
        AVERAGE,
        Sides::Both,
        all_reduce,
    );
    let reduce_scatter = "ncclSymkDevKernel_ReduceScatter";
    let send = Sides::Send;
    add(OpKind::ReduceScatter, FLOATS, SUM, send, reduce_scatter);
    if version >= SCATTER_AVERAGE {
        add(OpKind::ReduceScatter, FLOATS, AVERAGE, send, reduce_scatter);
    }
    let all_gather = "ncclSymkDevKernel_AllGather";
    add(OpKind::AllGather, &DType::ALL, &[], Sides::Recv, all_gather);
    PathTable(rules)
}

#[cfg(test)]
mod tests {
    use collectives_core::addr::Operand;
    use collectives_core::collective::{Collective, Counts, Op};
    use collectives_core::path::Reason;
    use collectives_core::rank::Rank;
    use collectives_core::reduce::ReduceOp;
    use rstest::rstest;

    use super::*;

    const NEW: Version = Version::new(2, 32, 3);
    const OLD: Version = Version::new(2, 28, 9);

    fn call(op: Op<'static>, dtype: DType, count: usize) -> Collective<'static> {
        Collective {
            op,
            dtype,
            send: Operand::EMPTY,
            recv: Operand::EMPTY,
            counts: Counts::Even(count),
        }
    }

    fn needs(version: Version, op: Op<'static>, dtype: DType) -> Result<Sides, Reason> {
        needs_at(version, op, dtype, 1 << 20)
    }

    fn needs_at(
        version: Version,
        op: Op<'static>,
        dtype: DType,
        count: usize,
    ) -> Result<Sides, Reason> {
        let call = call(op, dtype, count);
        let table = table(version, false, true);
        table.rule(&call, Rank(0), 4).map(|rule| rule.needs)
    }

    #[rstest]
    #[case::all_reduce(NEW, Op::AllReduce(ReduceOp::Sum), DType::Bf16, Ok(Sides::Both))]
    #[case::f8(NEW, Op::AllReduce(ReduceOp::Sum), DType::F8E5M2, Ok(Sides::Both))]
    #[case::average(NEW, Op::AllReduce(ReduceOp::Average), DType::F32, Ok(Sides::Both))]
    #[case::f64(
        NEW,
        Op::AllReduce(ReduceOp::Sum),
        DType::F64,
        Err(Reason::NoKernelForType)
    )]
    #[case::int(
        NEW,
        Op::AllReduce(ReduceOp::Sum),
        DType::I32,
        Err(Reason::NoKernelForType)
    )]
    #[case::max(
        NEW,
        Op::AllReduce(ReduceOp::Max),
        DType::F32,
        Err(Reason::NoKernelForType)
    )]
    #[case::scatter(NEW, Op::ReduceScatter(ReduceOp::Sum), DType::F16, Ok(Sides::Send))]
    #[case::scatter_average(NEW, Op::ReduceScatter(ReduceOp::Average), DType::F16, Ok(Sides::Send))]
    #[case::scatter_average_old(
        OLD,
        Op::ReduceScatter(ReduceOp::Average),
        DType::F16,
        Err(Reason::NoKernelForType)
    )]
    #[case::scatter_old(OLD, Op::ReduceScatter(ReduceOp::Sum), DType::F16, Ok(Sides::Both))]
    #[case::gather(NEW, Op::AllGather, DType::U8, Ok(Sides::Recv))]
    #[case::gather_old(OLD, Op::AllGather, DType::I64, Ok(Sides::Both))]
    #[case::broadcast(
        NEW,
        Op::Broadcast { root: Rank(0) },
        DType::F32,
        Err(Reason::NoKernelForOperation)
    )]
    fn the_table_says(
        #[case] version: Version,
        #[case] op: Op<'static>,
        #[case] dtype: DType,
        #[case] expected: Result<Sides, Reason>,
    ) {
        assert_eq!(needs(version, op, dtype), expected);
    }

    #[test]
    fn every_world_size_and_length_has_exactly_one_row() {
        let table = table(NEW, false, true);
        for world_size in [2, 3, 4, 5, 8, 64] {
            for bytes in [1, LARGE - 1, LARGE, TOO_LARGE - 1] {
                let rows = table.0.iter().filter(|rule| {
                    rule.op == OpKind::AllGather
                        && rule.world.contains(&world_size)
                        && rule.bytes.contains(&bytes)
                });
                assert_eq!(rows.count(), 1, "{bytes} bytes on {world_size} ranks");
            }
        }
        let call = call(Op::AllGather, DType::U8, 8);
        assert!(table.rule(&call, Rank(0), 1).is_err());
    }

    #[test]
    fn two_gpus_are_not_staged_between_unless_asked() {
        let large = call(Op::AllReduce(ReduceOp::Sum), DType::F32, 64 << 20);
        let from = |shared| {
            let table = table(NEW, false, shared);
            table.rule(&large, Rank(0), 2).map(|rule| rule.stage_from)
        };
        assert_eq!(from(true), Ok(1 << 20));
        assert_eq!(from(false), Ok(TOO_LARGE));
    }

    #[test]
    fn small_operands_want_both_sides_in_new_versions() {
        let scatter = Op::ReduceScatter(ReduceOp::Sum);
        let (small, large) = (64, LARGE / 4);
        let middle = Version::new(2, 30, 7);
        assert_eq!(needs_at(NEW, scatter, DType::F32, small), Ok(Sides::Both));
        assert_eq!(needs_at(NEW, scatter, DType::F32, large), Ok(Sides::Send));
        assert_eq!(
            needs_at(middle, scatter, DType::F32, small),
            Ok(Sides::Send)
        );
    }

    #[test]
    fn what_is_too_large_for_the_kernels_has_no_row() {
        let table = table(NEW, false, true);
        let call = call(Op::AllReduce(ReduceOp::Sum), DType::F32, TOO_LARGE / 4);
        let reason = table.rule(&call, Rank(0), 8).map(|rule| rule.needs);
        assert_eq!(reason, Err(Reason::NoKernelForType));
    }
}
