//! What this backend's symmetric kernels serve, as data.

use collectives_core::collective::OpKind;
use collectives_core::communicator::Capabilities;
use collectives_core::dtype::DType;
use collectives_core::path::{PathRule, PathTable, Sides};

const REDUCTIONS: &[u8] = &[0, 1, 2, 3, 4, 5];

/// Operations meet on the host, so all calls are compared, and nobody leaves before all have read.
pub(crate) fn of_host() -> Capabilities {
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
    let (all_reduce, reduce_scatter, all_gather) = (
        rule(
            OpKind::AllReduce,
            REDUCTIONS,
            Sides::Both,
            "host_all_reduce_symmetric",
        ),
        rule(
            OpKind::ReduceScatter,
            REDUCTIONS,
            Sides::Send,
            "host_reduce_scatter_symmetric",
        ),
        rule(
            OpKind::AllGather,
            &[],
            Sides::Recv,
            "host_all_gather_symmetric",
        ),
    );
    Capabilities {
        symmetric: Ok(()),
        paths: PathTable(vec![all_reduce, reduce_scatter, all_gather]),
        drains: true,
        compares_calls: true,
        world: 1..=usize::MAX,
    }
}
