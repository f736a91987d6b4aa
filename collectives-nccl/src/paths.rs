//! The symmetric kernels of each version, as data.
//!
//! | operation | element types | reductions | must lie in a window |
//! |---|---|---|---|
//! | all-reduce | f32, f16, bf16, f8 | sum; average as sum, then divide (not f8) | both sides |
//! | reduce-scatter | f32, f16, bf16, f8 | sum; average since 2.30.3 | what is read |
//! | all-gather | all | | what is written |
//!
//! Up to 2.28 both sides must lie in windows for all three. Kernels serve less than 64 GiB. Below a
//! few hundred kilobytes copying through scratch costs more than it gains; from where on it pays was
//! measured with ranks that share one H200, and is the same for the three operations until each
//! has been measured.

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
/// The first version that averages in a reduce-scatter kernel.
const SCATTER_AVERAGE: Version = Version::new(2, 30, 3);

/// What no kernel serves any more.
const TOO_LARGE: usize = 64 << 30;

/// World sizes, and from how many bytes staging pays there, eagerly and in a graph.
const STAGING: [(RangeInclusive<usize>, usize, usize); 3] = [
    (2..=2, 2 << 20, 512 << 10),
    (3..=4, 512 << 10, 8 << 10),
    (5..=usize::MAX, 512 << 10, 8 << 10),
];

/// The table of a version. `forced` says that the library is told to use these kernels.
pub(crate) fn table(version: Version, forced: bool) -> PathTable {
    let one_side = |side| match version >= ONE_SIDE {
        true => side,
        false => Sides::Both,
    };
    let mut rules = Vec::new();
    for (world, eager, captured) in STAGING {
        let rule = |op, dtypes, reductions, needs, kernel| PathRule {
            op,
            dtypes,
            reductions,
            world: world.clone(),
            bytes: 1..=TOO_LARGE - 1,
            needs,
            stage_from: eager,
            stage_from_captured: captured,
            kernel,
            forced,
        };
        let all_reduce = "ncclSymkDevKernel_AllReduce";
        let reduce_scatter = "ncclSymkDevKernel_ReduceScatter";
        rules.push(rule(
            OpKind::AllReduce,
            FLOATS,
            SUM,
            Sides::Both,
            all_reduce,
        ));
        rules.push(rule(
            OpKind::AllReduce,
            DIVISIBLE,
            AVERAGE,
            Sides::Both,
            all_reduce,
        ));
        let send = one_side(Sides::Send);
        rules.push(rule(
            OpKind::ReduceScatter,
            FLOATS,
            SUM,
            send,
            reduce_scatter,
        ));
        if version >= SCATTER_AVERAGE {
            rules.push(rule(
                OpKind::ReduceScatter,
                FLOATS,
                AVERAGE,
                send,
                reduce_scatter,
            ));
        }
        rules.push(rule(
            OpKind::AllGather,
            &DType::ALL,
            &[],
            one_side(Sides::Recv),
            "ncclSymkDevKernel_AllGather",
        ));
    }
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
        let call = call(op, dtype, 1 << 10);
        let table = table(version, false);
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
    fn every_world_size_has_exactly_one_row_a_call() {
        let table = table(NEW, false);
        for world_size in [2, 3, 4, 5, 8, 64] {
            let rows = table
                .0
                .iter()
                .filter(|rule| rule.op == OpKind::AllGather && rule.world.contains(&world_size));
            assert_eq!(rows.count(), 1, "{world_size}");
        }
        let call = call(Op::AllGather, DType::U8, 8);
        assert!(table.rule(&call, Rank(0), 1).is_err());
    }

    #[test]
    fn what_is_too_large_for_the_kernels_has_no_row() {
        let table = table(NEW, false);
        let call = call(Op::AllReduce(ReduceOp::Sum), DType::F32, TOO_LARGE / 4);
        let reason = table.rule(&call, Rank(0), 8).map(|rule| rule.needs);
        assert_eq!(reason, Err(Reason::NoKernelForType));
    }
}
