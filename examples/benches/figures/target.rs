//! What the figures should come to. Nothing here fails anything: a target is printed beside its
//! figure, with whether it was met.

use collectives_core::collective::OpKind;
use collectives_core::dtype::DType;
use serde::Serialize;

use crate::case::Case;
use crate::row::{Row, Variant};

/// A target, and how it went.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    /// What is compared, as `B/ours >= 3`.
    pub(crate) target: String,
    /// What it came to; nothing where the other side was not measured.
    pub(crate) value: Option<f64>,
    pub(crate) met: Option<bool>,
}

impl Check {
    pub(crate) fn at_least(what: &str, bound: f64, value: Option<f64>) -> Self {
        Self {
            target: format!("{what} >= {bound}"),
            value,
            met: value.map(|value| value >= bound),
        }
    }

    pub(crate) fn below(what: &str, bound: f64, value: Option<f64>) -> Self {
        Self {
            target: format!("{what} < {bound}"),
            value,
            met: value.map(|value| value < bound),
        }
    }

    pub(crate) fn at_most(what: &str, bound: f64, value: Option<f64>) -> Self {
        Self {
            target: format!("{what} <= {bound}"),
            value,
            met: value.map(|value| value <= bound),
        }
    }
}

/// Bounds of one case: on B over ours, on ours over F, on ours over P. Those of ranks that are processes
/// are [apart](over_processes).
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    peer: Option<f64>,
    limit: Option<f64>,
    one_way: Option<f64>,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn bounds(case: &Case) -> Bounds {
    let over_peer = |peer| Bounds {
        peer: Some(peer),
        ..Bounds::default()
    };
    let and_limit = |peer, limit| Bounds {
        limit: Some(limit),
        ..over_peer(peer)
    };
    let and_one_way = |peer, one_way| Bounds {
        one_way: Some(one_way),
        ..over_peer(peer)
    };
    let bytes = case.bytes;
    match (case.operation, case.dtype, case.ranks) {
        (OpKind::Barrier, _, 2) => and_one_way(1.0, 1.5),
        (OpKind::AllReduce, DType::F32, 2) => match bytes {
            8 => and_one_way(1.0, 2.0),
            _ if bytes == 64 * KIB => over_peer(2.0),
            _ if bytes == MIB => and_limit(3.0, 1.5),
            _ if bytes == 16 * MIB => and_limit(3.0, 1.2),
            _ if bytes == 128 * MIB => and_limit(2.5, 1.2),
            _ => Bounds::default(),
        },
        (OpKind::AllReduce, DType::Bf16, 2) => match bytes {
            _ if bytes == 64 * KIB || bytes == MIB => over_peer(2.0),
            _ if bytes == 16 * MIB || bytes == 128 * MIB => over_peer(4.0),
            _ => Bounds::default(),
        },
        (OpKind::AllReduce, DType::F32, 4) => match bytes {
            8 => over_peer(1.4),
            _ if bytes == 64 * KIB => over_peer(2.0),
            _ if bytes == MIB => over_peer(2.5),
            _ if bytes == 16 * MIB => over_peer(3.0),
            _ if bytes == 128 * MIB => over_peer(5.0),
            _ => Bounds::default(),
        },
        _ => Bounds::default(),
    }
}

/// B over ranks that are processes.
fn over_processes(case: &Case) -> Option<f64> {
    match (case.operation, case.dtype, case.ranks, case.bytes) {
        (OpKind::AllReduce, DType::F32, 2, bytes) => match bytes {
            8 | KIB => Some(1.2),
            _ if bytes == 64 * KIB => Some(1.1),
            MIB => Some(0.95),
            _ if bytes == 16 * MIB => Some(1.5),
            _ if bytes == 128 * MIB => Some(2.0),
            _ => None,
        },
        _ => None,
    }
}

/// The targets of a row, which are about `enqueue`.
pub(crate) fn checks(case: &Case, row: &Row) -> Vec<Check> {
    let Bounds {
        peer,
        limit,
        one_way,
    } = bounds(case);
    let ours = row.ours(Variant::Enqueue);
    let over = |other: Option<f64>| ours.zip(other).map(|(ours, other)| ours / other);
    let below = ours.zip(row.best_peer).map(|(ours, peer)| peer / ours);
    let mut checks = Vec::new();
    checks.extend(one_way.map(|bound| Check::at_most("ours/P", bound, over(Some(row.one_way.0)))));
    checks.extend(limit.map(|bound| Check::at_most("ours/F", bound, over(row.copy_limit))));
    checks.extend(peer.map(|bound| Check::at_least("B/ours", bound, below)));
    let processes = row.ours(Variant::Processes).zip(row.best_peer);
    let below = processes.map(|(ours, peer)| peer / ours);
    let bound = over_processes(case);
    checks.extend(bound.map(|bound| Check::at_least("B/processes", bound, below)));
    checks
}
