//! Chooses the path of one call: a pure function of what all ranks see.

use super::Collectives;
use super::rows::Rows;
use super::staged::{is_rooted, scratch_bytes};
use crate::collective::Collective;
use crate::communicator::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::path::{Fallback, Kernel, Path, Reason, Sides, Staging};
use crate::scratch::ScratchAllocator;
use crate::submission::KernelChoice;

/// What the table says about a call, copied out so that the communicator can be used.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route {
    /// Enqueue the operands as they are.
    AsIs(Way),
    /// Stage these sides through so many bytes of scratch, then run this kernel.
    Stage {
        sides: Sides,
        kernel: Kernel,
        bytes: usize,
    },
}

/// How a call goes that is not staged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) path: Path,
    pub(super) reason: Reason,
    pub(super) kernel: Kernel,
}

impl Way {
    pub(super) const fn ordinary(path: Path, reason: Reason) -> Self {
        Self {
            path,
            reason,
            kernel: Kernel::Ordinary,
        }
    }

    /// That of a call that should have been staged.
    pub(super) const fn fallback(reason: Reason) -> Self {
        Self::ordinary(Path::Fallback, reason)
    }
}

/// The settings of the handle that a route depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    pub(super) rows: &'a Rows,
    pub(super) symmetric: bool,
    pub(super) staging: Staging,
    pub(super) world_size: usize,
    pub(super) captured: bool,
    /// What the backend is told to use.
    pub(super) choice: KernelChoice,
}

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// The route of a call that was checked.
    #[inline(always)]
    pub(super) fn route(&self, call: &Collective<'_>, captured: bool) -> Result<Route> {
        let route = match call.is_empty() {
            // Enqueued all the same: a backend that compares calls compares this one too.
            true => Route::AsIs(Way::ordinary(Path::Direct, Reason::Empty)),
            false => choose(
                call,
                &Rules {
                    rows: &self.rows,
                    symmetric: self.symmetric,
                    staging: self.staging,
                    world_size: self.world_size,
                    captured,
                    choice: self.kernel,
                },
            )?,
        };
        if let Route::AsIs(way) = route {
            permit(call, way, self.fallback)?;
        }
        Ok(route)
    }
}

/// The path of a call with elements that was checked.
#[inline(always)]
pub(super) fn choose(call: &Collective<'_>, rules: &Rules<'_>) -> Result<Route> {
    let ordinary = |path, reason| Ok(Route::AsIs(Way::ordinary(path, reason)));
    if rules.world_size == 1 {
        return ordinary(Path::Direct, Reason::SingleRank);
    }
    let row = match rules.rows.find(call) {
        Ok(_) if !rules.symmetric => return ordinary(Path::Fallback, Reason::NoSymmetricMemory),
        Ok(row) => row,
        Err(reason @ Reason::NoKernelForOperation) => return ordinary(Path::Direct, reason),
        Err(reason) => return ordinary(Path::Fallback, reason),
    };
    let kernel = row.kernel(rules.choice);
    let forced = rules.staging == Staging::Forced;
    match missing_sides(call, row.needs, forced) {
        None => Ok(Route::AsIs(Way {
            path: Path::ZeroCopy,
            reason: Reason::Registered,
            kernel,
        })),
        Some(_) if rules.staging == Staging::Never => ordinary(Path::Direct, Reason::StagingOff),
        Some(_) if !forced && !row.pays(call, rules.captured) => {
            ordinary(Path::Direct, Reason::TooSmall)
        }
        Some(sides) => Ok(Route::Stage {
            sides,
            kernel,
            bytes: scratch_bytes(call, sides, rules.world_size)?,
        }),
    }
}

/// The sides the kernel needs in a window that are not; all it needs when staging is forced.
///
/// A rank that is not the root has one side only, which speaks for both, as on the root.
#[inline(always)]
pub(super) fn missing_sides(call: &Collective<'_>, needs: Sides, forced: bool) -> Option<Sides> {
    let send = needs.send() && (forced || call.send.window.is_none());
    let recv = needs.recv() && (forced || call.recv.window.is_none());
    match (send, recv) {
        (true, true) => Some(Sides::Both),
        (false, false) => None,
        _ if is_rooted(call.kind()) && !forced => {
            let in_window = call.send.window.is_some() || call.recv.window.is_some();
            (!in_window).then_some(needs)
        }
        (true, false) => Some(Sides::Send),
        (false, true) => Some(Sides::Recv),
    }
}

/// Refuses the ordinary path of an operation that has symmetric kernels, where that is forbidden.
#[inline]
pub(super) fn permit(call: &Collective<'_>, way: Way, fallback: Fallback) -> Result<()> {
    match fallback {
        Fallback::Allow => Ok(()),
        Fallback::Forbid => permit_none(call, way),
    }
}

#[inline(never)]
fn permit_none(call: &Collective<'_>, way: Way) -> Result<()> {
    let Way { path, reason, .. } = way;
    let exempt = matches!(
        reason,
        Reason::NoKernelForOperation | Reason::SingleRank | Reason::Empty
    );
    if matches!(path, Path::Direct | Path::Fallback) && !exempt {
        return Err(Error::new(ErrorKind::FallbackForbidden {
            op: call.kind(),
            why: reason.to_string(),
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::addr::{Addr, Operand, WindowId, WindowSlice};
    use crate::collective::{Counts, Op, OpKind};
    use crate::dtype::DType;
    use crate::path::{PathRule, PathTable};
    use crate::rank::{CommId, Rank};
    use crate::reduce::ReduceOp;

    fn rows() -> Rows {
        let table = PathTable(vec![PathRule {
            op: OpKind::AllReduce,
            dtypes: &[DType::F32],
            reductions: &[0],
            world: 2..=8,
            bytes: 1..=1 << 20,
            needs: Sides::Both,
            stage_from: 64,
            stage_from_captured: 32,
            kernel: "k",
            forced: false,
        }]);
        Rows::of(&table, 2)
    }

    fn call(count: usize, dtype: DType, op: ReduceOp, in_window: bool) -> Collective<'static> {
        let addr = Addr::from_ptr(std::ptr::without_provenance_mut::<u8>(4096));
        let mut operand = Operand::new(addr, count * dtype.size());
        if in_window {
            operand = operand.in_window(WindowSlice {
                comm: CommId::from_raw(1),
                window: WindowId(0),
                offset: 0,
            });
        }
        Collective {
            op: Op::AllReduce(op),
            dtype,
            send: operand,
            recv: operand,
            counts: Counts::Even(count),
        }
    }

    #[rstest]
    #[case::registered(16, DType::F32, ReduceOp::Sum, true, Staging::Auto, false, "zero-copy")]
    #[case::pays(16, DType::F32, ReduceOp::Sum, false, Staging::Auto, false, "stage")]
    #[case::small(
        15,
        DType::F32,
        ReduceOp::Sum,
        false,
        Staging::Auto,
        false,
        "too small"
    )]
    #[case::small_captured(15, DType::F32, ReduceOp::Sum, false, Staging::Auto, true, "stage")]
    #[case::forced(1, DType::F32, ReduceOp::Sum, true, Staging::Forced, false, "stage")]
    #[case::never(
        16,
        DType::F32,
        ReduceOp::Sum,
        false,
        Staging::Never,
        false,
        "staging is off"
    )]
    #[case::dtype(
        16,
        DType::F64,
        ReduceOp::Sum,
        true,
        Staging::Auto,
        false,
        "no symmetric"
    )]
    #[case::op(
        16,
        DType::F32,
        ReduceOp::Max,
        true,
        Staging::Auto,
        false,
        "no symmetric"
    )]
    #[case::size(1 << 19, DType::F32, ReduceOp::Sum, true, Staging::Auto, false, "no symmetric")]
    fn the_table_decides(
        #[case] count: usize,
        #[case] dtype: DType,
        #[case] op: ReduceOp,
        #[case] in_window: bool,
        #[case] staging: Staging,
        #[case] captured: bool,
        #[case] expected: &str,
    ) {
        let rules = Rules {
            rows: &rows(),
            symmetric: true,
            staging,
            world_size: 2,
            captured,
            choice: KernelChoice::Any,
        };
        let said = match choose(&call(count, dtype, op, in_window), &rules).unwrap() {
            Route::AsIs(Way { path, reason, .. }) => format!("{path}: {reason}"),
            Route::Stage { .. } => "stage".to_owned(),
        };
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn a_backend_that_obeys_makes_a_forecast_a_fact() {
        let kernel = |choice, in_window, staging| {
            let rules = Rules {
                rows: &rows(),
                symmetric: true,
                staging,
                world_size: 2,
                captured: false,
                choice,
            };
            let call = call(1 << 18, DType::F32, ReduceOp::Sum, in_window);
            match choose(&call, &rules).unwrap() {
                Route::AsIs(Way { kernel, .. }) | Route::Stage { kernel, .. } => kernel,
            }
        };
        let (any, symmetric) = (KernelChoice::Any, KernelChoice::Symmetric);
        for (in_window, staging) in [(true, Staging::Auto), (false, Staging::Forced)] {
            assert_eq!(kernel(any, in_window, staging), Kernel::Predicted("k"));
            assert_eq!(kernel(symmetric, in_window, staging), Kernel::Forced("k"));
        }
        assert_eq!(kernel(symmetric, false, Staging::Never), Kernel::Ordinary);
    }

    #[test]
    fn a_rank_that_is_not_the_root_misses_what_the_root_does() {
        let root = Rank(0);
        let op = ReduceOp::Sum;
        for in_window in [true, false] {
            let on_root = call(16, DType::F32, op, in_window);
            for (op, absent_send) in [
                (Op::Broadcast { root }, true),
                (Op::Reduce { op, root }, false),
            ] {
                let on_root = Collective { op, ..on_root };
                let mut elsewhere = on_root;
                let absent = if absent_send {
                    &mut elsewhere.send
                } else {
                    &mut elsewhere.recv
                };
                *absent = Operand::EMPTY;
                let missing = |call: &Collective<'_>| missing_sides(call, Sides::Both, false);
                assert_eq!(missing(&elsewhere), missing(&on_root));
                assert_eq!(missing(&on_root).is_none(), in_window);
            }
        }
    }

    #[test]
    fn forbidding_the_fallback_spares_what_never_had_a_kernel() {
        let barrier = Collective::BARRIER;
        let way = Way::ordinary(Path::Direct, Reason::NoKernelForOperation);
        assert!(permit(&barrier, way, Fallback::Forbid).is_ok());
        let reduce = call(16, DType::F64, ReduceOp::Sum, true);
        let way = Way::fallback(Reason::NoKernelForType);
        assert!(permit(&reduce, way, Fallback::Forbid).is_err());
        assert!(permit(&reduce, way, Fallback::Allow).is_ok());
    }
}
