//! What this backend's symmetric kernels serve, as data.

use collectives_core::collective::OpKind;
use collectives_core::communicator::Capabilities;
use collectives_core::dtype::DType;
use collectives_core::path::{PathRule, PathTable, Sides};

const REDUCTIONS: &[u8] = &[0, 1, 2, 3, 4, 5];

/// Operations meet on the host, so all calls are compared, and nobody leaves before all have read.
pub(crate) fn of_host() -> Capabilities {
    let kernels = [
        "host_all_reduce_symmetric",
        "host_reduce_scatter_symmetric",
        "host_all_gather_symmetric",
    ];
    Capabilities {
        symmetric: Ok(()),
        paths: symmetric_paths(REDUCTIONS, kernels),
        drains: true,
        compares_calls: true,
        forces_kernels: false,
        world: 1..=usize::MAX,
    }
}

/// All-reduce, reduce-scatter and all-gather of every type and size, by kernels of these names.
pub(crate) fn symmetric_paths(
    reductions: &'static [u8],
    [all_reduce, reduce_scatter, all_gather]: [&'static str; 3],
) -> PathTable {
    let rule = |op, reductions, needs, kernel| PathRule {
        op,
        dtypes: &DType::ALL,
        reductions,
        world: 2..=usize::MAX,
        bytes: 0..=usize::MAX,
        needs,
        stage_from: 0,
        stage_from_captured: 0,
        kernel,
        forced: true,
    };
    PathTable(vec![
        rule(OpKind::AllReduce, reductions, Sides::Both, all_reduce),
        rule(
            OpKind::ReduceScatter,
            reductions,
            Sides::Send,
            reduce_scatter,
        ),
        rule(OpKind::AllGather, &[], Sides::Recv, all_gather),
    ])
}
